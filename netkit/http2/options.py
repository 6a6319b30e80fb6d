"""What the engine is told: its options, where to connect, and one request."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from netkit.http2.protocol import Header

__all__ = ["Body", "ConnectSpec", "H2Request", "Http1Only", "Http2Options", "ProxySpec"]

Body: TypeAlias = "bytes | Iterable[bytes] | AsyncIterable[bytes] | None"


class Http2Options(msgspec.Struct, frozen=True):
    """Options of one engine. Sizes in bytes, times in seconds; None means no limit.

    The defaults are those of SEMANTICS `http2` and `pool`.
    """

    max_connections: int = 16
    """Connections per key."""
    max_streams: int = 100
    """Streams per connection; never above what the server allows."""
    stream_window: int = 8 << 20
    connection_window: int = 32 << 20
    max_frame_size: int = 64 << 10
    ping_interval: float | None = 15.0
    ping_timeout: float = 15.0
    upload_lane: bool = True
    """Bodies above `upload_lane_size` prefer a connection without open streams, or a new one."""
    upload_lane_size: int = 256 << 10
    buffer_budget: int = 256 << 20
    """Received, unread bytes in this process beyond which connection windows are held too."""
    distribution: Literal["pack", "spread"] = "pack"
    connect_timeout: float | None = 3.0
    """DNS, TCP, proxy and TLS together, where the request has no limit of its own; then once more for SETTINGS."""
    acquire_timeout: float | None = 1.0
    max_queue: int = 1000
    """Callers that may wait per key; one more gets `QueueFull` at once."""
    max_lifetime: float | None = 3600.0
    """Jittered by up to a tenth, so that connections do not all end together."""
    idle_timeout: float | None = 60.0
    max_requests: int | None = None
    fallback_ttl: float = 600.0
    """How long a key that spoke HTTP/1.1 is remembered."""
    max_header_list: int = 64 << 10
    tcp_keepalive: tuple[int, int, int] | None = (60, 15, 4)
    """Seconds idle, seconds between probes, probes; None: off."""
    machine: str | None = None
    """"ngh2" or "h2"; None: the fastest that is installed."""


class ProxySpec(msgspec.Struct, frozen=True):
    """An HTTP CONNECT proxy. `ssl` is set for an https:// proxy; `authorization` is the Proxy-Authorization value."""

    host: str
    port: int
    ssl: ssl.SSLContext | None = None
    authorization: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<ProxySpec {self.host}:{self.port}>"


class ConnectSpec(msgspec.Struct, frozen=True):
    """Where and how to connect.

    `ssl` must offer "h2" by ALPN (and "http/1.1", unless the server is known); None means HTTP/2 with prior
    knowledge over plain TCP. `server_hostname` None: `host`. `socket_options` are (level, name, value) triples.
    """

    host: str
    port: int
    ssl: ssl.SSLContext | None = None
    server_hostname: str | None = None
    local_address: tuple[str, int] | None = None
    unix_path: str | None = None
    proxy: ProxySpec | None = None
    socket_options: tuple[tuple[int, int, int], ...] = ()
    happy_eyeballs_delay: float | None = 0.25


class H2Request(msgspec.Struct, eq=False):
    """One request as the engine takes it; the same object may not be sent twice at once.

    `key` names the pool: origin, TLS settings, proxy, server_hostname, whatever must not be shared. `headers` are
    pairs of bytes in any case; hop-by-hop ones are dropped, `host` becomes `:authority`. A body that is neither
    bytes nor None needs `reopen()` to be resent: it is called for a fresh iterable each time but the first.
    `body_size` is what is known of such a body's length. `read_timeout` is the longest silence while the caller
    waits for bytes, `write_timeout` the longest stall of an upload, `pool_timeout` the wait for a free stream;
    None: no limit (`pool_timeout` and `connect_timeout`: the engine's own, math.inf: no limit).
    """

    key: Hashable
    connect: ConnectSpec
    method: bytes
    authority: bytes
    path: bytes
    headers: Sequence[Header]
    body: Any = None
    """bytes, an iterable or asynchronous iterable of bytes, or None; see `Body`."""
    scheme: bytes = b"https"
    body_size: int | None = None
    reopen: Callable[[], Any] | None = None
    replayable: bool = True
    connect_timeout: float | None = None
    read_timeout: float | None = None
    write_timeout: float | None = None
    pool_timeout: float | None = None
    call: Any = None
    """Whatever the engine's listener wants to know a request by; the engine hands it back with "resent"."""

    @property
    def size(self) -> int | None:
        """The body's length in bytes; None when unknown."""
        body = self.body
        return 0 if body is None else len(body) if isinstance(body, bytes) else self.body_size

    def __repr__(self) -> str:
        path = self.path.partition(b"?")[0].decode("latin-1")
        return f"<H2Request {self.method.decode('latin-1')} {path}>"


class Http1Only:
    """The outcome "this server does not speak HTTP/2 here": nothing was sent, use the stack's own transport.

    Remembered per key for `fallback_ttl`. `reason` is "alpn" or "http_1_1_required".
    """

    __slots__ = ("key", "reason")

    def __init__(self, key: Hashable, reason: str = "alpn") -> None:
        self.key = key
        self.reason = reason

    def __repr__(self) -> str:
        return f"<Http1Only {self.reason}>"
