"""How a pool comes by its connections: dialled, or taken over from a stack; and what those who wait are told.

Rules of this file:

- A pool's `dialing` counts what is on its way: up to `connection_made`, from where on a connection tells its own end.
- A failure is told to everybody who waits, unless another connection may still serve them.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING

from netkit.http2.connection import Connection
from netkit.http2.dial import dial, dial_failure
from netkit.http2.exchange import Stream
from netkit.http2.options import Http1Only
from netkit.http2.takeover import take_over
from netkit.http2.transport import SocketTransport

if TYPE_CHECKING:
    from netkit.http2.pool import Pool

__all__ = ["Dialing"]


class Dialing:
    """One pool's."""

    __slots__ = ("_pool", "_tasks")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tasks: set[asyncio.Task[None]] = set()

    def dial(self) -> None:
        """Open one more, in the background."""
        pool = self._pool
        pool.dialing += 1
        # The first caller's context must not live on in a connection that others use.
        task = pool.loop.create_task(self._open(), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        pool = self._pool
        connection: Connection | None = None

        def factory() -> Connection:
            nonlocal connection
            connection = Connection(pool)
            return connection

        # The most patient of those who wait; the others have clocks of their own.
        limit = max(map(self._patience, pool.waiting), default=self._patience(None))
        try:
            async with asyncio.timeout(None if limit == math.inf else limit):
                await dial(pool.spec, factory, pool.options.tcp_keepalive)
        except asyncio.CancelledError:
            if connection is None or connection.transport is None or connection.http1:
                pool.dialing -= 1
            raise
        except Exception as error:  # noqa: BLE001 - every failure to connect is told to those who wait
            if connection is not None and connection.transport is not None and not connection.http1:
                connection.abort(error)  # it got as far as connection_made: from there on it tells its end itself
                return
            pool.dialing -= 1
            self._failed(error)
            return
        if connection is not None and connection.http1:
            pool.dialing -= 1
            connection.shut(None)
            self._all_http1("alpn")
        elif pool.closed and connection is not None:
            connection.close()

    def adopt(self, sock: ssl.SSLSocket) -> None:
        """Take over a TLS socket on which ALPN chose h2, as if it had been dialled here."""
        pool = self._pool
        if pool.closed:
            sock.close()
            return
        pool.dialing += 1
        SocketTransport(pool.loop, sock, Connection(pool))

    def take_over(self, transport: asyncio.Transport, received: bytes) -> None:
        """Take over an asyncio transport on which ALPN chose h2, and what its owner has read from it."""
        pool = self._pool
        pool.dialing += 1
        take_over(pool.loop, transport, Connection(pool), received)

    def connected(self, connection: Connection) -> None:
        """TCP and TLS stand, ALPN chose h2. Until the server's SETTINGS one request may go out."""
        pool = self._pool
        pool.dialing -= 1
        pool.negotiated = True
        pool.counters.opened_total += 1
        pool.connections.append(connection)
        pool.emit("connection_opened", connection=connection.connection_id)
        if pool.options.connect_timeout is not None:
            pool.loop.call_later(pool.options.connect_timeout, self._unsettled, connection)
        pool.dispatch()

    def _unsettled(self, connection: Connection) -> None:
        if not connection.settled and not connection.closed:
            connection.abort(TimeoutError("the server sent no SETTINGS"))

    def lost(self, error: BaseException) -> None:
        """A connection ended before the server's SETTINGS."""
        self._failed(error)

    def _failed(self, error: BaseException) -> None:
        pool = self._pool
        if pool.dialing or any(connection.limit for connection in pool.connections):
            pool.dispatch()
            return
        waiting, pool.waiting = pool.waiting, deque()
        now = monotonic()
        for stream in waiting:
            if isinstance(error, TimeoutError) and now - stream.since < pool.connect_limit(stream) < math.inf:
                # It came late and has a limit of its own, which has not passed: its turn to be dialled for.
                pool.waiting.append(stream)
                continue
            failure = dial_failure(error, pool.spec)
            failure.attempts = stream.refusals + 1
            stream.end(failure)
        if pool.waiting:
            pool.dispatch()

    def _all_http1(self, reason: str) -> None:
        pool = self._pool
        pool.reactor.remember_http1(pool.key)
        waiting, pool.waiting = pool.waiting, deque()
        for stream in waiting:
            stream.outcome = Http1Only(pool.key, reason)
            stream.end(None)

    def _patience(self, stream: Stream | None) -> float:
        """Seconds that a dial may take for this request; for None, for nobody in particular."""
        pool = self._pool
        limit = None if stream is None else stream.request.connect_timeout
        if limit is None:
            limit = pool.options.connect_timeout
        return math.inf if limit is None else limit

    def cancel(self) -> None:
        """Give up what is on its way."""
        for task in tuple(self._tasks):
            task.cancel()

    def __repr__(self) -> str:
        return f"<Dialing {self._pool.dialing} on their way>"
