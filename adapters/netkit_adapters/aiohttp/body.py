"""Watching an aiohttp response's body without replacing the response or its stream.

Rules of this file:

- The caller keeps the very objects that aiohttp made; only the stream's class changes, to one without new slots.
- What belongs to netkit rides in the stream's timer slot: `StreamReader` has neither dict nor weak references.
- A chunk is told as it is consumed; nothing is merged, split or held back.
- A body is complete when its last byte was consumed. Left before that, it is `BodyClosed`, even where all bytes had
  arrived already; an empty body is complete as soon as its end arrives.
- Nothing here holds the response: dropped by its caller, it goes at once, as without netkit.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import aiohttp
from aiohttp import client_reqrep
from aiohttp.base_protocol import BaseProtocol
from aiohttp.helpers import BaseTimerContext
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from netkit.errors import BodyClosed
from netkit.messages import ResponseBody
from netkit_adapters.aiohttp.errors import classify, to_native

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from netkit.messages import Pace

__all__ = ["CLOSED", "NativeBody", "ObservedStreamReader", "OpaqueBody", "filled_reader", "tell"]

DRAIN_LIMIT: Final = 65536
"""Up to this many bytes an unwanted answer is read to keep its connection; beyond it the connection is closed."""

DRAIN_SECONDS: Final = 0.25
"""For no longer than this."""

CLOSED: Final = getattr(client_reqrep, "_CONNECTION_CLOSED_EXCEPTION", None)
"""What aiohttp puts into a stream whose response the caller closes or releases."""


_read_nowait_chunk: Final = StreamReader._read_nowait_chunk
_feed_eof: Final = StreamReader.feed_eof
_set_exception: Final = StreamReader.set_exception


class ObservedStreamReader(StreamReader):
    """An aiohttp stream that also tells netkit; its `_timer` is always the body."""

    __slots__ = ()

    _timer: NativeBody

    def _read_nowait_chunk(self, n: int) -> bytes:
        data = _read_nowait_chunk(self, n)
        body = self._timer
        if not body.ended:
            for on_chunk in body._on_chunk:
                data = on_chunk(data)
            if self._eof and not self._buffer:
                body.end()
        return data

    def feed_eof(self) -> None:
        _feed_eof(self)
        if not self._buffer:
            self._timer.end()

    def set_exception(self, exc: BaseException, *args: Any, **kwargs: Any) -> None:
        _set_exception(self, exc, *args, **kwargs)
        body = self._timer
        if not body.ended:
            body.end(BodyClosed("left before its end") if exc is CLOSED else exc)


def filled_reader(content: bytes, loop: asyncio.AbstractEventLoop) -> StreamReader:
    """A stream that has `content` and its end already, and no connection."""
    reader = StreamReader(BaseProtocol(loop), max(len(content), 1), loop=loop)
    if content:
        reader.feed_data(content)
    reader.feed_eof()
    return reader


class NativeBody(ResponseBody, BaseTimerContext):
    """The body of an `aiohttp.ClientResponse`; takes the place of its stream's timer, and still does its work."""

    __slots__ = ("_alarm", "_kept", "_response", "_timer")

    decoded = True

    reader: ClassVar[type[StreamReader]] = ObservedStreamReader
    """The class of a stream that tells netkit."""

    def __init__(self, native: ClientResponse) -> None:
        super().__init__()
        self._kept: bytes | None = None
        content: Any = native.content
        connection = native._connection
        if type(content) is StreamReader:
            if content._exception is not None:
                self.end(content._exception)
            elif content._eof and not content._buffer:
                self.end()
            else:
                self._timer: BaseTimerContext = content._timer
                content._timer = self
                content.__class__ = ObservedStreamReader
        elif content is EMPTY_PAYLOAD or connection is None:
            self.end()
        if connection is not None:
            connection.add_callback(self.release if type(content) is ObservedStreamReader else self.end)
        elif not self.released:
            self.release()
        self._response: Any = weakref.ref(native, self._dropped)

    def _dropped(self, _: object) -> None:
        if not self.ended:
            self.end(BodyClosed("dropped before its end"))

    def __del__(self) -> None:
        # Where the response and this went in one cycle, nobody else tells.
        self._dropped(None)

    def follow(self, timer: BaseTimerContext) -> None:
        """Obey another clock from now on."""
        self._timer = timer

    # What aiohttp's streams ask of their timer.

    def assert_timeout(self) -> None:
        try:
            self._timer.assert_timeout()
        except TimeoutError as error:
            self.end(error)
            raise

    def __enter__(self) -> Self:
        if self.pace is not None:
            self._alarm = self._wait_by(self.pace)
        self._timer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self.pace is not None and self._alarm is not None:
            self._alarm.cancel()
        try:
            return self._timer.__exit__(kind, error, traceback)
        except TimeoutError as timeout:
            self.end(timeout)
            raise

    def limit(self, pace: Pace) -> None:
        super().limit(pace)
        native: ClientResponse | None = self._response()
        connection = None if native is None else native._connection
        protocol: Any = None if connection is None else connection.protocol
        if self.pace is not None and protocol is not None:
            # Shortened for the head, perhaps.
            protocol.read_timeout = pace.read

    def _wait_by(self, pace: Pace) -> asyncio.TimerHandle | None:
        """A reader begins to wait: the timer that ends its wait. Raises where no time is left."""
        left = pace.left()
        native: ClientResponse | None = self._response()
        if native is None or left == math.inf:
            return None
        if left <= 0:
            failure = pace.failure()
            if failure is not None:
                late = to_native(failure)
                native.content.set_exception(late)
                native.close()
                raise late
        return native._loop.call_later(left, self._late)

    def _late(self) -> None:
        native: ClientResponse | None = self._response()
        failure = None if self.pace is None else self.pace.failure()
        if native is not None and failure is not None and not native.content.is_eof():
            native.content.set_exception(to_native(failure))
            native.close()

    async def read(self) -> bytes:
        if self._kept is not None:
            return self._kept
        native: ClientResponse | None = self._response()
        if native is None:
            raise BodyClosed("its response is gone")
        try:
            content = await native.content.read()
        except BaseException as error:
            native.close()
            failure = classify(error, processed=True) if isinstance(error, Exception) else None
            if failure is None:
                raise
            raise failure from error
        if type(native.content) is self.reader:
            native.content = filled_reader(content, native._loop)
        self._kept = content
        return content

    async def discard(self) -> None:
        native: ClientResponse | None = self._response()
        if native is not None:
            try:
                if not native.content.is_eof():
                    await _drain(native)
            finally:
                # Without the end of the body this closes the connection, with it the connection is free already.
                native.release()
            # An upload that the server no longer wanted has been told to stop: the next attempt needs its payload.
            with suppress(aiohttp.ClientError, OSError):
                await native.wait_for_close()
        self.end(BodyClosed("discarded"))


def tell(body: ResponseBody, native: ClientResponse) -> None:
    """Have `body`, which a layer made, told of what is read from the `native` that was made of it."""
    NativeBody(native).observe(body.chunk, body.end)


class OpaqueBody(ResponseBody):
    """The body of a stand-in that a test put in a response's place: nothing can be watched, its life ends at once."""

    __slots__ = ("_native",)

    def __init__(self, native: Any) -> None:
        super().__init__()
        self._native = native
        self.end()

    async def read(self) -> bytes:
        content: bytes = await self._native.read()
        return content

    async def discard(self) -> None:
        self._native.release()


async def _drain(native: ClientResponse) -> None:
    declared = native.headers.get("Content-Length", "")
    if declared.isdecimal() and int(declared) > DRAIN_LIMIT:
        return
    left = DRAIN_LIMIT
    with suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0 and not native.content.at_eof():
                left -= len(await native.content.readany())
