"""Response bodies over an HTTP/2 exchange: the stream that httpx reads, and the body that layers see, in one object.

Rules of this file:

- Leaving before the end resets the stream; the connection lives on.
- A body that has arrived whole is given as one chunk, without waiting.
- The collector finds an abandoned response at any point of any thread: the stream is reset from the loop's next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.messages import ResponseBody
from netkit_adapters.httpx.failures import to_native
from netkit_adapters.httpx.streams import AsyncBody, NativeBody, SyncBody

if TYPE_CHECKING:
    from netkit.http2 import Exchange, SyncExchange
    from netkit.messages import Pace
    from netkit_adapters.httpx.chain import Wiring

__all__ = ["AsyncExchangeBody", "NetworkInfo", "SyncExchangeBody"]


def _fill(body: NativeBody, exchange: Any, headers: Any, wiring: Wiring) -> None:
    # As the constructors of the base classes, all at once: every small request pays for this.
    body._on_chunk, body._on_end, body._on_release = [], [], []
    body.ended = body.released = body._closed = False
    body.error = body._kept = body.pace = None
    body._network = None
    body._inner, body._headers, body._wiring, body._seen = exchange, headers, wiring, 0


def _time_is_up() -> TransportError:
    return TransportError("no time is left", kind=FailureKind.READ_TIMEOUT, verdict=Verdict.PROCESSED)


def _paced(body: NativeBody, error: BaseException) -> BaseException:
    """`error`, or what the body's pace makes of a time-out."""
    if body.pace is None or not isinstance(error, TransportError) or error.kind is not FailureKind.READ_TIMEOUT:
        return error
    late = body.pace.failure()
    if late is None:
        return error
    late.__cause__ = error
    return late


class _Whole:
    """What bodies of both worlds do with an answer that is here to its end."""

    __slots__ = ()

    def is_whole(self: Any) -> bool:
        """Whether all of it is here, unread and without a failure."""
        exchange = self._inner
        return (
            exchange.ended
            and exchange.error is None
            and not exchange.held
            and self._kept is None
            and not (self._closed or self.ended)
        )

    def take(self: Any) -> bytes:
        """All of it at once; `is_whole()` was asked before."""
        try:
            content: bytes = self._inner._take() if self._inner.chunks else b""
            if content:
                content = self.chunk(content)
        except BaseException as error:
            self.close_for(error)
            raise
        self._closed = True
        self.end()
        return content


class SyncExchangeBody(_Whole, SyncBody):
    """For threads; the per-stack class adds the native stream type. `_inner` is the exchange."""

    __slots__ = ()

    def __init__(self, exchange: SyncExchange, headers: Any, wiring: Wiring) -> None:
        _fill(self, exchange, headers, wiring)

    def failure(self, error: BaseException) -> BaseException:
        return error

    def __iter__(self) -> Iterator[bytes]:
        if self._kept is not None:
            yield from self.kept()
            return
        read = self._inner.read_chunk if self.pace is None else self._next
        try:
            while data := read():
                yield self.chunk(data)
        except GeneratorExit:
            raise
        except TransportError as error:
            self._closed = True
            failure: Any = _paced(self, error)
            self.end(failure)
            raise to_native(self._wiring.stack, failure) from (failure.__cause__ or failure)
        except BaseException as error:
            self.close_for(error)
            raise
        self._closed = True
        self.end()

    async def read(self) -> bytes:
        if self._kept is not None:
            return b"".join(self._kept)
        chunks = []
        try:
            while data := self._next():
                chunks.append(self.chunk(data))
        except BaseException as error:
            failure = _paced(self, error)
            self.close_for(failure)
            if failure is not error:
                raise failure from error
            raise
        content = self.keep(chunks)
        self._closed = True
        self.end()
        return content

    def limit(self, pace: Pace) -> None:
        ResponseBody.limit(self, pace)

    def _next(self) -> bytes:
        if self.pace is None:
            return self._inner.read_chunk()  # type: ignore[no-any-return]
        left = self.pace.left()
        if left <= 0:
            self._inner.close()
            raise _time_is_up()
        return self._inner.read_chunk(min(left, threading.TIMEOUT_MAX))  # type: ignore[no-any-return]

    def close_for(self, error: BaseException) -> None:
        self._closed = True
        self._inner.close()
        self.end(error)

    async def discard(self) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.ended:
            self._inner.close()
            super().__del__()


class AsyncExchangeBody(_Whole, AsyncBody):
    """For tasks; the per-stack class adds the native stream type. `_inner` is the exchange."""

    __slots__ = ()

    def __init__(self, exchange: Exchange, headers: Any, wiring: Wiring) -> None:
        _fill(self, exchange, headers, wiring)
        self._loop = exchange._loop

    def failure(self, error: BaseException) -> BaseException:
        return error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._kept is not None:
            for chunk in self.kept():
                yield chunk
            return
        exchange = self._inner
        try:
            if exchange.ended and exchange.error is None and not exchange.held:
                chunks = exchange.chunks
                while chunks:
                    yield self.chunk(chunks.popleft())
            else:
                read = exchange.read_chunk if self.pace is None else self._next
                while data := await read():
                    yield self.chunk(data)
        except GeneratorExit:
            raise
        except TransportError as error:
            self._closed = True
            failure: Any = _paced(self, error)
            self.end(failure)
            raise to_native(self._wiring.stack, failure) from (failure.__cause__ or failure)
        except BaseException as error:
            self.close_for(error)
            raise
        self._closed = True
        self.end()

    async def read(self) -> bytes:
        if self._kept is not None:
            return b"".join(self._kept)
        chunks = []
        try:
            while data := await self._next():
                chunks.append(self.chunk(data))
        except BaseException as error:
            failure = _paced(self, error)
            self.close_for(failure)
            if failure is not error:
                raise failure from error
            raise
        content = self.keep(chunks)
        self._closed = True
        self.end()
        return content

    def close_for(self, error: BaseException) -> None:
        self._closed = True
        self._inner.close()
        self.end(error)

    def limit(self, pace: Pace) -> None:
        ResponseBody.limit(self, pace)

    async def _next(self) -> bytes:
        if self.pace is not None:
            left = self.pace.left()
            if left <= 0:
                self._inner.close()
                raise _time_is_up()
            self._inner.request.read_timeout = None if left == math.inf else left
        return await self._inner.read_chunk()  # type: ignore[no-any-return]

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if asyncio._get_running_loop() is self._loop:
                self._inner.close()
            else:
                self._leave()

    def _leave(self) -> None:
        """Leave from wherever this is: in the next turn of the exchange's own loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its connections with it
            self._loop.call_soon_threadsafe(self._inner.close)

    async def discard(self) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self.ended:
            self._leave()
            super().__del__()


class NetworkInfo:
    """`extensions["network_stream"]` of an HTTP/2 answer: tells of the connection, which many requests share and
    nobody may read, write or close. The per-stack class adds httpcore's interface."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange | SyncExchange) -> None:
        self._exchange = exchange

    def get_extra_info(self, info: str) -> Any:
        """As httpcore's streams: "ssl_object", "socket", "client_addr", "server_addr"; None for anything else."""
        connection = self._exchange.connection
        transport = None if connection is None else connection.transport
        if transport is None:
            return None
        if info in ("ssl_object", "socket"):
            return transport.get_extra_info(info)
        address = {"client_addr": "getsockname", "server_addr": "getpeername"}.get(info)
        if address is None:
            return None
        try:
            return getattr(transport.get_extra_info("socket"), address)()
        except OSError:  # closed meanwhile
            return None
