"""The options of `[tool.netkit.retry]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from netkit.pure import PURE_PATHS

__all__ = ["RetryOptions"]


@dataclasses.dataclass(frozen=True)
class RetryOptions:
    """How often, when and what to send again. Times in seconds.

    attempts: sends in all, the first included; 1 means no retry.
    statuses: answers that are retried; () means none. 500 is added on pure routes as long as any is listed.
    backoff_initial, backoff_max: the n-th retry waits backoff_initial * 2**(n-1), at most backoff_max, before jitter.
    jitter: "full" draws from 0 to that, "equal" from half of it, "none" takes it as it is.
    respect_retry_after: let Retry-After and retry-after-ms replace the backoff.
    retry_after_max: a server that asks for more gets no retry: the caller has its answer at once.
    pure: path patterns (`*`, `?`, `[...]`, without the query) of calls that may run twice whatever their method.
    idempotency_key: send one Idempotency-Key with each call of a method that is not idempotent (POST, PATCH), the
        same on every attempt; a caller's own is kept.
    budget_ratio: retries per first attempt that are allowed to one origin, over the last 10 s, in the whole process.
    budget_min_per_second: retries per second that are allowed on top, however few calls there are.
    other_endpoint: list the endpoints that failed in `request.extensions["avoid_endpoints"]`, so that a balancer
        below picks another one.
    """

    attempts: int = 3
    statuses: tuple[int, ...] = (408, 429, 502, 503, 504)
    backoff_initial: float = 0.5
    backoff_max: float = 8.0
    jitter: Literal["full", "equal", "none"] = "full"
    respect_retry_after: bool = True
    retry_after_max: float = 60.0
    pure: tuple[str, ...] = PURE_PATHS
    idempotency_key: bool = False
    budget_ratio: float = 0.2
    budget_min_per_second: float = 10.0
    other_endpoint: bool = True

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be ≥ 1, got {self.attempts}")
        for status in self.statuses:
            if not 400 <= status <= 599:
                raise ValueError(f"statuses must be from 400 to 599, got {status}")
        for name in ("backoff_initial", "backoff_max", "retry_after_max", "budget_ratio", "budget_min_per_second"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be ≥ 0, got {value:g}")
        if self.jitter not in ("full", "equal", "none"):
            raise ValueError(f'jitter must be "full", "equal" or "none", got {self.jitter!r}')
