"""How long the reader of one body may be kept waiting: `netkit.messages.Pace` for one answer.

Rule of this file: silence is counted while somebody waits, and only then.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from netkit.errors import DeadlineExceeded, TransportError, Verdict
from netkit_plugins.deadline.budget import Budget
from netkit_plugins.deadline.progress import EventProgress

__all__ = ["BodyPace"]

SLACK = 0.002
"""Seconds by which a timer may be early."""


class BodyPace:
    """One body. `read` is the call's own limit of silence, `between` the plugin's; None means no limit."""

    def __init__(
        self,
        budget: Budget,
        now: Callable[[], float],
        *,
        read: float | None,
        between: float | None,
        progress: EventProgress | None,
    ) -> None:
        self.read = read
        self._budget = budget
        self._now = now
        self._between = math.inf if between is None else between
        self._progress = progress
        self._begun = False
        self._since: float | None = None
        self._silent = 0.0

    def left(self) -> float:
        now = self._now()
        self._count(now)
        self._since = now
        own = math.inf if self.read is None else self.read
        return min(own, self._due() - now)

    def failure(self) -> TransportError | None:
        now = self._now()
        self._count(now)
        if self._due() - now > SLACK:
            return None
        budget = self._budget
        if budget.ends - now <= SLACK:
            return DeadlineExceeded("the time of this call is spent", verdict=Verdict.PROCESSED, reason="deadline")
        if not self._begun and budget.first_ends - now <= SLACK:
            return DeadlineExceeded("no first byte in time", verdict=Verdict.PROCESSED, reason="first_byte")
        return DeadlineExceeded(
            f"nothing came for {self._between:g} s", verdict=Verdict.PROCESSED, reason="between_events"
        )

    def chunk(self, data: bytes) -> bytes:
        """An `on_chunk` observer."""
        self._count(self._now())
        self._since = None
        if data and (self._progress is None or self._progress.feed(data)):
            self._begun = True
            self._silent = 0.0
        return data

    def _due(self) -> float:
        """When the present wait is over at the latest, if nothing comes."""
        due = min(self._budget.ends, self._now() + self._between - self._silent)
        return due if self._begun else min(due, self._budget.first_ends)

    def _count(self, now: float) -> None:
        if self._since is not None:
            self._silent += now - self._since
            self._since = now
