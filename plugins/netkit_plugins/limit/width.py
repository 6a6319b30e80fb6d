"""How many attempts may be under way at once: a number, or one that is found by additive increase and multiplicative
decrease (D.-M. Chiu, R. Jain, 1989).

It rises by one for each round of successes in which it was used to the full. It falls by half on 429 and 503, and by
a tenth when the server queues more than it works: as the server says (TEI's `x-queue-time`, milliseconds), else when
answers begin to take twice as long as they do on average. One round of attempts lowers it once: what was sent before
the last fall says nothing about the present number.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

__all__ = ["AdaptiveWidth", "Answered", "Width"]

START: Final = 10
MAXIMUM: Final = 1000
OVERLOADED: Final = frozenset({429, 503})
AFTER_REFUSAL: Final = 0.5
AFTER_QUEUEING: Final = 0.9
SLOWER: Final = 2.0
LEAST_QUEUE: Final = 0.01
"""Seconds: what lies below is no queue, whatever the share."""


@dataclasses.dataclass(frozen=True)
class Answered:
    """One attempt whose head arrived. `sent` is a monotonic time, `seconds` what it took, `queue` the seconds that
    the server says it waited there (None: nothing said), `full` whether the limit was reached."""

    sent: float
    seconds: float
    status: int
    queue: float | None
    full: bool


class Width:
    """A fixed number, infinity for no limit."""

    __slots__ = ("limit",)

    learns = False

    def __init__(self, limit: float = math.inf) -> None:
        self.limit: float = limit

    def answered(self, now: float, answer: Answered) -> str | None:
        """Learn; why the number changed, None when it did not."""
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit:g}>"


class AdaptiveWidth(Width):
    """Starts at 10, from 1 to 1000."""

    __slots__ = ("_exact", "_fell", "_long", "_short")

    learns = True

    def __init__(self) -> None:
        super().__init__(START)
        self._exact = float(START)
        self._fell = -math.inf
        self._long = 0.0
        self._short = 0.0

    def answered(self, now: float, answer: Answered) -> str | None:
        if answer.status in OVERLOADED:
            return self._fall(now, answer.sent, AFTER_REFUSAL, str(answer.status))
        if answer.status >= 400:
            return None
        if self._is_queueing(answer):
            return self._fall(now, answer.sent, AFTER_QUEUEING, "queue")
        if not answer.full:
            return None
        return self._set(self._exact + 1 / self._exact, "success")

    def _is_queueing(self, answer: Answered) -> bool:
        if answer.queue is not None:
            return answer.queue > max(LEAST_QUEUE, answer.seconds / 2)
        if not self._long:
            self._long = self._short = answer.seconds
            return False
        self._long += (answer.seconds - self._long) / 200
        self._short += (answer.seconds - self._short) / 10
        return self._short > SLOWER * self._long and self._short - self._long > LEAST_QUEUE

    def _fall(self, now: float, sent: float, factor: float, why: str) -> str | None:
        if sent <= self._fell:
            return None
        self._fell = now
        return self._set(self._exact * factor, why)

    def _set(self, exact: float, why: str) -> str | None:
        self._exact = min(max(exact, 1.0), float(MAXIMUM))
        before, self.limit = self.limit, math.floor(self._exact + 1e-9)
        return why if self.limit != before else None
