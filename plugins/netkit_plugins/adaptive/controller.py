"""Which knob is tried next, in which direction, and when: hill climbing, one step at a time.

Rules of this file:

- Values in, moves out: it knows no clock, and turns no knob itself.
- What won is tried once more in the same direction at once. What did not rests, each time twice as long; four times
  where it did much harm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from netkit.knobs import Knob
from netkit.stats import Counter
from netkit_plugins.adaptive.trial import CLEAR_LOSS, Trial, Verdict
from netkit_plugins.adaptive.window import Window

__all__ = ["Controller", "Move"]

STEPS = (2.0, 1.5)
"""How far a trial goes: twice or half, then the finer one, in turns."""
REST = 2
"""Windows between a trial and the next."""
FIRST_REST, LONGEST_REST = 8, 1024
"""Windows for which one direction of a knob rests after it did not win; doubled each time, and once more for harm."""
HASTE = 0.25
"""No setting is lowered while a P99 is more than this share of what callers are ready to wait."""


@dataclasses.dataclass(frozen=True)
class Move:
    """Set `knob` to `after`. `reason` as in `netkit.events.KnobMoved`, or "turn": the trial's other value is next."""

    knob: str
    before: float
    after: float
    reason: str
    verdict: Verdict | None = None


class _Direction:
    """Up or down, of one knob."""

    def __init__(self, knob: str, sign: int) -> None:
        self.knob = knob
        self.sign = sign
        self.tries = 0
        self.rest = FIRST_REST
        self.rests_until = 0

    def failed(self, windows: int, harm: bool) -> None:
        """It did not win in a trial that ended after so many `windows` in all."""
        self.tries += 1
        self.rest = min(self.rest * 2 if harm else self.rest, LONGEST_REST)
        self.rests_until = windows + self.rest
        self.rest = min(self.rest * 2, LONGEST_REST)

    def won(self) -> None:
        self.tries, self.rest = 0, FIRST_REST

    def step(self, value: float, knob: Knob, bounds: tuple[float, float]) -> float:
        """The next value; `value` where there is none."""
        factor = STEPS[self.tries % len(STEPS)]
        size = value * (factor - 1) if self.sign > 0 else value * (1 - 1 / factor)
        steps = max(1, round(size / knob.grain))
        after = round(value / knob.grain + self.sign * steps) * knob.grain
        after = round(min(max(after, bounds[0]), bounds[1]), 9)
        return after if (after - value) * self.sign > 0 else value


class Controller:
    """`step` once for each window, `glance` at a part of one; `drop` where a trial cannot go on."""

    def __init__(self, names: Iterable[str], bounds: Mapping[str, tuple[float, float]], significance: float) -> None:
        self._bounds = dict(bounds)
        self._significance = significance
        self._directions = [_Direction(name, sign) for name in names for sign in (1, -1)]
        self._next = 0
        self._windows = 0
        self._rests_until = 1
        self._tried: _Direction | None = None
        self.trial: Trial | None = None
        self.trials = Counter()

    def step(self, window: Window, knobs: Mapping[str, Knob]) -> Move | None:
        """What to set for the next window."""
        self._windows += 1
        trial = self.trial
        if trial is None:
            return self._begin(window, knobs)
        knob = knobs.get(trial.knob)
        present = trial.value
        if knob is None or abs(knob.get() - present) > 1e-9:
            # Somebody else has moved it: nothing that was measured holds, and the last word was not ours.
            self._give_up()
            return None
        verdict = trial.add(window)
        if verdict is None:
            return None if trial.value == present else Move(trial.knob, present, trial.value, "turn")
        if verdict.reason == "win":
            self._won()
            return Move(trial.knob, trial.old, trial.new, "win", verdict)
        self._give_up(verdict)
        return Move(trial.knob, trial.new, trial.old, verdict.reason, verdict)

    def glance(self, part: Window, knobs: Mapping[str, Knob]) -> Move | None:
        """Take a new value back that a part of its window shows to be worse by far; None where it may go on."""
        trial = self.trial
        verdict = None if trial is None else trial.glance(part)
        if trial is None or verdict is None:
            return None
        knob = knobs.get(trial.knob)
        self._give_up(verdict)
        if knob is None or abs(knob.get() - trial.new) > 1e-9:
            return None
        return Move(trial.knob, trial.new, trial.old, verdict.reason, verdict)

    def drop(self, reason: str) -> Move | None:
        """Stop a trial without a verdict: its knob goes back. None where there is none."""
        trial = self.trial
        if trial is None:
            return None
        self._give_up()
        return Move(trial.knob, trial.new, trial.old, reason)

    def _begin(self, window: Window, knobs: Mapping[str, Knob]) -> Move | None:
        if self._windows < self._rests_until:
            return None
        for offset in range(len(self._directions)):
            place = (self._next + offset) % len(self._directions)
            direction = self._directions[place]
            knob = knobs.get(direction.knob)
            if knob is None or self._windows < direction.rests_until:
                continue
            if direction.sign < 0 and knob.patience is not None and window.p99 > HASTE * knob.patience:
                continue
            value = knob.get()
            after = direction.step(value, knob, self._bounds.get(direction.knob, (knob.lowest, knob.highest)))
            if after == value:
                continue
            self._next, self._tried = place, direction
            self.trial = Trial(direction.knob, value, after, self._significance, window)
            self.trials.add()
            return Move(direction.knob, value, after, "trial")
        return None

    def _won(self) -> None:
        assert self._tried is not None
        for direction in self._directions:
            if direction.knob == self._tried.knob:
                direction.won()
                if direction is not self._tried:
                    # Where it came from was just measured, and lost.
                    direction.failed(self._windows, harm=False)
        self.trial = self._tried = None

    def _give_up(self, verdict: Verdict | None = None) -> None:
        assert self._tried is not None
        self._tried.failed(self._windows, harm=verdict is not None and verdict.gain < 1 / CLEAR_LOSS)
        self._next = (self._next + 1) % len(self._directions)
        self._rests_until = self._windows + REST
        self.trial = self._tried = None

    def __repr__(self) -> str:
        return f"<Controller windows={self._windows} {self.trial or 'resting'}>"
