"""Response bodies over an HTTP/2 exchange: the stream that httpx reads, and the body that layers see, in one object.

Rules of this file:

- Leaving before the end resets the stream; the connection lives on.
- A body that has arrived whole is given as one chunk, without waiting.
- The collector finds an abandoned response at any point of any thread: the stream is reset from the loop's next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from netkit.errors import TransportError
from netkit_adapters.httpx.failures import to_native
from netkit_adapters.httpx.streams import AsyncBody, SyncBody

if TYPE_CHECKING:
    from netkit.http2 import Exchange, SyncExchange

__all__ = ["AsyncExchangeBody", "AsyncReader", "NetworkInfo", "SyncExchangeBody", "SyncReader"]


class SyncReader:
    """Takes the place of a native stream for threads."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: SyncExchange) -> None:
        self.exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        read = self.exchange.read_chunk
        while data := read():
            yield data

    def close(self) -> None:
        self.exchange.close()

    leave = close


class AsyncReader:
    """Takes the place of a native stream for tasks."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = self.exchange.read_chunk
        while data := await read():
            yield data

    def close(self) -> None:
        """Leave now where this is the exchange's loop, else in its next turn."""
        exchange = self.exchange
        if asyncio._get_running_loop() is exchange._loop:
            exchange.close()
        else:
            self.leave()

    def leave(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its connections with it
            self.exchange._loop.call_soon_threadsafe(self.exchange.close)


class SyncExchangeBody(SyncBody):
    """For threads; the per-stack class adds the native stream type."""

    __slots__ = ()

    def failure(self, error: BaseException) -> BaseException:
        return error

    def __iter__(self) -> Iterator[bytes]:
        if self._kept is not None:
            yield from self.kept()
            return
        read = self._inner.exchange.read_chunk
        try:
            while data := read():
                yield self.chunk(data)
        except GeneratorExit:
            raise
        except TransportError as error:
            self._closed = True
            self.end(error)
            raise to_native(self._wiring.stack, error) from (error.__cause__ or error)
        except BaseException as error:
            self._inner.close()
            self.end(error)
            raise
        self._closed = True
        self.end()

    async def discard(self) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.ended:
            self._inner.leave()
            super().__del__()


class AsyncExchangeBody(AsyncBody):
    """For tasks; the per-stack class adds the native stream type."""

    __slots__ = ()

    def failure(self, error: BaseException) -> BaseException:
        return error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._kept is not None:
            for chunk in self.kept():
                yield chunk
            return
        exchange = self._inner.exchange
        try:
            if exchange.ended and exchange.error is None and not exchange.held:
                chunks = exchange.chunks
                while chunks:
                    yield self.chunk(chunks.popleft())
            else:
                while data := await exchange.read_chunk():
                    yield self.chunk(data)
        except GeneratorExit:
            raise
        except TransportError as error:
            self._closed = True
            self.end(error)
            raise to_native(self._wiring.stack, error) from (error.__cause__ or error)
        except BaseException as error:
            self._inner.close()
            self.end(error)
            raise
        self._closed = True
        self.end()

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inner.close()

    async def discard(self) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self.ended:
            self._inner.leave()
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
