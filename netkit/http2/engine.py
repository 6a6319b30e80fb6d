"""The engine as asyncio code sees it: `send()`, on as many loops as there are.

Example::

    engine = Engine(Http2Options(max_connections=4))
    request = H2Request(key, ConnectSpec("example.org", 443, ssl=context), b"GET", b"example.org", b"/", [])
    exchange = await engine.send(request)
    print(exchange.status, await exchange.read())
    await engine.aclose()
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.exchange import Exchange
from netkit.http2.fields import request_fields
from netkit.http2.options import H2Request, Http1Only, Http2Options
from netkit.http2.protocol import machine_factory
from netkit.http2.reactor import EngineStats, Reactor, http1_remembered

__all__ = ["Engine"]

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """HTTP/2 connections to many origins, for every event loop that calls it.

    `on_event(name, details)`, if given, is called in the connection's loop for "connection_opened",
    "connection_closed", "goaway", "window_stall" and "ping"; details hold `key`, `connection` and what the event
    is about. It must not raise.
    """

    def __init__(
        self, options: Http2Options | None = None, *, on_event: Callable[[str, dict[str, Any]], None] | None = None
    ) -> None:
        self.options = options or Http2Options()
        self.on_event = on_event
        self.closed = False
        self._factory = machine_factory(self.options.machine)
        self._reactors: dict[asyncio.AbstractEventLoop, Reactor] = {}
        self._http1: dict[Hashable, float] = {}
        self._lock = threading.Lock()
        self._past = EngineStats()
        _engines.add(self)

    async def send(self, request: H2Request) -> Exchange | Http1Only:
        """Send one request; returns when the response head is here, or the server turns out to speak HTTP/1.1 only.

        Raises `TransportError` with kind and verdict (`QueueFull`, `PoolTimeout` where the pool is full). Cancelling
        the caller resets the stream at once.
        """
        loop = asyncio.get_running_loop()
        reactor = self._reactors.get(loop)
        if reactor is None:
            reactor = self.reactor(loop)
        if self._http1 and self.speaks_http1(request.key):
            return Http1Only(request.key)
        fields, length = request_fields(request)
        exchange = Exchange(request, fields, length, loop)
        pool = reactor.pools.get(request.key)
        if pool is None:
            pool = reactor.pool(request)
        pool.submit(exchange)
        if not exchange.ended:
            # As `exchange.wait()`, without the coroutine: this is the one wait that every request has.
            exchange.waiting = True
            try:
                while not exchange.status and not exchange.ended:
                    waiter = exchange.waiter = asyncio.Future(loop=loop)
                    await waiter
            except BaseException:
                # Nobody waits for it now, least of all in a loop that was closed under the caller.
                exchange.waiter = None
                exchange.leave()
                raise
            exchange.waiting = False
        if exchange.outcome is not None:
            return exchange.outcome
        if exchange.error is not None and not exchange.status:
            raise exchange.error
        return exchange

    def speaks_http1(self, key: Hashable) -> bool:
        """True while it is remembered that this key's server speaks HTTP/1.1 only."""
        return http1_remembered(self._http1, key)

    def reactor(self, loop: asyncio.AbstractEventLoop) -> Reactor:
        """This loop's share, made on first use; in the loop only."""
        with self._lock:
            if self.closed:
                raise TransportError("the engine is closed", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT)
            reactor = self._reactors.get(loop)
            if reactor is not None and not reactor.closed:
                return reactor
            self._sweep()
            reactor = Reactor(loop, self.options, self._factory, self._http1, self.on_event)
            self._reactors[loop] = reactor
        reactor.watch()
        return reactor

    def _sweep(self) -> None:
        """Forget loops that are closed; their sockets are dropped silently."""
        for loop, reactor in list(self._reactors.items()):
            if loop.is_closed() or reactor.closed:
                del self._reactors[loop]
                self._past = _add(self._past, reactor)
                if not reactor.closed:
                    reactor.abandon()

    def close(self) -> None:
        """Close everything, from any thread; returns without waiting for other loops. Idempotent."""
        with self._lock:
            self.closed = True
            reactors, self._reactors = dict(self._reactors), {}
            for reactor in reactors.values():
                self._past = _add(self._past, reactor)
        for loop, reactor in reactors.items():
            if loop.is_closed():
                if not reactor.closed:
                    reactor.abandon()
            elif _running() is loop or not loop.is_running():
                reactor.close()
            else:
                try:
                    loop.call_soon_threadsafe(reactor.close)
                except RuntimeError:
                    reactor.abandon()  # closed between the question and the call

    async def aclose(self) -> None:
        """Close everything; this loop's transports are down when it returns."""
        self.close()
        for _ in range(4):
            await asyncio.sleep(0)

    def stats(self) -> EngineStats:
        """A snapshot over all loops; safe from any thread."""
        total = self._past
        for reactor in list(self._reactors.values()):
            total = _add(total, reactor, live=True)
        return total

    def connections(self) -> list[Any]:
        """The live connections of all loops, for inspection."""
        return [connection for reactor in list(self._reactors.values()) for connection in reactor.connections()]

    def __del__(self) -> None:
        if getattr(self, "_reactors", None):
            self.close()

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<Engine {stats.connections} connections, {stats.streams} streams, {stats.queued} queued>"


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _add(total: EngineStats, reactor: Reactor, live: bool = False) -> EngineStats:
    counters = reactor.counters
    connections = reactor.connections() if live else []
    pools = list(reactor.pools.values()) if live else []
    return EngineStats(
        connections=total.connections + len(connections),
        idle=total.idle + sum(not connection.open for connection in connections),
        streams=total.streams + sum(connection.open for connection in connections),
        queued=total.queued + sum(len(pool.waiting) for pool in pools),
        dialing=total.dialing + sum(pool.dialing for pool in pools),
        opened_total=total.opened_total + counters.opened_total,
        discarded_stale=total.discarded_stale + counters.discarded_stale,
        window_stalls=total.window_stalls + counters.window_stalls,
        resets_sent=total.resets_sent + counters.resets_sent,
        resets_received=total.resets_received + counters.resets_received,
        resends=total.resends + counters.resends,
        goaways=total.goaways + counters.goaways,
        timeouts=total.timeouts + counters.timeouts,
        unread=total.unread + (reactor.budget.unread if live else 0),
        ping_rtt=counters.ping_rtt or total.ping_rtt,
    )


def _after_fork() -> None:
    for engine in list(_engines):
        engine._lock = threading.Lock()
        reactors, engine._reactors = engine._reactors, {}
        for reactor in reactors.values():
            reactor.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
