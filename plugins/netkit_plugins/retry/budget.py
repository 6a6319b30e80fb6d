"""How many retries an origin may get: a share of its first attempts, counted for the whole process.

An outage makes every call fail, and retries then multiply the load just when the server is weakest. The budget is
process-wide, because ten sessions that keep to their own share still send ten shares.

Rules of this file:

- A retry that sleeps in its backoff is spent already; else all sleepers would pass at once when they wake.
- The lock is held for a few additions, never over a wait.
"""

from __future__ import annotations

import os
import threading
from typing import Final

__all__ = ["RetryBudget", "budget_of", "forget_budgets"]

WINDOW: Final = 10
"""Seconds over which first attempts and retries are counted, in steps of one second."""

MAX_ORIGINS: Final = 4096


class RetryBudget:
    """First attempts and retries to one origin in the last 10 seconds. Times are monotonic seconds.

    ::

        budget.count_call(now)
        if budget.reserve(now, ratio=0.2, per_second=10.0):   # the retry is decided; it sleeps
            budget.settle(now)                                # it leaves, or was given up
    """

    __slots__ = ("_asleep", "_calls", "_lock", "_retries", "_second")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = [0] * WINDOW
        self._retries = [0] * WINDOW
        self._asleep = 0
        self._second = 0

    def count_call(self, now: float) -> None:
        """A call sends its first attempt."""
        second = int(now)
        with self._lock:
            if second > self._second:
                self._roll(second)
            self._calls[second % WINDOW] += 1

    def reserve(self, now: float, *, ratio: float, per_second: float) -> bool:
        """Whether one more retry is allowed; if so it counts as asleep until `settle`."""
        second = int(now)
        with self._lock:
            if second > self._second:
                self._roll(second)
            allowed = ratio * sum(self._calls) + per_second * WINDOW
            # 1e-9: a share like 0.2 of 200 must not lose its last retry to rounding.
            if sum(self._retries) + self._asleep + 1 > allowed + 1e-9:
                return False
            self._asleep += 1
            return True

    def settle(self, now: float) -> None:
        """A reserved retry is asleep no more; from now on it counts for the length of the window."""
        second = int(now)
        with self._lock:
            if second > self._second:
                self._roll(second)
            self._asleep -= 1
            self._retries[second % WINDOW] += 1

    def _roll(self, second: int) -> None:
        for passed in range(max(self._second + 1, second - WINDOW + 1), second + 1):
            self._calls[passed % WINDOW] = 0
            self._retries[passed % WINDOW] = 0
        self._second = second

    def __repr__(self) -> str:
        return f"<RetryBudget calls={sum(self._calls)} retries={sum(self._retries)} asleep={self._asleep}>"


_budgets: dict[str, RetryBudget] = {}
_budgets_lock = threading.Lock()


def budget_of(origin: str) -> RetryBudget:
    """The one budget of `origin` in this process."""
    budget = _budgets.get(origin)
    if budget is None:
        with _budgets_lock:
            if len(_budgets) >= MAX_ORIGINS:
                # The oldest starts anew when it is met again: a bound on memory, at the price of a fresh share.
                del _budgets[next(iter(_budgets))]
            budget = _budgets.setdefault(origin, RetryBudget())
    return budget


def forget_budgets() -> None:
    """Start counting anew: in a forked child (layers there ask for their budgets again), and between tests."""
    global _budgets, _budgets_lock
    _budgets, _budgets_lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=forget_budgets)
