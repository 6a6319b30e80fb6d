"""How much received, unread data this process may hold before connection windows are held too.

Rules of this file:

- Each loop counts its own bytes; only the sum is compared with the limit, so no count is shared between threads.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from netkit import fork
from netkit.http2.timers import Wheel

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["Budget"]

_POLL: Final = 0.02
_lock = fork.lock()
_all: weakref.WeakSet[Budget] = weakref.WeakSet()


class Budget:
    """The share of one loop. `unread` counts the bytes of answers that are still arriving."""

    __slots__ = ("__weakref__", "limit", "starved", "timer", "unread", "wheel")

    def __init__(self, limit: int, wheel: Wheel) -> None:
        self.limit = limit
        self.unread = 0
        self.starved: set[Connection] = set()
        self.timer: float | None = None
        self.wheel = wheel
        with _lock:
            _all.add(self)

    def exceeded(self) -> bool:
        """True while the process holds more than the limit."""
        if self.unread > self.limit:
            return True
        with _lock:
            return sum(budget.unread for budget in _all) > self.limit

    def starve(self, connection: Connection) -> None:
        """Remember a connection whose window is held."""
        self.starved.add(connection)
        if self.timer is None:
            self.wheel.arm(self, _POLL)

    def feed(self) -> None:
        """Release what is held, if there is room again."""
        if self.starved and not self.exceeded():
            starved, self.starved = self.starved, set()
            for connection in starved:
                connection.credit.unstarve()

    def expired(self, now: float) -> float | None:
        """Bytes that another loop's callers read are noticed by looking again."""
        self.feed()
        return _POLL if self.starved else None

    def close(self) -> None:
        """This loop's answers are gone."""
        self.unread = 0
        with _lock:
            _all.discard(self)

    def __repr__(self) -> str:
        return f"<Budget {self.unread}/{self.limit} bytes, {len(self.starved)} connections held>"
