"""What was seen of the calls that began while the settings were as they are."""

from __future__ import annotations

from collections import deque

from netkit.stats import Counter
from netkit_plugins.adaptive.window import Ended

__all__ = ["MAX_CALLS", "Phase"]

MAX_CALLS = 20_000
"""Calls after which a window is over, however short it was."""


class Phase:
    """Written by calls from any thread, at any moment, without a lock: each step is one of C's own."""

    __slots__ = ("begun", "calls", "over")

    def __init__(self) -> None:
        self.begun = Counter()
        self.over = Counter()
        self.calls: deque[Ended] = deque(maxlen=2 * MAX_CALLS)

    @property
    def under_way(self) -> int:
        """Calls of it that have not ended."""
        return max(0, self.begun.value - self.over.value)

    def take(self) -> list[Ended]:
        """What ended since the last time."""
        return [self.calls.popleft() for _ in range(len(self.calls))]

    def __repr__(self) -> str:
        return f"<Phase begun={self.begun.value} over={self.over.value}>"
