"""What `install` changes in one stack, and how it is put back.

Rules of this file:

- A change is written down before it is made.
- What cannot be changed (a class with another layout, a read-only module) stays native; nothing is raised for it.
- netkit's own modules keep the originals: they are built on them.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, Self

from netkit.facade import ADAPTERS as STACKS
from netkit.facade import edge_of

__all__ = ["STACKS", "Patch"]

log = logging.getLogger("netkit")

OWN: Final = frozenset({"netkit", "netkit_adapters", "netkit_plugins"})


class Patch:
    """netkit in place of one stack's classes and functions. `replaced` maps ids of originals to (original, ours)."""

    def __init__(self, stack: str, replaced: dict[int, tuple[Any, Any]]) -> None:
        self._stack = stack
        self._adapter: Any = importlib.import_module(STACKS[stack])
        self._replaced = replaced
        self._undo: list[Callable[[], None]] = []

    @classmethod
    def of(cls, stack: str) -> Self | None:
        """The patch for a loaded stack; None where another package answers to its name (`httpx2.alias_httpx`)."""
        if sys.modules[stack].__name__ != stack:
            return None
        mirror: dict[str, Any] = importlib.import_module(STACKS[stack]).MIRROR
        replaced: dict[int, tuple[Any, Any]] = {}
        for dotted, ours in mirror.items():
            inner, _, name = dotted.rpartition(".")
            module = importlib.import_module(f"{stack}.{inner}" if inner else stack)
            original = getattr(module, name)
            if original is not ours:
                replaced[id(original)] = (original, ours)
        return cls(stack, replaced)

    def apply(self) -> None:
        """Classes and live sessions first, names last: what finds a name finds it working."""
        for original, ours in list(self._replaced.values()):
            if isinstance(original, type):
                # Asked before their classes change: netkit's own would be given a side of netkit's by the question.
                alive = [session for session in _instances(original, ours) if not _attached(session)]
                rebased = [self._rebase(derived, original, ours) for derived in list(_derived(original, ours))]
                for session in alive:
                    self._adopt(session, original, ours)
                # Undone first: a session is released when no thread can find netkit's methods on it any more.
                self._undo.extend(step for step in rebased if step is not None)
        for module in list(sys.modules.values()):
            self._rename(module)

    def undo(self) -> None:
        """Put everything back, last change first."""
        while self._undo:
            step = self._undo.pop()
            try:
                step()
            except Exception:
                # The program may have changed the same thing since: the rest is put back all the same.
                log.exception("netkit: a part of %s could not be put back", self._stack)

    def _rename(self, module: Any) -> None:
        if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] in OWN:
            return
        names = vars(module)
        for name, value in list(names.items()):
            found = self._replaced.get(id(value))
            if found is not None and found[0] is value:
                self._undo.append(lambda name=name, value=value, ours=found[1]: _restore(names, name, ours, value))  # type: ignore[misc]
                names[name] = found[1]

    def _rebase(self, derived: type, original: type, ours: type) -> Callable[[], None] | None:
        """Have `derived` derive from netkit's class; returns how that is undone, None where it cannot be done."""
        bases = derived.__bases__
        try:
            derived.__bases__ = tuple(ours if base is original else base for base in bases)
        except TypeError as error:
            log.warning("netkit: %s.%s stays without netkit: %s", derived.__module__, derived.__qualname__, error)
            return None
        return lambda: setattr(derived, "__bases__", bases)

    def _adopt(self, session: Any, original: type, ours: type) -> None:
        kind = type(session)
        if kind is not original and not issubclass(kind, ours):
            return  # of a class that could not be rebased
        try:
            if kind is original:
                _become(session, ours)
            self._adapter.adopt(session)
        except Exception as error:  # noqa: BLE001
            # A session of an unusual make stays what it was.
            log.warning("netkit: a %s stays without netkit: %s", kind.__qualname__, error)
            _become(session, kind)
            return
        reference = weakref.ref(session)

        def put_back() -> None:
            known = reference()
            if known is not None:
                if type(known) is ours:
                    _become(known, original)
                self._adapter.release(known)

        self._undo.append(put_back)

    def __repr__(self) -> str:
        return f"<Patch {self._stack}: {len(self._undo)} changes>"


def _attached(session: Any) -> bool:
    """Whether netkit was attached to it by hand, with settings of its own."""
    try:
        edge_of(session)
    except TypeError:
        return False
    return True


def _become(session: Any, kind: type) -> None:
    # Not by the session's own `__setattr__`: aiohttp's warns, which is an error to who runs Python with -W error.
    object.__setattr__(session, "__class__", kind)


def _restore(names: dict[str, Any], name: str, ours: Any, value: Any) -> None:
    if names.get(name) is ours:
        names[name] = value


def _derived(original: type, ours: type) -> Iterator[type]:
    """Direct subclasses that are not netkit's."""
    subclasses: list[type] = type.__subclasses__(original)
    for derived in subclasses:
        if derived is not ours and derived.__module__.partition(".")[0] not in OWN:
            yield derived


def _instances(original: type, ours: type) -> list[Any]:
    """The stack's own sessions that are alive, those of derived classes included."""
    # By type, not isinstance: proxies (werkzeug's) answer that with what they stand for, or raise.
    return [thing for thing in _objects() if issubclass(type(thing), original) and not issubclass(type(thing), ours)]


def _objects() -> list[Any]:
    """What the garbage collector knows. `gc.freeze()`, of servers that load before they fork, hides from it all that
    there was: that is shown for a moment, in which nothing is collected, and frozen again, with what came since."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    collects = gc.isenabled()
    gc.disable()
    try:
        gc.unfreeze()
        found = gc.get_objects()
        gc.freeze()
    finally:
        if collects:
            gc.enable()
    return found
