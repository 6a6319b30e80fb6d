"""The options of `[tool.netkit.limit]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from netkit.shared import is_redis_url

__all__ = ["LimitOptions"]


@dataclasses.dataclass(frozen=True)
class LimitOptions:
    """How much one server is asked at most. Every limit holds for one origin, credential and model; rates for all
    sessions of the process together, the queue and `concurrency` for one session.

    requests_per_second: attempts sent per second, over time; None is no limit of one's own.
    tokens_per_minute: tokens of input and output per minute, over time; None is no limit of one's own.
    burst: attempts that may go at once after a quiet time; None is what a second allows, at least 1. A quiet minute's
        tokens may go at once.
    concurrency: attempts under way at once, each until its answer's body has ended; "adaptive" finds the number by
        itself; None is no limit.
    max_queue: calls of one session that may wait; the next one gets QueueFull at once. 0: nobody waits; None: no
        limit.
    acquire_timeout: seconds for which a call waits for its turn, then PoolTimeout; None is the caller's own pool
        timeout, and without limit where it gave none. The shorter of both counts. Retries wait without this limit.
    priority: a request header whose value says who goes first: an integer or `u=N` as in RFC 9218, the smaller the
        earlier, 3 where it is absent or unreadable. The header is sent on. None: all are alike.
    storage: "memory", or a redis:// (rediss://, unix://) URL through which processes share rates and pauses: each
        attempt then asks Redis first. All of them must name it alike.
    """

    requests_per_second: float | None = None
    tokens_per_minute: float | None = None
    burst: int | None = None
    concurrency: int | Literal["adaptive"] | None = None
    max_queue: int | None = 1000
    acquire_timeout: float | None = None
    priority: str | None = "priority"
    # Not shown: the URL may hold a password.
    storage: str = dataclasses.field(default="memory", repr=False)

    def __post_init__(self) -> None:
        for name in ("requests_per_second", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be > 0, got {value:g}")
        for name, least in (("burst", 1), ("max_queue", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be ≥ {least}, got {value}")
        if isinstance(self.concurrency, str):
            if self.concurrency != "adaptive":
                raise ValueError(f'concurrency must be a number or "adaptive", got {self.concurrency!r}')
        elif self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be ≥ 1, got {self.concurrency}")
        wait = self.acquire_timeout
        if wait is not None and not (wait >= 0 and math.isfinite(wait)):
            raise ValueError(f"acquire_timeout must be ≥ 0, got {wait:g}")
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError("burst needs requests_per_second")
        if self.storage != "memory" and not is_redis_url(self.storage):
            raise ValueError('storage must be "memory" or a redis:// URL')
