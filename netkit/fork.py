"""What must be made anew in a forked child: locks that another thread may have held, sockets that the parent owns.

Rules of this file:

- Objects are known weakly; registering one keeps nothing alive.
- In the child nothing is locked, flushed or said to a peer: state is replaced, file descriptors are closed.
- Locks that live as long as the process are made anew before anything else is called, which may take them.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Any, Final, Protocol

__all__ = ["ForkAware", "lock", "register"]

log = logging.getLogger("netkit")


class ForkAware(Protocol):
    """Something that has to start afresh in a child process."""

    def after_fork_in_child(self) -> None:
        """Called in the child before any other code of it runs; must not wait for a lock made in the parent."""
        ...


_locks: Final[list[Any]] = []
_known: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register(thing: ForkAware) -> None:
    """Have `thing.after_fork_in_child()` called in every child forked while it lives."""
    _known.add(thing)


def lock(*, reentrant: bool = False) -> Any:
    """A lock for a module, or for what lives as long as the process: free in a child, whoever held it in the parent.

    It is kept for ever. What an object locks for itself is replaced in its own `after_fork_in_child`.
    """
    made = threading.RLock() if reentrant else threading.Lock()
    _locks.append(made)
    return made


def _in_child() -> None:
    for made in _locks:
        # In place, as the standard library does with its own: other modules hold the object.
        made._at_fork_reinit()
    for thing in list(_known):
        try:
            thing.after_fork_in_child()
        except Exception:
            # One broken object must not keep the others on the parent's sockets.
            log.exception("netkit: %s did not survive the fork", type(thing).__name__)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
