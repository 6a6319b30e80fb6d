"""Faults of the connection: closed, reset, silent, slow or lying, at every point of an exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from netkit.testing.mock_gpu.exchange import Answer

from ._base import ConnectionFault, Fault, Proceed, respond
from ._outputs import Cut, Drip, Ending, Relay, end

if TYPE_CHECKING:
    from netkit.testing.mock_gpu.connection import Connection
    from netkit.testing.mock_gpu.exchange import Exchange, HeaderList

__all__ = [
    "AcceptDelay",
    "BlackHole",
    "CloseAfterHeaders",
    "CloseBeforeHeaders",
    "CloseIdle",
    "CloseOnAccept",
    "CutBody",
    "EarlyResponse",
    "Malformed",
    "ResetAfterHeaders",
    "ResetBeforeHeaders",
    "ShortBody",
    "SlowDrip",
    "SlowHeaders",
]


@dataclass(frozen=True, kw_only=True)
class CloseBeforeHeaders(Fault):
    """The request is read, then the connection ends without an answer: by FIN (`how`, see `Ending`).

    Attributes:
        read_body: False ends it on the request's head. A FIN is then an RST where unread bytes lie in the kernel.
    """

    how: Ending = "fin"
    read_body: bool = True

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        if self.read_body:
            await exchange.body.wait()
        await end(exchange, self.how)


@dataclass(frozen=True, kw_only=True)
class ResetBeforeHeaders(CloseBeforeHeaders):
    """The same by RST (SO_LINGER 0)."""

    how: Ending = "reset"


@dataclass(frozen=True, kw_only=True)
class CutBody(Fault):
    """The answer ends in the middle: after `after_bytes` of the body, or `after_events` writes of a stream.

    With both None it ends after the head. `how` as in `Ending`.
    """

    after_bytes: int | None = None
    after_events: int | None = None
    how: Ending = "fin"

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        limit = 0 if self.after_bytes is None and self.after_events is None else self.after_bytes
        exchange.output = Cut(exchange, lambda: end(exchange, self.how), limit=limit, events=self.after_events)
        await proceed()


@dataclass(frozen=True, kw_only=True)
class CloseAfterHeaders(CutBody):
    """The head of the answer arrives, then FIN."""


@dataclass(frozen=True, kw_only=True)
class ResetAfterHeaders(CutBody):
    """The head of the answer arrives, then RST."""

    how: Ending = "reset"


@dataclass(frozen=True, kw_only=True)
class CloseIdle(Fault):
    """A whole answer that promises keep-alive, then the idle connection ends after `delay` seconds (0: at once)."""

    delay: float = 0.0
    how: Ending = "fin"

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        await proceed()
        await exchange.wait_ended()
        if self.delay:
            await asyncio.sleep(self.delay)
        await end(exchange, self.how)


@dataclass(frozen=True, kw_only=True)
class SlowHeaders(Fault):
    """HTTP/1.1: the head in pieces of `size` bytes, `interval` seconds apart. HTTP/2: the head after `interval`."""

    size: int = 1
    interval: float = 0.01

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        exchange.head_pace = (self.size, self.interval)
        await proceed()


@dataclass(frozen=True, kw_only=True)
class SlowDrip(Fault):
    """The body in pieces of `size` bytes, `interval` seconds between two."""

    size: int = 1
    interval: float = 0.01

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        exchange.output = Drip(exchange, self.size, self.interval)
        await proceed()


@dataclass(frozen=True, kw_only=True)
class ShortBody(Fault):
    """A Content-Length that is `missing` bytes more than the body, then `how` (HTTP/2: END_STREAM instead).

    Raises for an answer without a length (a stream): there CutBody does the same.
    """

    missing: int = 10
    how: Ending = "fin"

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        exchange.output = _Short(exchange, self.missing, self.how)
        await proceed()


class _Short(Relay):
    def __init__(self, exchange: Exchange, missing: int, how: Ending) -> None:
        super().__init__(exchange)
        self._missing = missing
        self._how: Ending = how

    async def head(self, status: int, headers: HeaderList) -> None:
        changed = [
            (name, str(int(value) + self._missing) if name.lower() == "content-length" else value)
            for name, value in headers
        ]
        if changed == headers:
            raise ValueError("ShortBody needs an answer with a Content-Length")
        await self.inner.head(status, changed)

    async def end(self, trailers: HeaderList) -> None:
        if self.exchange.connection.is_http2:
            await self.inner.end(trailers)
        else:
            await end(self.exchange, self._how)


@dataclass(frozen=True, kw_only=True)
class Malformed(Fault):
    """Bytes that are no HTTP instead of the answer, or (`at="body"`) behind its head; then `how`."""

    data: bytes = b"\x00\xffthis is not HTTP\r\n\r\n"
    at: Literal["head", "body"] = "head"
    how: Ending = "fin"

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        async def garbage() -> None:
            exchange.connection.write_raw(self.data)
            await end(exchange, self.how)

        await exchange.body.wait()
        if self.at == "head":
            await garbage()
        else:
            exchange.output = Cut(exchange, garbage, limit=0, events=None)
            await respond(exchange, Answer(200, [("content-type", "application/octet-stream")], _never(), None))


@dataclass(frozen=True, kw_only=True)
class EarlyResponse(Fault):
    """A whole answer on the request's head; the request's body is never read.

    HTTP/1.1: the answer with `Connection: close`, then FIN, while nothing more is read, then RST after `linger`
    (the record's outcome is "server_closed"). HTTP/2: the answer with END_STREAM, then RST_STREAM(`code`); the
    window stays as it was.

    Attributes:
        linger: seconds between FIN and RST on HTTP/1.1.
        code: NO_ERROR (0) as RFC 9113 8.1 wants it; None sends no RST_STREAM.
    """

    status: int = 413
    body: bytes = b"big"
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    linger: float = 0.3
    code: int | None = 0

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        connection = exchange.connection
        pairs = list(self.headers.items() if isinstance(self.headers, Mapping) else self.headers)
        head = [("content-length", str(len(self.body))), *pairs]
        if connection.is_http2:
            exchange.unread_code = self.code
            await exchange.output.head(self.status, head)
            await exchange.output.data(self.body)
            await exchange.output.end([])
            await exchange.wait_ended()
            return
        connection.wire.stop_reading()
        await exchange.output.head(self.status, [*head, ("connection", "close")])
        await exchange.output.data(self.body)
        connection.half_close()
        await asyncio.sleep(self.linger)
        connection.reset()


@dataclass(frozen=True, kw_only=True)
class BlackHole(Fault):
    """From this request on the connection reads and writes nothing, and stays open."""

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        await end(exchange, "black_hole")


@dataclass(frozen=True, kw_only=True)
class CloseOnAccept(ConnectionFault):
    """The connection ends as soon as it was accepted; "black_hole" lets TLS and everything else hang."""

    how: Literal["fin", "reset", "black_hole"] = "reset"

    def start(self, connection: Connection) -> None:
        if self.how == "fin":
            connection.close()
        elif self.how == "reset":
            connection.reset()
        else:
            connection.black_hole()


@dataclass(frozen=True, kw_only=True)
class AcceptDelay(ConnectionFault):
    """The server acts as if it accepted the connection `seconds` later; meets every connection (`times` None)."""

    seconds: float = 0.1
    times: int | None = None

    def start(self, connection: Connection) -> None:
        connection.delay(self.seconds)


async def _never() -> AsyncIterator[bytes]:
    yield b""
