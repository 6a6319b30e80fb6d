"""The options of `[tool.netkit.pool]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

__all__ = ["PoolOptions"]


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """How many connections, how long they live, how long a caller waits for one. Times in seconds.

    max_connections: exchanges under way to one origin (scheme, host, port), and so connections in use; None is what
        the stack itself allows: 100 for httpx and aiohttp, no limit for requests.
    max_connections_total: the same over all origins of the session; None is no limit.
    max_idle: idle connections kept to one origin; None is as many as max_connections.
    idle_timeout: an idle connection is not used again after this long. "learn" starts at 4 s and follows the server.
    max_lifetime: a connection is not used again after this long, give or take 10 %, so that a new replica gets its
        share; None is for ever.
    max_requests: requests on one connection; None is no limit.
    connect_timeout: where the caller gave none; None leaves the stack its own.
    acquire_timeout: how long to wait for a connection where the caller gave no pool timeout; None is without limit, 0
        not at all.
    max_queue: callers that may wait for one origin; the next one gets QueueFull at once. 0: nobody waits; None: no
        limit.
    warm: connections to open ahead of the first request, on stacks that can.
    tcp_keepalive: idle seconds, seconds between probes, probes without answer before the connection counts as dead;
        TCP_USER_TIMEOUT follows from them. false leaves the system's.
    """

    max_connections: int | None = 100
    max_connections_total: int | None = None
    max_idle: int | None = None
    idle_timeout: float | Literal["learn"] = "learn"
    max_lifetime: float | None = 3600.0
    max_requests: int | None = None
    connect_timeout: float | None = 3.0
    acquire_timeout: float | None = 1.0
    max_queue: int | None = 1000
    warm: int = 0
    tcp_keepalive: tuple[int, int, int] | bool = (60, 15, 4)

    def __post_init__(self) -> None:
        for name, least in (
            ("max_connections", 1),
            ("max_connections_total", 1),
            ("max_idle", 0),
            ("max_requests", 1),
            ("max_queue", 0),
            ("warm", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be ≥ {least}, got {value}")
        for name in ("max_lifetime", "connect_timeout"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be > 0, got {value:g}")
        wait = self.acquire_timeout
        if wait is not None and not (wait >= 0 and math.isfinite(wait)):
            raise ValueError(f"acquire_timeout must be ≥ 0, got {wait:g}")
        if isinstance(self.idle_timeout, str):
            if self.idle_timeout != "learn":
                raise ValueError(f'idle_timeout must be "learn" or seconds, got {self.idle_timeout!r}')
        elif not (self.idle_timeout >= 0 and math.isfinite(self.idle_timeout)):
            raise ValueError(f"idle_timeout must be ≥ 0, got {self.idle_timeout:g}")
        if not isinstance(self.tcp_keepalive, bool) and (len(self.tcp_keepalive) != 3 or min(self.tcp_keepalive) < 1):
            raise ValueError(f"tcp_keepalive must be three numbers ≥ 1, got {self.tcp_keepalive!r}")
