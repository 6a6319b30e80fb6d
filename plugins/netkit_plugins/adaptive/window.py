"""One window of traffic: which calls count, and what they say. Plain values; times are monotonic seconds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from netkit.percentile import nearest_rank

__all__ = ["Ended", "Window", "outcome_of", "window_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """One call: when it `began`, when its answer's head was there (`answered`; the end where it failed), when it
    `ended` with its body; `outcome` is "done", "failed", or "refused" (429, 503)."""

    began: float
    answered: float
    ended: float
    outcome: str


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """`rate`: calls done per second in which any was under way. `wait`: mean seconds until an answer's head, `p99` of
    the same. `bad`: calls that failed or were refused. All 0 where nothing ended."""

    calls: int
    rate: float
    wait: float
    p99: float
    bad: int

    @property
    def bad_share(self) -> float:
        return self.bad / self.calls if self.calls else 0.0


def outcome_of(status: int) -> str | None:
    """None for an answer that says nothing about the server's strength: the request was at fault."""
    if status in (429, 503):
        return "refused"
    if status >= 500:
        return "failed"
    return None if status >= 400 else "done"


def window_of(calls: Sequence[Ended], start: float) -> Window:
    """What `calls`, which ended after `start`, say."""
    done = [call for call in calls if call.outcome == "done"]
    busy = _covered([(max(call.began, start), call.ended) for call in calls])
    waits = sorted(call.answered - call.began for call in done)
    return Window(
        calls=len(calls),
        rate=len(done) / busy if busy > 0 else 0.0,
        wait=sum(waits) / len(waits) if waits else 0.0,
        p99=nearest_rank(waits, 0.99),
        bad=len(calls) - len(done),
    )


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in at least one of the spans."""
    covered, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        if end > reached:
            covered += end - max(begin, reached)
            reached = end
    return covered
