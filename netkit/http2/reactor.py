"""What one event loop holds for an engine: its pools, its timers, its read buffer.

Rules of this file:

- Everything here belongs to one loop. `abandon()` and `disown()` are for loops that no longer run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import Any, Final

import msgspec

from netkit.http2.budget import Budget
from netkit.http2.connection import Connection
from netkit.http2.exchange import Stream
from netkit.http2.options import H2Request, Http1Only, Http2Options
from netkit.http2.pool import Pool
from netkit.http2.protocol import MachineFactory
from netkit.http2.timers import Wheel

__all__ = ["Counters", "EngineStats", "Reactor", "http1_remembered"]

_READ_SIZE: Final = 256 << 10
MAX_KEYS: Final = 4096
"""Keys that are remembered without being in use: a crawler's origins, or TLS settings that are made for each call."""
_inherited: list[Any] = []
"""Objects of a parent process's loops: touching them, even by collecting them, would reach into the parent."""


def http1_remembered(memory: dict[Hashable, float], key: Hashable) -> bool:
    """Whether `key` is in `memory` and has not expired; forgets it if it has."""
    until = memory.get(key)
    if until is None:
        return False
    if time.monotonic() < until:
        return True
    memory.pop(key, None)
    return False


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot of an engine. `connections`, `idle`, `streams`, `queued`, `dialing` are now; the rest never falls,
    save `ping_rtt`, the last PING's round trip in seconds (0.0 before the first)."""

    connections: int = 0
    idle: int = 0
    streams: int = 0
    queued: int = 0
    dialing: int = 0
    opened_total: int = 0
    discarded_stale: int = 0
    window_stalls: int = 0
    resets_sent: int = 0
    resets_received: int = 0
    resends: int = 0
    goaways: int = 0
    timeouts: int = 0
    unread: int = 0
    ping_rtt: float = 0.0

    @property
    def resets(self) -> int:
        """Streams reset by either side."""
        return self.resets_sent + self.resets_received


class Counters:
    """The running totals of one loop."""

    def __init__(self) -> None:
        self.opened_total = self.discarded_stale = self.window_stalls = 0
        self.resets_sent = self.resets_received = self.resends = 0
        self.goaways = self.timeouts = 0
        self.ping_rtt = 0.0


class Reactor:
    """One loop's share of an engine."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Http2Options,
        factory: MachineFactory,
        http1: dict[Hashable, float],
        on_event: Callable[[str, dict[str, Any]], None] | None,
    ) -> None:
        self.loop = loop
        self.options = options
        self.factory = factory
        self.on_event = on_event
        self.wheel = Wheel(loop)
        self.buffer = memoryview(bytearray(_READ_SIZE))
        self.budget = Budget(options.buffer_budget, self.wheel)
        self.counters = Counters()
        self.pools: dict[Hashable, Pool] = {}
        self.closed = False
        self.soon: Callable[[Callable[[], None]], object] = loop.call_soon
        """Runs what writes: at the end of a turn, or behind a batch of hand-overs."""
        self._sweep_at = MAX_KEYS
        self._http1 = http1
        self._dirty: list[Connection] = []
        self._flushing = False
        self._sentinel: AsyncGenerator[None, None] | None = None

    def watch(self) -> None:
        """Close with the loop: `asyncio.run` finishes asynchronous generators before it closes its loop."""
        self._sentinel = self._until_shutdown()
        with contextlib.suppress(StopIteration):
            self._sentinel.asend(None).send(None)

    async def _until_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.aclose()

    def submit(self, stream: Stream) -> None:
        """Start or queue a request."""
        request = stream.request
        if self._http1 and self.speaks_http1(request.key):
            # Learned while this request was on its way here.
            stream.outcome = Http1Only(request.key)
            stream.end(None)
            return
        (self.pools.get(request.key) or self.pool(request)).submit(stream)

    def adopt(self, request: H2Request, sock: Any) -> None:
        """A connection for this request's key that was opened elsewhere."""
        self.pool(request).dialer.adopt(sock)

    def pool(self, request: H2Request) -> Pool:
        """The pool for this request's key, made on first use."""
        pool = self.pools.get(request.key)
        if pool is None:
            if len(self.pools) >= self._sweep_at:
                self.pools = {key: known for key, known in self.pools.items() if known.in_use}
                self._sweep_at = max(MAX_KEYS, 2 * len(self.pools))
            pool = self.pools[request.key] = Pool(self, request.key, request.connect)
        return pool

    def dirty(self, connection: Connection) -> None:
        """This connection has something to write: once, at the end of this turn of the loop."""
        self._dirty.append(connection)
        if not self._flushing:
            self._flushing = True
            self.soon(self.flush)

    def flush(self) -> None:
        """Write what has been queued."""
        self._flushing = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()

    def remember_http1(self, key: Hashable) -> None:
        """This key speaks HTTP/1.1 only; ask again after `fallback_ttl`."""
        memory = self._http1
        memory.pop(key, None)
        if len(memory) >= MAX_KEYS:
            # Loops in other threads may be doing the same.
            for oldest in list(memory)[: MAX_KEYS // 4]:
                memory.pop(oldest, None)
        memory[key] = time.monotonic() + self.options.fallback_ttl

    def speaks_http1(self, key: Hashable) -> bool:
        """True while it is remembered that this key's server speaks HTTP/1.1 only."""
        return http1_remembered(self._http1, key)

    def connections(self) -> list[Connection]:
        """All of them, draining ones too."""
        return [connection for pool in list(self.pools.values()) for connection in (*pool.connections, *pool.retired)]

    def close(self) -> None:
        """Close every connection; in the loop only."""
        if not self.closed:
            self.closed = True
            for pool in self.pools.values():
                pool.close()
            self.wheel.clear()
            self.budget.close()

    async def aclose(self) -> None:
        """Close, and let the loop take the transports down."""
        self.close()
        for _ in range(4):
            await asyncio.sleep(0)

    def abandon(self) -> None:
        """The loop is closed: let the sockets go without a word, and without a warning."""
        self.closed = True
        for connection in self.connections():
            connection.closed = True
            _silence(connection.transport)
        self.pools.clear()
        self.budget.close()

    def disown(self) -> None:
        """In a forked child: give our copies of the sockets back, and never touch the parent's loop again."""
        self.closed = True
        _inherited.append(self)
        for connection in self.connections():
            connection.closed = True
            _inherited.append(connection.transport)
            raw = _raw_socket(connection.transport)
            if raw is not None:
                raw.close()
        self.budget.close()

    def __repr__(self) -> str:
        return f"<Reactor {len(self.pools)} pools, {len(self.connections())} connections>"


def _raw_transport(transport: Any) -> Any:
    protocol = getattr(transport, "_ssl_protocol", None)
    return transport if protocol is None else getattr(protocol, "_transport", None)


def _raw_socket(transport: Any) -> Any:
    """asyncio's own socket object, whose close() neither shuts down nor unregisters; None where there is none."""
    return getattr(_raw_transport(transport), "_sock", None)


def _silence(transport: Any) -> None:
    """Close a transport whose loop is closed. asyncio offers no way: its close() would call the loop."""
    if transport is None:
        return
    raw = _raw_transport(transport)
    if hasattr(transport, "_ssl_protocol"):
        transport._closed = True
    sock = getattr(raw, "_sock", None)
    if sock is not None:
        raw._sock = None
        sock.close()
    elif raw is not None and not hasattr(raw, "_sock"):
        with contextlib.suppress(Exception):
            raw.abort()
