"""What must be made anew in a forked child: locks that another thread may have held, sockets that the parent owns.

Rules of this file:

- Objects are known weakly; registering one keeps nothing alive.
- In the child nothing is locked, flushed or said to a peer: state is replaced, file descriptors are closed.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

__all__ = ["ForkAware", "register"]

log = logging.getLogger("netkit")


class ForkAware(Protocol):
    """Something that has to start afresh in a child process."""

    def after_fork_in_child(self) -> None:
        """Called in the child before any other code of it runs; must not wait for a lock made in the parent."""
        ...


_known: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register(thing: ForkAware) -> None:
    """Have `thing.after_fork_in_child()` called in every child forked while it lives."""
    _known.add(thing)


def _in_child() -> None:
    for thing in list(_known):
        try:
            thing.after_fork_in_child()
        except Exception:
            # One broken object must not keep the others on the parent's sockets.
            log.exception("netkit: %s did not survive the fork", type(thing).__name__)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
