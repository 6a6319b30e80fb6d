"""HTTP/2 where the server offers it: many requests on a few tuned connections, for every stack.

Why this and not the stacks' own: requests and aiohttp have none; httpx keeps one connection per origin, tells the
server nothing when a caller leaves, and loses a whole connection to one timeout. The engine in `netkit.http2`
serves all of them.

Example::

    [tool.netkit.http2]
    max_connections = 4
    max_streams = 64

Order: a transport, innermost, in front of `pool`. What a server does not speak by ALPN goes on to the pool and the
stack's own HTTP/1.1, and is remembered for ten minutes: one negotiation per origin, not one per request.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from netkit import fork, hookimpl
from netkit.errors import ConfigError
from netkit.events import ConnectionClosed, ConnectionOpened, GoAwayReceived, PingAnswered, WindowStalled
from netkit.flow import Send
from netkit.http2 import Http2Options as EngineOptions
from netkit.http2.port import Http2Port, StackEngine
from netkit.messages import Request, Response
from netkit.plugins import Context
from netkit.pooling import shorter_lifetime

__all__ = ["Http2", "Http2Options", "Http2Stats", "engine_options", "factory"]


@dataclasses.dataclass(frozen=True)
class Http2Options:
    """When HTTP/2 is spoken, and how. Sizes in bytes, times in seconds.

    enabled: "auto" negotiates by ALPN over TLS; "prior-knowledge" also speaks it without TLS, and expects nothing
        else from the server; false leaves every request to the stack's own transport.
    max_connections: connections to one origin (and TLS settings, and proxy).
    max_streams: requests at once on one connection; never more than the server allows.
    stream_window, connection_window: what the server may send ahead of the reader, per request and per connection.
    max_frame_size: the largest frame accepted.
    ping_interval: a connection with open requests that was silent for so long is asked for a sign of life.
    ping_timeout: without one for so long it counts as dead; every request on it is told at once.
    upload_lane: large request bodies prefer a connection of their own.
    upload_lane_size: what is large.
    buffer_budget: received bytes, not yet read by callers, that this process holds before it slows all senders down.
    distribution: "pack" fills the oldest connection first, "spread" takes the one with the fewest requests.
    machine: "ngh2" or "h2"; "auto" takes the fastest that is installed.
    """

    enabled: Literal["auto", "prior-knowledge"] | bool = "auto"
    max_connections: int = 16
    max_streams: int = 100
    stream_window: int = 8 << 20
    connection_window: int = 32 << 20
    max_frame_size: int = 64 << 10
    ping_interval: float = 15.0
    ping_timeout: float = 15.0
    upload_lane: bool = True
    upload_lane_size: int = 256 << 10
    buffer_budget: int = 256 << 20
    distribution: Literal["pack", "spread"] = "pack"
    machine: Literal["auto", "ngh2", "h2"] = "auto"

    def __post_init__(self) -> None:
        for name in ("max_connections", "max_streams", "upload_lane_size", "buffer_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("stream_window", "connection_window"):
            # RFC 9113 section 6.9.1; below 65535 the protocol's initial window would have to be taken back.
            if not 65535 <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} must be from 65535 to 2147483647, got {getattr(self, name)}")
        if not 16384 <= self.max_frame_size < 2**24:
            raise ValueError(f"max_frame_size must be from 16384 to 16777215, got {self.max_frame_size}")
        for name in ("ping_interval", "ping_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


class Http2Stats(msgspec.Struct, frozen=True):
    """The `http2` section of `netkit.stats()`: connections, streams and queued requests now; the rest never falls.
    `ping_rtt` is the last PING's round trip in seconds, 0.0 before the first."""

    connections: int = 0
    streams: int = 0
    queued: int = 0
    opened_total: int = 0
    discarded_stale: int = 0
    window_stalls: int = 0
    resets: int = 0
    resends: int = 0
    goaways: int = 0
    timeouts: int = 0
    ping_rtt: float = 0.0


