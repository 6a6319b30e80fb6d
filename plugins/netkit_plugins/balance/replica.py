"""What is known of one replica: how long it takes to answer, what it has to do, whether it is out.

Rules of this file:

- Nothing here reads a clock or waits; `now` is monotonic seconds, given by the layer.
- Latency is a peak EWMA (as in Finagle): slow answers count in full at once, fast ones by and by. A replica that
  fails fast is not a fast replica: failures say nothing about latency.
"""

from __future__ import annotations

import copy
import math
from typing import Final

import msgspec

__all__ = ["Replica", "ReplicaStats"]

DECAY: Final = 10.0
"""Seconds in which what was measured loses 63 % of its weight: a replica that was slow is tried again."""
UNKNOWN: Final = 1e6
"""Seconds that a replica with calls under way and no answer yet is taken to need: the first call goes to each."""
WARM: Final = 2
"""Answers before which a replica counts as new: the first one waited for a connection too."""
SLOWEST_FALL: Final = 0.8
"""With each fast answer a cost falls by at least a fifth of the way: ten of them make up for one that was slow."""
FASTEST: Final = 0.005
"""Seconds below which answers are equally fast."""
REPORT_LIFETIME: Final = 10.0
"""Seconds for which a replica's own word about its load counts."""
BUSIEST: Final = 0.95
"""A utilisation above this counts as this."""


class ReplicaStats(msgspec.Struct, frozen=True):
    """`calls` given to it, `pending` under way, `seconds` the peak EWMA of the time to the first byte, `failures`
    in a row, `ejections` so far, `is_out` for `out_for` more seconds."""

    calls: int
    pending: int
    seconds: float
    failures: int
    ejections: int
    is_out: bool
    out_for: float


class Replica:
    """The state of one endpoint, or of one address of it. The layer's lock guards it."""

    __slots__ = (
        "_cost", "_last", "_loaded_at", "_measured", "_stamp", "_utilisation", "calls", "ejections", "failures",
        "key", "out_until", "pending", "weight",
    )  # fmt: skip

    def __init__(self, key: str, weight: float = 1.0) -> None:
        self.key = key
        self.weight = weight
        self.pending = 0
        self.calls = 0
        self.failures = 0
        self.ejections = 0
        self.out_until = -math.inf
        self._cost = 0.0
        self._measured = 0
        self._last = math.inf
        self._stamp = -math.inf
        self._utilisation = 0.0
        self._loaded_at = -math.inf

    def afresh(self) -> Replica:
        """Another one that knows the same, with nothing under way."""
        other = copy.copy(self)
        other.pending = 0
        return other

    def is_out(self, now: float) -> bool:
        return now < self.out_until

    def begin(self) -> None:
        self.pending += 1
        self.calls += 1

    def finish(self) -> None:
        self.pending -= 1

    def first_byte(self, seconds: float, now: float) -> None:
        """It took `seconds` to the first byte of an answer's body."""
        self._measured += 1
        # One slow answer alone says little: it may have waited for a connection. Two in a row count.
        seconds, self._last = min(seconds, self._last), seconds
        left = min(self._left(now), SLOWEST_FALL)
        if self._measured <= WARM or seconds >= self._cost * left:
            self._cost = seconds
        else:
            self._cost = self._cost * left + seconds * (1 - left)
        self._stamp = now

    def report(self, utilisation: float, now: float) -> None:
        """It said how busy it is: 0.0 idle, 1.0 at its limit."""
        self._utilisation = min(max(utilisation, 0.0), BUSIEST)
        self._loaded_at = now

    def succeed(self) -> None:
        self.failures = 0

    def fail(self) -> int:
        """One more failure in a row; returns how many."""
        self.failures += 1
        return self.failures

    def eject(self, now: float, first: float, longest: float) -> float:
        """It gets no calls for `first` seconds times how often this happened, at most `longest`; returns how long.

        One that was in for `longest` seconds since starts anew.
        """
        if now - self.out_until > longest:
            self.ejections = 0
        self.ejections += 1
        self.failures = 0
        seconds = min(first * self.ejections, longest)
        self.out_until = max(self.out_until, now + seconds)
        return seconds

    def rest(self, now: float, seconds: float) -> None:
        """It asked to be left alone for `seconds`: no ejection, and not counted as one."""
        self.out_until = max(self.out_until, now + seconds)

    def load(self, now: float) -> float:
        """What one more call to it would cost, in comparison to the others."""
        cost = max(self._cost * self._left(now), FASTEST)
        if self._measured < WARM:
            cost = UNKNOWN if self.pending else 0.0
        if now - self._loaded_at < REPORT_LIFETIME:
            cost /= 1.0 - self._utilisation
        return cost * (self.pending + 1) / self.weight

    def seconds(self, now: float) -> float:
        return self._cost * self._left(now)

    def stats(self, now: float) -> ReplicaStats:
        return ReplicaStats(
            calls=self.calls,
            pending=self.pending,
            seconds=self.seconds(now),
            failures=self.failures,
            ejections=self.ejections,
            is_out=self.is_out(now),
            out_for=max(0.0, self.out_until - now),
        )

    def _left(self, now: float) -> float:
        return math.exp(-max(0.0, now - self._stamp) / DECAY)

    def __repr__(self) -> str:
        return f"<Replica {self.key} pending={self.pending} failures={self.failures}>"
