"""How much a look at a server may cost: requests and seconds, promised beforehand and kept.

Rules of this file:

- Every request is spent before it is sent; what would go beyond the promise is not sent.
- Every wait takes its limit from here, so that a server that drips cannot make it longer.
"""

from __future__ import annotations

import time

__all__ = ["Budget", "Spent"]


class Spent(Exception):
    """Another request, or any wait at all, would break the promise."""


class Budget:
    """`requests` and `seconds` from now on; `patience` is the longest wait for one answer, in seconds."""

    def __init__(self, requests: int, seconds: float, *, patience: float = 10.0) -> None:
        self.requests = requests
        self.seconds = seconds
        self.spent = 0
        self._patience = patience
        self._began = time.monotonic()
        self._ends = self._began + seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def spend(self) -> None:
        """Count one request that is about to be sent. Raises `Spent` where it must not be."""
        if self.spent >= self.requests:
            raise Spent(f"all {self.requests} requests are used")
        self.deadline()
        self.spent += 1

    def deadline(self, seconds: float | None = None) -> float:
        """The `time.monotonic()` until which to wait, at most `seconds` (None: the usual patience) from now.
        Raises `Spent` where no time is left."""
        now = time.monotonic()
        if now >= self._ends:
            raise Spent("the time is used up")
        return min(self._ends, now + (self._patience if seconds is None else seconds))

    def __repr__(self) -> str:
        return f"<Budget {self.spent} of {self.requests} requests, {self._ends - time.monotonic():.1f} s left>"
