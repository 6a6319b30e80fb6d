"""How soon the next attempt may go under a rate of requests and one of tokens: two token buckets, kept as times.

A bucket is one number, the moment at which it will be full again (the "theoretical arrival time" of ITU-T I.371's
generic cell rate algorithm). A reservation moves it on, and says when what was reserved will be there; what turns out
to cost more or less moves it again.

Rules of this file:

- A reservation is made once for each attempt and says when it may go: nobody asks again, so nobody is overtaken.
- An attempt that costs more than a full bucket goes when the bucket is full, and the rest is owed.
- `adjust` takes no lock: it is called from everywhere, also by the garbage collector inside of `reserve`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

__all__ = ["Bucket", "Rates", "rates_of"]

MINUTE: Final = 60.0


class Bucket:
    """`rate` units per second, of which `capacity` may be saved up. Not safe by itself: `Rates` has the lock."""

    __slots__ = ("capacity", "full_at", "rate")

    def __init__(self, rate: float, capacity: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self.full_at = 0.0

    def reserve(self, now: float, cost: float) -> float:
        """Take `cost` units; the moment from which on they are there, `now` at the earliest."""
        full_at = max(self.full_at, now)
        due = max(now, full_at - (self.capacity - min(cost, self.capacity)) / self.rate)
        self.full_at = full_at + cost / self.rate
        return due

    def add(self, cost: float) -> None:
        """Take more afterwards; give back where `cost` is negative."""
        self.full_at += cost / self.rate

    def __repr__(self) -> str:
        return f"<Bucket {self.rate:g}/s full_at={self.full_at:.3f}>"


class Rates:
    """Both buckets of one key. Times are monotonic seconds; safe from any thread."""

    __slots__ = ("_lock", "_owed", "requests", "tokens")

    def __init__(self, requests: Bucket | None, tokens: Bucket | None) -> None:
        self.requests = requests
        self.tokens = tokens
        self._lock = threading.Lock()
        self._owed: deque[tuple[float, float]] = deque()

    def reserve(self, now: float, tokens: float) -> float:
        """Take one request and `tokens`; the moment at which it may go."""
        with self._lock:
            while self._owed:
                owed_requests, owed_tokens = self._owed.popleft()
                if self.requests is not None:
                    self.requests.add(owed_requests)
                if self.tokens is not None:
                    self.tokens.add(owed_tokens)
            due = now
            if self.requests is not None:
                due = max(due, self.requests.reserve(now, 1.0))
            if self.tokens is not None and tokens:
                due = max(due, self.tokens.reserve(now, tokens))
            return due

    def adjust(self, requests: float, tokens: float) -> None:
        """It cost so much more, or less where negative."""
        if requests or tokens:
            self._owed.append((requests, tokens))

    def __repr__(self) -> str:
        return f"<Rates requests={self.requests} tokens={self.tokens}>"


def rates_of(requests_per_second: float | None, tokens_per_minute: float | None, burst: int | None) -> Rates | None:
    """The buckets for these options; None where neither rate is limited."""
    if requests_per_second is None and tokens_per_minute is None:
        return None
    requests = tokens = None
    if requests_per_second is not None:
        requests = Bucket(requests_per_second, max(1.0, requests_per_second) if burst is None else burst)
    if tokens_per_minute is not None:
        tokens = Bucket(tokens_per_minute / MINUTE, tokens_per_minute)
    return Rates(requests, tokens)
