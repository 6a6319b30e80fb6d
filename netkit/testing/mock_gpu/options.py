"""What a mock GPU server can be told at construction; checked once, here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Options"]

_CHOICES = {
    "http": ("auto", "1.1", "2"),
    "engine": ("auto", "ngh2", "h2"),
    "loop": ("auto", "asyncio", "uvloop"),
    "client_certificate": ("no", "optional", "required"),
    "data_order": ("index", "reversed", "shuffled"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of MockGPU. Times named `_ms` are milliseconds, the others seconds."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 means any free port."""
    http: Literal["auto", "1.1", "2"] = "auto"
    """"auto": ALPN offers h2 and http/1.1; without TLS the HTTP/2 preface is recognised. Else only that protocol."""
    tls: bool = True
    hostnames: tuple[str, ...] = ()
    """More names in the certificate, beside 127.0.0.1, localhost, ::1 and `host`."""
    client_certificate: Literal["no", "optional", "required"] = "no"
    engine: Literal["auto", "ngh2", "h2"] = "auto"
    """The HTTP/2 library; "auto" takes ngh2 where it is installed."""
    loop: Literal["auto", "asyncio", "uvloop"] = "auto"
    """"auto" takes uvloop where it is installed."""

    gpus: int = 1
    launch_ms: float = 5.0
    per_item_ms: float = 0.2
    max_batch: int = 32
    batch_limit_status: int = 422
    """Status for more than `max_batch` items: 422 as TEI, 413 as others; the message names the limit."""
    max_streams: int | None = None
    """Token streams at once per GPU; None means no limit. More wait in the queue."""
    queue_size: int | None = 4096
    """Batches and streams that may wait; beyond it `overload_status` with Retry-After. None means no limit."""
    overload_status: int = 429
    dimensions: int = 8
    token_ms: float = 10.0
    """Time from one event of a token stream to the next."""
    models: tuple[str, ...] = ("mock-embed", "mock-chat")
    data_order: Literal["index", "reversed", "shuffled"] = "index"
    """Order of `data` in embedding answers; `index` is always right."""
    poison: str | None = None
    """Any input that contains this text makes the whole call 422."""
    api_keys: tuple[str, ...] = ()
    """Bearer tokens accepted under /v1; empty means no check."""

    rtt_ms: float = 0.0
    """Artificial round-trip time, half of it each way; a new connection pays one more."""
    bandwidth: float | None = None
    """Bytes per second, per connection and direction; None means no limit."""
    backlog: int = 4096

    keep_alive_timeout: float | None = None
    """Seconds after which an idle connection is closed by the server; None means never."""
    announce_keep_alive: bool = False
    """Send `Keep-Alive: timeout=N` on HTTP/1.1 when `keep_alive_timeout` is set."""
    max_requests_per_connection: int | None = None
    """HTTP/1.1: `Connection: close` on the n-th answer; HTTP/2: a graceful GOAWAY after the n-th request."""
    max_body: int = 256 * 1024 * 1024
    """Bytes; a larger request body is answered 413 (the message names the limit)."""
    settings: Mapping[int, int] = field(default_factory=dict)
    """HTTP/2 SETTINGS by number (3 is MAX_CONCURRENT_STREAMS), on top of the defaults."""
    connection_window: int = 16 * 1024 * 1024
    """HTTP/2: bytes that a client may send on one connection before it gets credit back."""
    keep_body: int = 256 * 1024
    """Request bodies up to so many bytes are kept in the log; of larger ones only hash and size."""
    log_size: int = 100_000
    """Records kept of each kind; older ones are dropped."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name in ("gpus", "max_batch", "dimensions", "backlog", "log_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        for name in ("launch_ms", "per_item_ms", "token_ms", "rtt_ms", "keep_body", "max_body"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)!r}")
        for name in ("max_streams", "max_requests_per_connection", "bandwidth"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive or None, not {value!r}")
