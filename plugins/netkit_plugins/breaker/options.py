"""The options of `[tool.netkit.breaker]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from netkit.shared import is_redis_url

__all__ = ["BreakerOptions"]


@dataclasses.dataclass(frozen=True)
class BreakerOptions:
    """When a circuit opens, for how long, and for what. Times in seconds.

    fail_max: it opens after so many failures in a row; None switches this rule off.
    failure_ratio, min_calls, window: or when this share of at least min_calls calls within window seconds has failed;
        a ratio of None switches this rule off.
    reset_timeout, reset_timeout_max: how long it stays open before probes are let through; doubled after each failed
        probe, up to reset_timeout_max. Lengthened by up to a tenth at random, so that clients do not come back all
        at once.
    probes: how many calls may be under way at once to find out whether the server is back.
    wait: how long a call that meets an open circuit may wait for it to close before it is refused; 0 refuses at once.
        Waiting calls send nothing, and go on spread over a quarter of a second.
    scope: what shares a circuit: "endpoint" (the replica that a balancer chose, else the origin), "origin", or
        "route" (the URL without its query).
    failure_statuses: answers that count as failures: numbers, and ranges as "500-599". () means none.
    storage: "memory" (each session by itself) or a redis URL, whose password is never shown.
    """

    fail_max: int | None = 5
    failure_ratio: float | None = 0.5
    min_calls: int = 20
    window: float = 30.0
    reset_timeout: float = 30.0
    reset_timeout_max: float = 300.0
    probes: int = 1
    wait: float = 0.0
    scope: Literal["endpoint", "origin", "route"] = "endpoint"
    failure_statuses: tuple[int | str, ...] = ("500-599",)
    storage: str = dataclasses.field(default="memory", repr=False)

    def __post_init__(self) -> None:
        for name in ("fail_max", "min_calls", "probes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be ≥ 1, got {value}")
        if self.failure_ratio is not None and not 0 < self.failure_ratio <= 1:
            raise ValueError(f"failure_ratio must be above 0 and at most 1, got {self.failure_ratio:g}")
        if self.fail_max is None and self.failure_ratio is None:
            raise ValueError("fail_max and failure_ratio are both none: nothing would ever open a circuit")
        for name in ("window", "reset_timeout", "reset_timeout_max"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be > 0, got {value:g}")
        if not (self.wait >= 0 and math.isfinite(self.wait)):
            raise ValueError(f"wait must be ≥ 0, got {self.wait:g}")
        if self.scope not in ("endpoint", "origin", "route"):
            raise ValueError(f'scope must be "endpoint", "origin" or "route", got {self.scope!r}')
        if self.storage != "memory" and not is_redis_url(self.storage):
            raise ValueError('storage must be "memory" or a URL that begins with redis://, rediss:// or unix://')
        self.statuses()

    def statuses(self) -> frozenset[int]:
        """`failure_statuses` as numbers. Raises ValueError."""
        found: set[int] = set()
        for entry in self.failure_statuses:
            first, dash, last = str(entry).partition("-")
            low, high = (first, last) if dash else (first, first)
            if not (low.isdecimal() and high.isdecimal() and 100 <= int(low) <= int(high) <= 599):
                raise ValueError(
                    f'failure_statuses holds numbers from 100 to 599 and ranges "500-599", not {entry!r}'
                )
            found.update(range(int(low), int(high) + 1))
        return frozenset(found)
