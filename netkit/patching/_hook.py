"""Being told when a stack has been imported.

Rules of this file:

- The import is Python's own: the loader that another finder gives does the work, and is what the module shows.
- A stack is reported when its module has been executed; where its adapter is what imported it, when that has.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ImportHook"]


class ImportHook(MetaPathFinder):
    """Calls `done(stack)` after the import of a stack. `stacks` maps the stacks' modules to their adapters'."""

    def __init__(self, stacks: Mapping[str, str], done: Callable[[str], None]) -> None:
        self._stacks = dict(stacks)
        self._by_adapter = {adapter: stack for stack, adapter in stacks.items()}
        self._done = done
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        stack = fullname if fullname in self._stacks else self._by_adapter.get(fullname)
        if stack is None or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, lambda: self._imported(fullname, stack))
        return spec

    def _imported(self, name: str, stack: str) -> None:
        adapter = sys.modules.get(self._stacks[stack])
        if name == stack and adapter is not None and getattr(adapter.__spec__, "_initializing", False):
            # The adapter imports the stack at present: it is reported itself.
            return
        if stack in sys.modules:
            self._done(stack)


class _Telling(Loader):
    """A loader that tells when it has executed its module, and leaves no trace of itself on it."""

    def __init__(self, loader: Loader, done: Callable[[], None]) -> None:
        self._loader = loader
        self._tell = done

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._tell()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
