"""What is known of where a call goes: how long answers take there, and how many copies it may still get.

Rules of this file:

- Plain numbers: nothing here waits or knows a runtime. The lock is held for a few additions.
- Over any number of calls since the beginning, copies are at most `ratio` of them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from netkit.percentile import percentile

__all__ = ["BURST", "Budget", "Times"]

BURST: Final = 10.0
"""Copies that may be sent in a row at most, after a long time in which none was needed; or those that this many calls
earn, where that is more:"""

BURST_CALLS: Final = 200

WINDOW: Final = 256
REFRESH: Final = 16


class Times:
    """Seconds to the heads of the last answers on one route."""

    __slots__ = ("_added", "_known", "_last", "_lock", "_percentile")

    def __init__(self, percentile: float) -> None:
        self._percentile = percentile
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._known: float | None = None
        self._added = 0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            self._last.append(seconds)
            self._added += 1
            if self._added >= REFRESH:
                self._known = None

    def percentile(self, least: int) -> float | None:
        """The nearest-rank percentile; None before there are `least` answers, at most as many as are kept. It is
        worked out anew every few answers."""
        with self._lock:
            if len(self._last) < min(least, WINDOW):
                return None
            if self._known is None:
                self._known = percentile(self._last, self._percentile / 100)
                self._added = 0
            return self._known

    def __repr__(self) -> str:
        return f"<Times of {len(self._last)} answers>"


class Budget:
    """Copies to one origin: each call that could be hedged earns `ratio` of one."""

    __slots__ = ("_lock", "_most", "_ratio", "_tokens")

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._most = max(BURST, BURST_CALLS * ratio)
        self._tokens = 0.0
        self._lock = threading.Lock()

    def earn(self) -> bool:
        """A call is made; whether a copy of it could be paid for now."""
        with self._lock:
            self._tokens = min(self._most, self._tokens + self._ratio)
            # 1e-9: twenty times 0.05 is to be one.
            return self._tokens >= 1.0 - 1e-9

    def take(self) -> bool:
        """Pay for one copy, if there is enough."""
        with self._lock:
            if self._tokens < 1.0 - 1e-9:
                return False
            self._tokens = max(0.0, self._tokens - 1.0)
            return True

    def __repr__(self) -> str:
        return f"<Budget copies={self._tokens:.2f}>"
