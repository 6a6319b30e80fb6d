"""A session's cookie jar after a fork: its lock, which another thread may have held, is made anew.

The standard library's jar takes its lock for every answer that may set a cookie, and nothing renews it in a child:
with many threads at work some fork meets it held, and the child's first call would wait for ever.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from netkit import fork

__all__ = ["JarAfterFork"]


class JarAfterFork:
    """Keep it as long as `owner` lives. `jar_of(owner)` finds the jar: users put others in its place."""

    __slots__ = ("__weakref__", "_jar_of", "_owner")

    def __init__(self, owner: Any, jar_of: Callable[[Any], Any]) -> None:
        self._owner = weakref.ref(owner)
        self._jar_of = jar_of
        fork.register(self)

    def after_fork_in_child(self) -> None:
        owner = self._owner()
        jar: Any = None if owner is None else self._jar_of(owner)
        if hasattr(jar, "_cookies_lock"):
            jar._cookies_lock = threading.RLock()
