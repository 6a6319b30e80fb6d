"""A benchmark's contenders and goals, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case", "Goal"]


@dataclass(frozen=True)
class Case:
    """One contender at one load. `target` is the server's port or path; `environment` "main" (this virtual
    environment) or "peers" (.compat/bench, for libraries that have no place in ours)."""

    face: str
    concurrency: int
    target: str
    seconds: float = 1.0
    environment: str = "main"
    plugins: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> tuple[str, int]:
        return self.face, self.concurrency


@dataclass(frozen=True)
class Goal:
    """`metric` of `face` at `concurrency`, divided by that of `peer` in the same round (or as it is when there is no
    peer), stays within the bound."""

    face: str
    concurrency: int
    metric: str
    peer: str | None = None
    at_most: float | None = None
    at_least: float | None = None

    def words(self) -> str:
        bound = f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}"
        return bound + (f" of {self.peer}" if self.peer else "")

    def met(self, value: float) -> bool:
        return value <= self.at_most if self.at_most is not None else value >= (self.at_least or 0.0)
