"""Ways out of an exchange that drip, cut or lie: they stand between an answer and the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from netkit.testing.mock_gpu.exchange import Gone

if TYPE_CHECKING:
    from netkit.testing.mock_gpu.exchange import Exchange, HeaderList, Output

__all__ = ["Cut", "Drip", "Ending", "Relay", "end"]

Ending = Literal["fin", "reset", "half_close", "black_hole", "hang"]
"""How a connection ends: FIN; RST; FIN but still reading; silence, the socket swallowed; silence, still reading."""


async def end(exchange: Exchange, how: Ending) -> None:
    """End the exchange's connection; does not return for what leaves it open.

    Raises:
        ValueError: `how` is none of the endings.
    """
    connection = exchange.connection
    if how == "fin":
        connection.close()
    elif how == "reset":
        connection.reset()
    elif how == "half_close":
        connection.half_close()
    elif how == "black_hole":
        connection.black_hole()
    elif how != "hang":
        raise ValueError(f"an ending is fin, reset, half_close, black_hole or hang, not {how!r}")
    if how in ("black_hole", "hang"):
        await asyncio.get_running_loop().create_future()


class Relay:
    """Passes everything on. The base of the others."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.inner: Output = exchange.output

    async def informational(self, status: int, headers: HeaderList) -> None:
        await self.inner.informational(status, headers)

    async def head(self, status: int, headers: HeaderList) -> None:
        await self.inner.head(status, headers)

    async def data(self, chunk: bytes) -> None:
        await self.inner.data(chunk)

    async def end(self, trailers: HeaderList) -> None:
        await self.inner.end(trailers)


class Drip(Relay):
    """The body in pieces of `size` bytes, `interval` seconds between two."""

    def __init__(self, exchange: Exchange, size: int, interval: float) -> None:
        super().__init__(exchange)
        self._size = size
        self._interval = interval
        self._started = False

    async def data(self, chunk: bytes) -> None:
        for offset in range(0, len(chunk), self._size):
            if self._started:
                await asyncio.sleep(self._interval)
            self._started = True
            await self.inner.data(chunk[offset : offset + self._size])


class Cut(Relay):
    """Stops after the head, after `limit` body bytes, or after `events` writes; then `action`, and nothing more."""

    def __init__(
        self, exchange: Exchange, action: Callable[[], object], *, limit: int | None, events: int | None
    ) -> None:
        super().__init__(exchange)
        self._action = action
        self._limit = limit
        self._events = events

    async def head(self, status: int, headers: HeaderList) -> None:
        await self.inner.head(status, headers)
        self.exchange.connection.flush()
        if self._limit == 0 or self._events == 0:
            await self._cut()

    async def data(self, chunk: bytes) -> None:
        if self._limit is not None and len(chunk) >= self._limit:
            await self.inner.data(chunk[: self._limit])
            await self._cut()
        await self.inner.data(chunk)
        if self._limit is not None:
            self._limit -= len(chunk)
        if self._events is not None:
            self._events -= 1
            if self._events == 0:
                await self._cut()

    async def _cut(self) -> None:
        self.exchange.connection.flush()
        result = self._action()
        if asyncio.iscoroutine(result):
            await result
        raise Gone("cut by a fault")
