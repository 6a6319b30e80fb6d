"""The engine as threads see it, behind the process's one background loop.

Example::

    engine = SyncEngine()
    exchange = engine.send(H2Request(key, connect, b"POST", b"host", b"/embed", headers, body))
    print(exchange.status, exchange.read())
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.engine import Engine
from netkit.http2.exchange import Stream
from netkit.http2.fields import request_fields
from netkit.http2.options import H2Request, Http1Only, Http2Options
from netkit.http2.pool import Pool
from netkit.http2.portal import portal
from netkit.http2.reactor import EngineStats, Reactor
from netkit.http2.sync_exchange import SyncExchange

__all__ = ["SyncEngine"]


def _streams(pool: Pool) -> list[Stream]:
    return [stream for connection in (*pool.connections, *pool.retired) for stream in connection.streams.values()]


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon(loop.call_soon, call)


class SyncEngine:
    """The engine for threads. All instances share the process's one background loop; each has its own pools.

    `finish_open` is for stacks whose sessions may be closed while answers are being read: `close()` then lets every
    exchange that is under way come to its end, and closes the connections after the last one.
    """

    def __init__(
        self,
        options: Http2Options | None = None,
        *,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        finish_open: bool = False,
    ) -> None:
        self._engine = Engine(options, on_event=on_event)
        self.options = self._engine.options
        self._finish_open = finish_open
        self._finishing = False
        self._left = 0

    def send(self, request: H2Request) -> SyncExchange | Http1Only:
        """Send one request; returns when the response head is here. As `Engine.send`, for threads."""
        engine = self._engine
        if engine._http1 and engine.speaks_http1(request.key):
            return Http1Only(request.key)
        if engine.closed:
            raise TransportError("the engine is closed", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT)
        fields, length = request_fields(request)
        gate = portal()
        exchange = SyncExchange(request, fields, length, gate, self.options)
        streamed = not (request.body is None or isinstance(request.body, bytes))
        if streamed:
            exchange.prepare_body()
        gate.post(partial(self._submit, exchange))
        if streamed:
            exchange.upload()
        exchange.wait_head()
        if exchange.outcome is not None:
            return exchange.outcome
        if exchange.error is not None and not exchange.status:
            raise exchange.error
        exchange.waiting = False
        return exchange

    def _submit(self, exchange: SyncExchange) -> None:
        try:
            self._reactor().submit(exchange)
            if self._finishing:
                self._await(exchange)  # it was on its way when the engine was closed
        except TransportError as error:
            exchange.end(error)
        except Exception as error:  # noqa: BLE001 - a thread is waiting: whatever it was, it must be told
            exchange.end(TransportError(f"cannot send: {type(error).__name__}: {error}", native=error))

    def _reactor(self) -> Reactor:
        """The share of the background loop, which is the one that runs this."""
        engine = self._engine
        loop = asyncio.get_running_loop()
        reactor = engine._reactors.get(loop)
        if reactor is None:
            reactor = engine.reactor(loop)
            reactor.soon = portal().soon
        return reactor

    def adopt(self, request: H2Request, sock: ssl.SSLSocket) -> None:
        """Serve this request's key over a connected socket on which ALPN chose h2. The socket is the engine's now."""
        if self._engine.closed:
            sock.close()
            raise TransportError("the engine is closed", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT)
        portal().post(partial(self._adopt, request, sock))

    def _adopt(self, request: H2Request, sock: ssl.SSLSocket) -> None:
        try:
            self._reactor().adopt(request, sock)
        except TransportError:
            sock.close()

    def speaks_http1(self, key: Any) -> bool:
        """See `Engine.speaks_http1`."""
        return self._engine.speaks_http1(key)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._engine.stats()

    def connections(self) -> list[Any]:
        """See `Engine.connections`."""
        return self._engine.connections()

    def close(self, timeout: float | None = 1.0) -> None:
        """Close every connection and wait up to `timeout` seconds until they are; with `finish_open`, those with open
        exchanges close later and are not waited for. Idempotent."""
        if self._engine.closed or self._finishing:
            return
        gate = portal()
        if gate._loop is None or gate._loop not in self._engine._reactors:
            self._shut()
            return
        self._finishing = self._finish_open
        done = threading.Event()
        in_loop = threading.current_thread() is gate._thread
        if self._finish_open:
            step = partial(self._finish, done.set)
            step() if in_loop else gate.post(step)
        else:
            self._shut()
            if not in_loop:
                # Behind the close and the turns in which transports go down.
                gate.post(partial(_soon, gate.loop, done.set))
        if not in_loop:
            done.wait(timeout)

    def _shut(self) -> None:
        self._engine.close()

    def _finish(self, told: Callable[[], None]) -> None:
        """In the loop: wait for what is open, and tell the one who closed as soon as he need not wait any more."""
        loop = asyncio.get_running_loop()
        reactor = self._engine._reactors.get(loop)
        pools = [] if reactor is None else list(reactor.pools.values())
        self._left = 1  # this look itself, so that nothing ends before it is over
        for pool in pools:
            for stream in (*pool.waiting, *_streams(pool)):
                self._await(stream)
            for connection in tuple(pool.connections):
                if not connection.open:
                    connection.close()
        self._ended(None)
        # Behind the close and the turns in which transports go down.
        _soon(loop, partial(_soon, loop, told))

    def _await(self, stream: Stream) -> None:
        if not stream.ended:
            self._left += 1
            stream.on_end(self._ended)

    def _ended(self, error: BaseException | None) -> None:
        self._left -= 1
        if not self._left:
            # Not at once: the connection is in the middle of what ended its last stream.
            asyncio.get_running_loop().call_soon(self._shut_if_left)

    def _shut_if_left(self) -> None:
        if not self._left:
            self._shut()

    def __repr__(self) -> str:
        return f"<Sync{repr(self._engine)[1:]}"
