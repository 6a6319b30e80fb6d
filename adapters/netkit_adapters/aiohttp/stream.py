"""An HTTP/2 exchange as an aiohttp response knows it: as its stream, and as its connection.

Rules of this file:

- Nothing is pumped: a reader that finds its buffer empty takes what has arrived, up to the stream's high-water mark.
  What is not taken gives no credit back, so the server waits for a slow reader.
- The engine holds a response weakly. One that was dropped resets its stream when it is collected.
- A cancelled read loses nothing and leaves the stream open, as on HTTP/1.1; closing the response resets it.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import ClientRequest, ClientResponse
from aiohttp.connector import Connection
from aiohttp.helpers import set_exception
from aiohttp.http_parser import DeflateBuffer
from aiohttp.streams import StreamReader

from netkit.errors import BodyClosed, FailureKind, TransportError
from netkit.messages import ResponseBody
from netkit_adapters.aiohttp.body import CLOSED, NativeBody
from netkit_adapters.aiohttp.errors import body_failure, to_native

if TYPE_CHECKING:
    from netkit.http2 import Exchange
    from netkit.messages import Pace

__all__ = ["ExchangeReader", "StreamBody", "StreamConnection"]

_feed_eof: Final = StreamReader.feed_eof
_set_exception: Final = StreamReader.set_exception
_wait_eof: Final = StreamReader.wait_eof


class _Link:
    """What a stream asks of its protocol."""

    connected: Final = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self, resume_parser: bool = True) -> None:
        pass


_LINK: Final[Any] = _Link()


class StreamConnection(Connection):
    """One stream in the place of an `aiohttp.Connection`, and of its protocol."""

    upgraded: Final = False

    def __init__(self, exchange: Exchange, req: ClientRequest) -> None:
        # Not Connection.__init__: there is no connector to give this back to.
        self._exchange = exchange
        self._loop = req.loop
        self._callbacks = []
        self._open = True

    def __del__(self, _: Any = None) -> None:
        pass

    def __repr__(self) -> str:
        return f"Connection<{self._exchange!r}>"

    @property
    def _protocol(self) -> Any:  # type: ignore[override]
        return self if self._open else None

    @property
    def protocol(self) -> Any:
        return self if self._open else None

    @property
    def transport(self) -> Any:
        connection = self._exchange.connection
        return connection.transport if self._open and connection is not None else None

    def is_connected(self) -> bool:
        return not self._exchange.ended and not self._exchange.left

    @property
    def closed(self) -> bool:
        return not self._open or not self.is_connected()

    def close(self) -> None:
        self._notify_release()
        self._open = False
        self._exchange.close()

    def release(self) -> None:
        self._notify_release()
        self._open = False
        if not self._exchange.ended:
            self._exchange.close()


class ExchangeReader(StreamReader):
    """An aiohttp stream that takes its bytes from an exchange when its caller wants them, and tells netkit."""

    __slots__ = ("__weakref__", "_decoder", "_exchange", "_more", "_told")

    def __init__(self, exchange: Exchange, told: StreamBody, limit: int, req: ClientRequest) -> None:
        super().__init__(_LINK, limit, timer=req._timer, loop=req.loop)
        self._exchange = exchange
        self._told = told
        self._decoder: DeflateBuffer | None = None
        self._more = False
        """Whether the decoder holds bytes that it has not given yet."""

    def __del__(self) -> None:
        exchange = self._exchange
        if exchange.held and exchange.chunks:
            exchange.close()
        if not self._told.ended:
            self._told.end(BodyClosed("dropped before its end"))

    # What aiohttp's callers wait on.

    async def _wait(self, func_name: str) -> None:
        if self._waiter is not None:
            raise RuntimeError(f"{func_name}() called while another coroutine is already waiting for incoming data")
        if self._fill():
            if self._exception is not None:
                raise self._exception
            return
        exchange, pace = self._exchange, self._told.pace
        if pace is not None:
            left = pace.left()
            if left <= 0:
                exchange.close()
                late = self._failure(TransportError("no time is left", kind=FailureKind.READ_TIMEOUT))
                self.set_exception(late)
                raise late
            exchange.request.read_timeout = None if left == math.inf else left
        waiter = self._waiter = exchange.waiter = self._loop.create_future()
        exchange.waiting = True
        if exchange.connection is not None:
            exchange.connection.silence.start(exchange)
        try:
            with self._timer:
                await waiter
        except TimeoutError as error:
            self._told.end(error)
            raise
        finally:
            self._waiter = exchange.waiter = None
            exchange.waiting = False
        self._fill()
        if self._exception is not None:
            raise self._exception

    def _fill(self) -> bool:
        """Take over what has arrived, at most up to the high-water mark; whether anything was new.

        A failure of the exchange becomes the stream's once everything before it was read.
        """
        if self._eof:
            return True
        exchange = self._exchange
        chunks = exchange.chunks
        if self._decoder is not None:
            if not self._decode(self._decoder):
                return False
        elif chunks:
            append, high, size = self._buffer.append, self._high_water, self._size
            while chunks and size <= high:
                data = chunks.popleft()
                append(data)
                size += len(data)
            taken = size - self._size
            self._size = size
            self.total_bytes += taken
            if exchange.held:
                exchange.connection.consumed(exchange, taken)  # type: ignore[union-attr]
        elif not exchange.ended:
            return False
        if exchange.ended and not chunks and not self._more and self._exception is None:
            self._finish()
        return True

    def _decode(self, decoder: DeflateBuffer) -> bool:
        exchange, taken, before = self._exchange, 0, self._size
        try:
            while self._size <= self._high_water:
                if self._more:
                    self._more = decoder.feed_data(b"", 0)
                elif exchange.chunks:
                    data = exchange.chunks.popleft()
                    taken += len(data)
                    self._more = decoder.feed_data(data, len(data))
                else:
                    break
        except Exception as error:  # noqa: BLE001 - as aiohttp's parser does
            set_exception(self, aiohttp.ClientPayloadError(str(error)), error)
            return True
        if taken and exchange.held and exchange.connection is not None:
            exchange.connection.consumed(exchange, taken)
        return self._size > before or (exchange.ended and not exchange.chunks and not self._more)

    def _finish(self) -> None:
        """Everything was taken over: that is the end, or the failure once the buffer is empty too."""
        error = self._exchange.error
        if error is not None:
            if not self._buffer:
                set_exception(self, self._failure(error), error)
            return
        if self._decoder is not None:
            try:
                self._decoder.feed_eof()
            except Exception as cause:  # noqa: BLE001 - as aiohttp's parser does
                set_exception(self, aiohttp.ClientPayloadError(str(cause)), cause)
            return
        self.feed_eof()

    def _failure(self, error: BaseException) -> BaseException:
        """What its reader gets to see for a failure of the exchange."""
        pace = self._told.pace
        if pace is not None and isinstance(error, TransportError) and error.kind is FailureKind.READ_TIMEOUT:
            late = pace.failure()
            if late is not None:
                return to_native(late)
        return body_failure(error)

    def arrived(self, error: BaseException | None) -> None:
        """The exchange has ended; the engine tells."""
        self._told.release()
        if isinstance(error, BodyClosed):
            if self._exception is None:
                self.set_exception(aiohttp.ClientConnectionError("Connection closed"))
        elif error is not None:
            if not self._exchange.chunks and not self._buffer and not self._more:
                set_exception(self, self._failure(error), error)
        elif self._exchange.chunks or self._more or self._decoder is not None:
            # The connection is free, whether or not anyone reads what it brought.
            callbacks, self._eof_callbacks = self._eof_callbacks, []
            for callback in callbacks:
                callback()
            if self._eof_waiter is not None:
                self._take_all()
        else:
            self.feed_eof()

    def _take_all(self) -> None:
        self._high_water = max(self._high_water, 1 << 62)
        self._fill()

    # What aiohttp's streams do, told to netkit.

    def _read_nowait_chunk(self, n: int) -> bytes:
        buffer = self._buffer
        data, offset = buffer[0], self._buffer_offset
        if n != -1 and len(data) - offset > n:
            data = data[offset : offset + n]
            self._buffer_offset += n
        else:
            buffer.popleft()
            if offset:
                data = data[offset:]
                self._buffer_offset = 0
        size = len(data)
        self._size -= size
        self._cursor += size
        told = self._told
        if not told.ended:
            data = told.chunk(data)
            if self._eof and not buffer:
                told.end()
        return data

    def read_nowait(self, n: int = -1) -> bytes:
        if not self._buffer and self._exception is None:
            self._fill()
        return super().read_nowait(n)

    async def wait_eof(self) -> None:
        if self._exchange.ended and not self._eof:
            self._take_all()
        await _wait_eof(self)

    def is_eof(self) -> bool:
        return self._eof or (self._exchange.ended and self._exchange.error is None)

    def feed_eof(self) -> None:
        _feed_eof(self)
        if not self._buffer:
            self._told.end()

    def set_exception(self, exc: BaseException, *args: Any, **kwargs: Any) -> None:
        _set_exception(self, exc, *args, **kwargs)
        exchange = self._exchange
        left = exc is CLOSED or exchange.left
        if exchange.ended:
            # Nobody can read the rest any more.
            exchange.close()
        self._told.end(BodyClosed("left before its end") if left else exc)


class StreamBody(NativeBody):
    """The life of an HTTP/2 answer's body, as layers see it."""

    __slots__ = ()

    reader = ExchangeReader

    def limit(self, pace: Pace) -> None:
        # The reader asks it before each wait.
        ResponseBody.limit(self, pace)

    def __init__(self, native: ClientResponse) -> None:
        ResponseBody.__init__(self)
        self._kept = None
        self._response = weakref.ref(native)

    async def discard(self) -> None:
        native: ClientResponse | None = self._response()
        if native is not None:
            # To reset a stream costs less than to read what is left of it.
            native.release()
            await native.wait_for_close()
        self.end(BodyClosed("discarded"))
