"""After a pause callers come back one by one, not as the herd that they were.

Two brakes, because either alone fails. By answers: one attempt first, and one more without an answer for each success
(TCP's slow start), so a server that still refuses hears of one call. By time: gaps that begin at 10 ms and halve
each 100 ms, so that a server that answers in a millisecond is not met by everybody at once.

A server refuses fast and works slowly: an attempt that got no answer for `PATIENCE` was not refused, and as many more
may go as did before.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Ramp"]

DOUBLING: Final = 0.1
"""Seconds in which the pace doubles."""
FIRST_PACE: Final = 100.0
"""Attempts per second right after the pause: 6 in the first 50 ms."""
PATIENCE: Final = 1.0
"""Seconds."""


class Ramp:
    """The way back after one pause. Not safe by itself: its lane has the lock."""

    __slots__ = ("_earliest", "_last", "_released", "_window", "target", "unanswered")

    def __init__(self, target: int) -> None:
        self.target = target
        """How many were under way when the pause began: from there on nothing holds back."""
        self.unanswered = 0
        """Attempts that went on this way and have no answer yet."""
        self._window = 1
        self._released = 0
        self._earliest = 0.0
        self._last = 0.0

    def wait(self, now: float) -> float:
        """Seconds until one more may go, or until it is worth asking again: an answer comes when it comes."""
        if self.unanswered >= self._window:
            patience = self._last + PATIENCE - now
            if patience > 0:
                return patience
            self._window *= 2
            self._last = now
        return max(0.0, self._earliest - now)

    def release(self, now: float) -> None:
        """One goes. A gap counts from here, so that a late start is not made up for by a crowd."""
        self._earliest = now + _moment(self._released + 1) - _moment(self._released)
        self._last = now
        self._released += 1
        self.unanswered += 1

    def answer(self, success: bool) -> None:
        """One of them was answered, or given up."""
        self.unanswered -= 1
        if success:
            self._window += 1

    @property
    def is_over(self) -> bool:
        return self._window > self.target and self._released >= self.target

    def __repr__(self) -> str:
        return f"<Ramp window={self._window} released={self._released} of {self.target}>"


def _moment(number: int) -> float:
    """When the attempt of this number goes at the earliest, in seconds after the first: the pace is doubling, so the
    time grows with the logarithm."""
    return DOUBLING * math.log2(1 + number * math.log(2) / (FIRST_PACE * DOUBLING))
