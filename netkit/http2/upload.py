"""Streamed request bodies: from an iterable, synchronous or not, into a stream's queue, with back-pressure.

Rules of this file:

- At most `HIGH` bytes are queued ahead of what the peer's windows let out.
- Small chunks wait up to `JOIN_DELAY` for company: many tiny DATA frames make some servers say ENHANCE_YOUR_CALM
  (hyperium/h2 issue 939).
- An iterable that raises fails its own request, never the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.exchange import Stream

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["HIGH", "Fed", "LengthMismatch", "start_upload"]

HIGH: Final = 256 << 10
JOIN_SIZE: Final = 16 << 10
JOIN_DELAY: Final = 0.002
FRAME: Final = 16 << 10
"""The largest DATA frame that every peer accepts (RFC 9113 section 4.2)."""
SCRAP: Final = 1024


def start_upload(connection: Connection, stream: Stream) -> None:
    """Begin to send `stream`'s body, which is neither bytes nor None."""
    request = stream.request
    body: Any = stream.body
    if stream.resends and isinstance(body, Fed):
        stream.body = body = body.again()
    elif stream.resends and request.reopen is not None:
        body = request.reopen()
        if isinstance(body, bytes):
            body = (body,)
    stream.body_iter = body
    if isinstance(body, Fed):
        stream.pumping = body
        body.attach(connection, stream)
    elif hasattr(body, "__aiter__"):
        stream.pumping = _AsyncPump(connection, stream, body.__aiter__())
    else:
        stream.pumping = pump = _SyncPump(connection, stream, iter(body))
        pump()


class _Joiner:
    """Collects small chunks for one stream and counts them against the declared length."""

    __slots__ = ("_connection", "_held", "_size", "_stream", "_timer", "_total", "active")

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self._connection = connection
        self._stream = stream
        self._held: list[bytes] = []
        self._size = 0
        self._total = 0
        self._timer: asyncio.TimerHandle | None = None
        self.active = True

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        length = self._stream.length
        if length is not None and self._total > length:
            raise LengthMismatch(f"the request body is longer than its content-length of {length}")
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size >= JOIN_SIZE:
            self._feed(False)
        elif self._timer is None:
            self._timer = self._connection.loop.call_later(JOIN_DELAY, self._feed, False)

    def finish(self) -> None:
        length = self._stream.length
        if length is not None and self._total != length:
            raise LengthMismatch(f"the request body has {self._total} bytes, its content-length says {length}")
        self._feed(True)
        self.active = False

    def _feed(self, end: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held, self._size = self._held, [], 0
        if not self.active or not (held or end):
            return
        data = held[0] if len(held) == 1 else b"".join(held)
        tail = len(data) % FRAME
        if not end and tail < SCRAP and tail < len(data) and tail:
            # What would make a tiny frame of its own goes with the next chunk.
            self._held, self._size = [data[-tail:]], tail
            data = data[:-tail]
            self._timer = self._connection.loop.call_later(JOIN_DELAY, self._feed, False)
        self._connection.sending.feed(self._stream, data, end)

    def fail(self, error: BaseException) -> None:
        self.active = False
        if isinstance(error, LengthMismatch):
            kind, message = FailureKind.BODY, str(error)
        else:
            kind, message = FailureKind.WRITE, f"the request body raised {type(error).__name__}"
        # What the caller's own body raised is what the caller has to see.
        native = None if isinstance(error, LengthMismatch) else error
        failure = TransportError(message, kind=kind, verdict=Verdict.AMBIGUOUS, native=native, reason="request_body")
        failure.__cause__ = error
        self._connection.give_up(self._stream, failure)

    def stop(self) -> None:
        self.active = False
        self._held = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LengthMismatch(Exception):
    """A body of another length than its content-length says."""


class _SyncPump:
    """Pulls from a plain iterator whenever the queue has room. Called by the connection as windows open."""

    __slots__ = ("_busy", "_iterator", "_joiner", "_stream")

    def __init__(self, connection: Connection, stream: Stream, iterator: Iterator[bytes]) -> None:
        self._joiner = _Joiner(connection, stream)
        self._stream = stream
        self._iterator = iterator
        self._busy = False

    def __call__(self) -> None:
        joiner, stream = self._joiner, self._stream
        if self._busy or not joiner.active:
            return
        self._busy = True
        try:
            while joiner.active and stream.queued + joiner._size < HIGH:
                try:
                    chunk = next(self._iterator)
                except StopIteration:
                    joiner.finish()
                    break
                if chunk:
                    joiner.add(chunk)
        except Exception as error:  # noqa: BLE001 - the body is the caller's code
            joiner.fail(error)
        finally:
            self._busy = False

    def close(self) -> None:
        self._joiner.stop()
        if not self._busy and isinstance(self._iterator, Generator):
            self._iterator.close()


class _AsyncPump:
    """A task that iterates an asynchronous body; the one case in which a request has a task of its own."""

    __slots__ = ("_iterator", "_joiner", "_room", "_stream", "_task")

    def __init__(self, connection: Connection, stream: Stream, iterator: AsyncIterator[bytes]) -> None:
        self._joiner = _Joiner(connection, stream)
        self._stream = stream
        self._iterator = iterator
        self._room: asyncio.Future[None] | None = None
        self._task = connection.loop.create_task(self._run(), context=Context())

    async def _run(self) -> None:
        joiner, stream = self._joiner, self._stream
        try:
            async for chunk in self._iterator:
                if not joiner.active:
                    return
                if chunk:
                    joiner.add(chunk)
                while joiner.active and stream.queued + joiner._size >= HIGH:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
            if joiner.active:
                joiner.finish()
        except Exception as error:  # noqa: BLE001 - the body is the caller's code
            joiner.fail(error)
        finally:
            aclose = getattr(self._iterator, "aclose", None)
            if aclose is not None:
                await aclose()

    def __call__(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def close(self) -> None:
        self._joiner.stop()
        if self._task is not asyncio.current_task(self._task.get_loop()):
            self._task.cancel()


class Fed:
    """A body that its owner pushes from elsewhere: from a thread, see `netkit.http2.sync_exchange`."""

    __slots__ = ("_backlog", "_end", "_joiner", "_on_room", "again")

    def __init__(self, on_room: Callable[[], None], on_again: Callable[[], Fed]) -> None:
        self._joiner: _Joiner | None = None
        self._backlog: list[bytes] = []
        self._end = False
        self._on_room = on_room
        self.again = on_again

    def attach(self, connection: Connection, stream: Stream) -> None:
        self._joiner = _Joiner(connection, stream)
        backlog, self._backlog = self._backlog, []
        self._push(backlog)

    def push(self, chunks: list[bytes], end: bool) -> None:
        """In the loop: more bytes; `end` says that they are the last."""
        self._end = self._end or end
        if self._joiner is None:
            self._backlog += chunks
        else:
            self._push(chunks)

    def _push(self, chunks: list[bytes]) -> None:
        joiner = self._joiner
        assert joiner is not None
        if not joiner.active:
            return
        try:
            for chunk in chunks:
                joiner.add(chunk)
            if self._end:
                joiner.finish()
        except LengthMismatch as error:
            joiner.fail(error)

    def broken(self, error: BaseException) -> None:
        """In the loop: the owner's iterable raised."""
        if self._joiner is not None and self._joiner.active:
            self._joiner.fail(error)

    def __call__(self) -> None:
        self._on_room()

    def close(self) -> None:
        if self._joiner is not None:
            self._joiner.stop()
        self._on_room()