class Http2:
    """The transport: serves what its port admits and the server speaks, hands on the rest."""

    def __init__(self, options: Http2Options, context: Context, port: Http2Port) -> None:
        self._emit = context.emit
        self._meter = context.meter
        self._now = context.runtime.now
        self._port = port
        self._prior_knowledge = options.enabled == "prior-knowledge"
        self._options = engine_options(options, context.settings("pool"), context.settings("balance"))
        self._engine: StackEngine | None = None
        self._lock = threading.Lock()
        self._past = Http2Stats()
        fork.register(self)

    def describe(self) -> dict[str, str]:
        """See `netkit config`."""
        missing = self._port.missing
        return {} if missing is None else {"enabled": missing}

    def engine(self) -> StackEngine:
        """The engine in use; a session that is used again after its close gets a new one."""
        engine = self._engine
        if engine is None:
            with self._lock:
                engine = self._engine
                if engine is None:
                    engine = self._engine = self._port.engine(self._options, _weakly(self._on_event))
        return engine

    async def __call__(self, request: Request, send: Send) -> Response:
        target = self._port.target(request, prior_knowledge=self._prior_knowledge)
        if target is None:
            return await send(request)
        target.call = getattr(request.native, "call", None)
        response = await self._port.exchange(self.engine(), request, target)
        return await send(request) if response is None else response

    def _on_event(self, name: str, details: Mapping[str, Any]) -> None:
        if name == "resent":
            # The server saw it once more, and nobody above did.
            self._meter.attempt(details["call"])
        elif name == "connection_opened":
            self._meter.http2_opened.add()
        if not self._emit:
            return
        connection = str(details.get("connection", ""))
        if name == "connection_opened":
            self._emit(ConnectionOpened(time=self._now(), connection=connection, http_version="HTTP/2"))
        elif name == "connection_closed":
            self._emit(
                ConnectionClosed(time=self._now(), connection=connection, reason=str(details.get("reason", "")))
            )
        elif name == "window_stall":
            self._emit(WindowStalled(time=self._now(), connection=connection))
        elif name == "goaway":
            self._emit(
                GoAwayReceived(
                    time=self._now(),
                    connection=connection,
                    last_stream_id=details["last_stream_id"],
                    code=details["code"],
                    reason=details["reason"],
                )
            )
        elif name == "ping":
            self._emit(PingAnswered(time=self._now(), connection=connection, seconds=details["rtt"]))

    def stats(self) -> Http2Stats:
        engine, past = self._engine, self._past
        if engine is None:
            return past
        now = engine.stats()
        return Http2Stats(
            connections=now.connections,
            streams=now.streams,
            queued=now.queued,
            opened_total=past.opened_total + now.opened_total,
            discarded_stale=past.discarded_stale + now.discarded_stale,
            window_stalls=past.window_stalls + now.window_stalls,
            resets=past.resets + now.resets,
            resends=past.resends + now.resends,
            goaways=past.goaways + now.goaways,
            timeouts=past.timeouts + now.timeouts,
            ping_rtt=now.ping_rtt or past.ping_rtt,
        )

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            engine, past = self._engine, self.stats()
            self._past = msgspec.structs.replace(past, connections=0, streams=0, queued=0)
            self._engine = None
        if engine is not None:
            engine.close()


def engine_options(options: Http2Options, pool: Any, balance: Any = None) -> EngineOptions:
    """The engine's options: this plugin's, and what it shares with `pool` and `balance` where those are on."""
    # Without the pool plugin nobody is turned away and nothing is cut short that the caller did not limit.
    shared: dict[str, Any] = {"connect_timeout": None, "acquire_timeout": None, "max_queue": sys.maxsize}
    if pool is None:
        shared["max_lifetime"] = shorter_lifetime(EngineOptions().max_lifetime, balance)
    if pool is not None:
        shared = {
            "connect_timeout": pool.connect_timeout,
            "acquire_timeout": pool.acquire_timeout,
            "max_queue": sys.maxsize if pool.max_queue is None else pool.max_queue,
            "max_lifetime": shorter_lifetime(pool.max_lifetime, balance),
            "max_requests": pool.max_requests,
            "tcp_keepalive": _keepalive(pool.tcp_keepalive),
        }
        if pool.idle_timeout != "learn":
            shared["idle_timeout"] = pool.idle_timeout
    own = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in ("enabled", "machine")
    }
    return EngineOptions(machine=None if options.machine == "auto" else options.machine, **own, **shared)


def _keepalive(option: tuple[int, int, int] | bool) -> tuple[int, int, int] | None:
    """The pool's option as the engine takes it: true is the engine's default."""
    if option is True:
        return EngineOptions().tcp_keepalive
    return None if option is False else option


def _weakly(method: Callable[[str, Mapping[str, Any]], None]) -> Callable[[str, Mapping[str, Any]], None]:
    """A listener that does not keep its layer, and with it the whole session, alive in the engine's loop."""
    known = weakref.WeakMethod(method)

    def tell(name: str, details: Mapping[str, Any]) -> None:
        listener = known()
        if listener is not None:
            listener(name, details)

    return tell


async def _pass(request: Request, send: Send) -> Response:
    return await send(request)


def factory(options: Http2Options, context: Context) -> Any:
    """A transport for one session; without an HTTP/2 port, or switched off, it hands everything on."""
    if options.enabled is False or context.http2 is None:
        return _pass
    if context.http2.missing is not None and options.enabled == "prior-knowledge":
        raise ConfigError(f'http2.enabled = "prior-knowledge": {context.http2.missing}')
    return Http2(options, context, context.http2)


@hookimpl
def netkit_register(register: Any) -> None:
    register(
        "http2",
        factory,
        options=Http2Options,
        kind="transport",
        implicit=Http2Options(),
        summary="HTTP/2 over several tuned connections where the server offers it; HTTP/1.1 elsewhere.",
    )
