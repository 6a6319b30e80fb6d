"""One request and its answer: the state that a connection fills and the face that a caller holds.

Rules of this file:

- A `Stream` is touched by its loop only. What a caller in another thread needs lies in `chunks`, a deque: appended
  by the loop, taken by the caller.
- An exchange ends once: complete, failed, or left. `on_end` callbacks hear of it once.
- After the head, what has arrived is delivered before a failure is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netkit.errors import BodyClosed, FailureKind, TransportError, Verdict
from netkit.http2.options import H2Request, Http1Only
from netkit.http2.protocol import Header

if TYPE_CHECKING:
    from netkit.http2.connection import Connection
    from netkit.http2.pool import Pool

__all__ = ["Exchange", "Stream"]

log = logging.getLogger("netkit")


class Stream:
    """What pool and connection know of one request. `wake()` tells whoever waits that something has changed."""

    # Plain attributes with defaults on the class: a small exchange sets only the few that it needs.
    pool: Pool | None = None
    connection: Connection | None = None
    stream_id = 0
    status = 0
    """0 until the final response head has arrived."""
    trailers: list[Header] | tuple[()] = ()
    informational: list[tuple[int, list[Header]]] | None = None
    ended = False
    left = False
    error: TransportError | None = None
    outcome: Http1Only | None = None
    held = False
    unread = 0
    credit = 0
    timer: float | None = None
    since = 0.0
    waiting = False
    resends = 0
    refusals = 0
    """Of the resends those that a server saw and refused."""
    body_iter: Any = None
    pumping: Any = None
    queued = 0
    large = False
    """Its body is one of those that prefer a connection of their own."""
    uploaded = 0
    upload_done = False
    headers: list[Header]
    callbacks: list[Callable[[BaseException | None], None]] | None = None

    def __init__(self, request: H2Request, fields: list[Header], length: int | None) -> None:
        self.request = request
        self.body: Any = request.body
        self.fields = fields
        self.length = length
        self.chunks: deque[bytes] = deque()

    @property
    def connection_id(self) -> int:
        """A number that no other connection of this process has; 0 while there is none."""
        return 0 if self.connection is None else self.connection.connection_id

    def wake(self) -> None:
        """Something that a waiting caller cares about has happened."""
        raise NotImplementedError

    def expired(self, now: float) -> float | None:
        """The wheel asks while the request is queued: has that lasted too long?"""
        if self.ended or self.left:
            return None
        if self.connection is not None or self.pool is None:
            return None
        return self.pool.queue_expired(self, now)

    def end(self, error: TransportError | None) -> None:
        """The exchange is over, for good or ill."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        if self.timer is not None and self.pool is not None:
            self.pool.wheel.disarm(self)
        self.tell(error)
        self.wake()

    def tell(self, error: BaseException | None) -> None:
        """Tell those who asked for the end, once."""
        callbacks, self.callbacks = self.callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                try:
                    callback(error)
                except Exception:
                    # It hears of one exchange's end; the connection carries others.
                    log.exception("netkit: a callback at the end of an exchange failed")

    def leave(self) -> None:
        """The caller wants no more of it: the server is told at once, what has arrived is dropped."""
        if not self.left:
            self.left = True
            if self.timer is not None and self.pool is not None:
                self.pool.wheel.disarm(self)
            if self.connection is not None:
                self.connection.leave(self)
            elif self.pool is not None:
                self.pool.forget(self)
            self.chunks.clear()
            if self.callbacks is not None:
                self.tell(BodyClosed("left before its end"))
            self.wake()

    def on_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call `callback(error)` once: None when the body is complete, `BodyClosed` when the caller left, else the
        failure. It runs in the loop that owns the connection, as soon as the last byte has arrived."""
        if self.ended:
            callback(self.error)
        elif self.left:
            callback(BodyClosed("left before its end"))
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def header(self, name: bytes) -> bytes | None:
        """The first response header called `name` (lower case), or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def _take(self) -> bytes:
        """Everything that has arrived, joined."""
        chunks = self.chunks
        first = chunks.popleft()
        if not chunks:
            return first
        parts = [first]
        while chunks:
            parts.append(chunks.popleft())
        return b"".join(parts)

    def __repr__(self) -> str:
        state = (
            "left" if self.left else "failed" if self.error else "ended" if self.ended
            else "open" if self.status else "waiting" if self.connection else "queued"
        )  # fmt: skip
        return f"<{type(self).__name__} {self.status or '-'} {state} stream={self.stream_id}>"


class Exchange(Stream):
    """What an asyncio caller holds: `status`, `headers`, `trailers`, and the body as it arrives.

    ::

        exchange = await engine.send(request)
        while chunk := await exchange.read_chunk():
            ...
    """

    def __init__(
        self, request: H2Request, fields: list[Header], length: int | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        # Not super().__init__(): one call less for each request.
        self.request = request
        self.body = request.body
        self.fields = fields
        self.length = length
        self.chunks = deque()
        self._loop = loop
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Suspend until the next `wake()`; a caller that is cancelled here leaves the exchange."""
        waiter = self.waiter = asyncio.Future(loop=self._loop)
        self.waiting = True
        try:
            await waiter
        except BaseException:
            self.waiter = None
            self.leave()
            raise
        finally:
            self.waiter = None
            self.waiting = False

    async def read_chunk(self) -> bytes:
        """What has arrived, joined; waits only while there is nothing. b"" at the end of the body.

        Raises `TransportError` when the exchange failed, after everything that had arrived was delivered.
        """
        while True:
            if self.chunks:
                data = self._take()
                if self.held:
                    connection = self.connection
                    assert connection is not None
                    connection.consumed(self, len(data))
                return data
            if self.ended:
                if self.error is not None:
                    raise self.error
                return b""
            if self.left:
                raise TransportError("the exchange was closed", kind=FailureKind.BODY, verdict=Verdict.PROCESSED)
            connection = self.connection
            assert connection is not None
            connection.silence.start(self)
            await self.wait()

    async def read(self) -> bytes:
        """The rest of the body, whole."""
        if self.ended and self.error is None and not self.held:
            return self._take() if self.chunks else b""
        parts = []
        while chunk := await self.read_chunk():
            parts.append(chunk)
        return b"".join(parts)

    def close(self) -> None:
        """Leave: RST_STREAM(CANCEL) goes out at once unless the body has ended. Idempotent; in its own loop."""
        if self.ended:
            self.drop()
        elif not self._loop.is_closed():
            self.leave()

    def drop(self) -> None:
        """Forget a complete body that nobody will read."""
        self.left = True
        self.chunks.clear()
        if self.held and self.connection is not None:
            self.connection.consumed(self, self.unread)
