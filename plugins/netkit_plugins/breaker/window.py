"""How many of the last seconds' calls have failed."""

from __future__ import annotations

from typing import Final

__all__ = ["Window"]

STEPS: Final = 10


class Window:
    """Calls and failures of the last `seconds`, in ten steps. Times are monotonic seconds. Not safe for threads."""

    __slots__ = ("_calls", "_failures", "_now", "_step")

    def __init__(self, seconds: float) -> None:
        self._step = seconds / STEPS
        self._now = 0
        self.clear()

    def clear(self) -> None:
        self._calls = [0] * STEPS
        self._failures = [0] * STEPS

    def count(self, now: float, *, failed: bool) -> None:
        """A call has ended."""
        step = self._roll(now)
        self._calls[step] += 1
        if failed:
            self._failures[step] += 1

    def exceeds(self, now: float, ratio: float, at_least: int) -> bool:
        """Whether at least `ratio` of `at_least` or more calls have failed."""
        self._roll(now)
        calls = sum(self._calls)
        # 1e-9: a share of exactly `ratio` must not be lost to rounding.
        return calls >= at_least and sum(self._failures) >= ratio * calls - 1e-9

    def _roll(self, now: float) -> int:
        """Empty the steps that have passed; the index of the present one."""
        step = int(now / self._step)
        if step > self._now:
            for passed in range(max(self._now + 1, step - STEPS + 1), step + 1):
                self._calls[passed % STEPS] = self._failures[passed % STEPS] = 0
            self._now = step
        return self._now % STEPS

    def __repr__(self) -> str:
        return f"<Window {sum(self._failures)}/{sum(self._calls)}>"
