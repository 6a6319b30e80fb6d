"""What was found out about a server, as values; None wherever something was not found out or is not there."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from netkit.cli.doctor.batching import Batching
from netkit.cli.doctor.reply import Reply, Upload

__all__ = ["Diagnosis", "Http1Facts", "Http2Facts", "notable"]

_LIMITS = ("ratelimit", "x-ratelimit", "x-rate-limit")
_NAMES = ("x-request-id", "request-id", "x-correlation-id", "x-amzn-requestid")


@dataclass
class Http2Facts:
    """The server's SETTINGS and windows (bytes), the round trip of a PING (seconds). `max_streams` and
    `max_header_list` None: no limit."""

    max_streams: int | None
    stream_window: int
    connection_window: int
    max_frame: int
    max_header_list: int | None
    ping: float | None = None


@dataclass
class Http1Facts:
    """`keep_alive`: a second request went over the same connection. `timeout` (seconds) and `max_requests` as its
    Keep-Alive header says."""

    version: str
    keep_alive: bool
    timeout: float | None = None
    max_requests: int | None = None


@dataclass
class Diagnosis:
    """Times in seconds. `idle` by protocol: after how long the server closed an idle connection and how, None where
    it did not within `idle_bound`. `problem` is why nothing more could be found out."""

    url: str
    match: str
    address: str = ""
    tcp: float | None = None
    tls: float | None = None
    tls_version: str | None = None
    alpn: str | None = None
    verified: bool = True
    http2: Http2Facts | None = None
    prior_knowledge: bool = False
    http1: Http1Facts | None = None
    status: int | None = None
    answered: float | None = None
    server: str | None = None
    location: str | None = None
    request_id: str | None = None
    retry_after: str | None = None
    limits: dict[str, str] = field(default_factory=dict)
    batching: Batching | None = None
    upload: Upload | None = None
    idle: dict[str, tuple[float, str] | None] = field(default_factory=dict)
    idle_bound: float = 0.0
    skipped: list[str] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def notable(diagnosis: Diagnosis, reply: Reply, quote: Any) -> None:
    """Take over what an answer's headers say about limits and waits, and how it names its requests."""
    for name, value in reply.headers:
        if name.startswith(_LIMITS) and len(diagnosis.limits) < 20:
            diagnosis.limits[quote(name)] = quote(value)
        elif name in ("retry-after", "retry-after-ms") and diagnosis.retry_after is None:
            diagnosis.retry_after = f"{quote(value)}{' ms' if name.endswith('ms') else ''}"
        elif name in _NAMES and diagnosis.request_id is None:
            diagnosis.request_id = name
