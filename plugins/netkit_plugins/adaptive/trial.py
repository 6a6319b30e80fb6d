"""One trial: the old value of a knob and a new one take turns, window by window, until it shows which is better.

Rules of this file:

- Turns go new old old new, again and again: a load that rises or falls steadily favours neither.
- The new value has to prove itself; the old one never does.
- What does harm ends at once, what cannot win ends early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from statistics import median

from netkit_plugins.adaptive.evidence import chance, rounds_for
from netkit_plugins.adaptive.window import Window

__all__ = ["Trial", "Verdict"]

GAIN = 1.03
"""What is not better by so much is no win, however certain it is."""
TAIL = 1.25
"""A P99 that is worse by so much vetoes."""
BAD = 0.02
"""A share of failures that is higher by so much vetoes."""
FEW = 3
"""Failures in one window that may be accidents."""
EARLY = 2
"""Windows of each kind before a trial may end for want of promise."""
LOSS = 1.1
"""A window of the new value that is worse by so much than each of the old one's ends the trial at once."""
CLEAR_LOSS = 1.25
"""The same for a part of a window, which fewer calls make less certain."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`reason` is "win", "no win", "failures" or "tail". `gain` of the new value over the old: 1.1 is 10 % more calls
    per second, or a wait that is shorter by as much. `chance`: how likely equal values look like this; 1.0 where the
    trial ended before the test."""

    reason: str
    gain: float = 1.0
    chance: float = 1.0


class Trial:
    """`is_new` says whose turn it is; `add` takes its window. `before` is the last window before the trial: until the
    old value has had a turn, it says how many failures are usual."""

    def __init__(self, knob: str, old: float, new: float, significance: float, before: Window) -> None:
        self.knob = knob
        self.old = old
        self.new = new
        # Two ways to win, of which each gets half of the chance to be wrong.
        self._significance = significance / 2
        self._rounds = rounds_for(significance / 2)
        self._windows: dict[bool, list[Window]] = {False: [], True: []}
        self._turn = 0
        self._before = before

    @property
    def is_new(self) -> bool:
        return self._turn % 4 in (0, 3)

    @property
    def value(self) -> float:
        return self.new if self.is_new else self.old

    def add(self, window: Window) -> Verdict | None:
        """None while it is open."""
        harm = self._harm(window, LOSS) if self.is_new else None
        if harm is not None:
            return harm
        self._windows[self.is_new].append(window)
        self._turn += 1
        old, new = self._windows[False], self._windows[True]
        if len(old) != len(new):
            return None
        if len(new) < self._rounds:
            return Verdict("no win") if len(new) >= EARLY and self._is_hopeless() else None
        return self._judge()

    def glance(self, part: Window) -> Verdict | None:
        """What a `part` of the new value's window says already: None where it may go on."""
        return self._harm(part, CLEAR_LOSS) if self.is_new else None

    def _harm(self, window: Window, loss: float) -> Verdict | None:
        """A window of the new value with more failures than usual, or one that in one respect is worse by `loss` than
        the worst of the old value's, and better in none."""
        old = self._windows[False] or [self._before]
        if window.bad_share > _mean(old, lambda each: each.bad_share) + BAD:
            # Calls that fail are no throughput, either: of few, nothing follows.
            return Verdict("failures") if window.bad >= FEW else None
        rate = _ratio(window.rate, min(each.rate for each in old))
        wait = _ratio(max(each.wait for each in old), window.wait)
        if min(rate, wait) < 1 / loss and max(rate, wait) < GAIN:
            return Verdict("no win", min(rate, wait))
        return None

    def _is_hopeless(self) -> bool:
        """Nothing about the new value is better so far, not even by half of what it has to be."""
        rate, wait = self._gains()
        return max(rate, wait) < 1 + (GAIN - 1) / 2

    def _judge(self) -> Verdict:
        old, new = self._windows[False], self._windows[True]
        rate, wait = self._gains()
        more = chance([each.rate for each in new], [each.rate for each in old])
        sooner = chance([each.wait for each in old], [each.wait for each in new])
        if rate >= GAIN and more <= self._significance:
            verdict = Verdict("win", rate, more)
        elif wait >= GAIN and sooner <= self._significance and rate > 1 / GAIN:
            # Callers who come at their own pace are not served more often, only sooner.
            verdict = Verdict("win", wait, sooner)
        else:
            return Verdict("no win", max(rate, wait), min(more, sooner))
        if _mean(new, lambda each: each.bad_share) > _mean(old, lambda each: each.bad_share) + BAD:
            return dataclasses.replace(verdict, reason="failures")
        if median(each.p99 for each in new) > TAIL * median(each.p99 for each in old):
            return dataclasses.replace(verdict, reason="tail")
        return verdict

    def _gains(self) -> tuple[float, float]:
        """By how much calls per second, and the wait, are better: above 1 is better."""
        old, new = self._windows[False], self._windows[True]
        return (
            _ratio(median(each.rate for each in new), median(each.rate for each in old)),
            _ratio(median(each.wait for each in old), median(each.wait for each in new)),
        )

    def __repr__(self) -> str:
        return f"<Trial {self.knob} {self.old:g} or {self.new:g}: {self._turn} of {2 * self._rounds} windows>"


def _mean(windows: list[Window], value: Callable[[Window], float]) -> float:
    return sum(map(value, windows)) / len(windows)


def _ratio(better: float, base: float) -> float:
    return better / base if base > 0 else 1.0
