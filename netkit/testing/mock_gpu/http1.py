"""HTTP/1.1: the ordinary request by one regular expression, everything else by h11.

Rules of this file:
- The fast path takes a message only when there is nothing to argue about: a strict head, one Host, at most one
  Content-Length, no transfer coding, no Expect. Anything else, errors included, is h11's to judge.
- Responses are written here, because a fault must be able to write what h11 would refuse.
- One exchange at a time; pipelined requests wait in the buffer.
"""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11

from .exchange import Answer, Body, Exchange, HeaderList

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Http1", "Http1Output"]

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD = re.compile(
    rb"(%s) (/[\x21-\x7e]*) HTTP/1\.1\r\n((?:%s:[ \t]*[\x21-\x7e\x80-\xff \t]*\r\n)+)\r\n" % (_TOKEN, _TOKEN)
)
_LIMIT = 64 * 1024
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class Http1:
    """The protocol state of one connection."""

    name = "HTTP/1.1"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wire = connection.wire
        self._options = connection.backend.options
        self._buffer = b""
        self._parser: h11.Connection | None = None
        self._current: Exchange | None = None
        self._left = 0
        self._waiting_for_body = False
        self._closing = False
        self._looping = False
        self._drained: list[asyncio.Future[None]] = []
        self._idle: asyncio.TimerHandle | None = None
        self._arm_idle()

    def __repr__(self) -> str:
        return f"<Http1 {self._current!r} buffered={len(self._buffer)} closing={self._closing}>"

    # From the wire.

    def receive(self, data: bytes) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._left and self._current is not None:
            self._feed(self._current, data)
        elif self._parser is not None:
            self._parser.receive_data(data)
            self._pump(self._parser)
        else:
            self._buffer = self._buffer + data if self._buffer else data
            self._next()

    def writable(self) -> None:
        if not self._wire.is_full:
            self._release()

    def lost(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._release()

    # From the exchange.

    def exchange_ended(self, exchange: Exchange) -> None:
        if exchange is not self._current:
            return
        if self._closing or not exchange.body.complete:
            self._wire.close()
            return
        self._current = None
        if self._buffer:
            self._wire.hold_reading(False)
            self._next()
        else:
            self._arm_idle()

    def send_whole(self, exchange: Exchange, answer: Answer) -> None:
        assert isinstance(answer.body, bytes)
        head = self.head_bytes(exchange, answer.status, answer.headers, len(answer.body))
        body = b"" if _bodiless(exchange, answer.status) else answer.body
        exchange.bytes_sent += len(body)
        exchange.events_sent += 1
        self._wire.write(head + body)
        exchange.finish("complete")

    def head_bytes(self, exchange: Exchange, status: int, headers: HeaderList, length: int | None) -> bytes:
        """The response head, framing included; notes what it means for the connection."""
        lines = [_STATUS_LINES.get(status) or f"HTTP/1.1 {status} Status\r\n"]
        names = set()
        for name, value in headers:
            lines.append(f"{name}: {value}\r\n")
            names.add(name.lower())
            if name.lower() == "connection" and value.lower() == "close":
                self._closing = True
        if "content-length" not in names and not (status == 204 or status < 200):
            if length is not None:
                lines.append(f"content-length: {length}\r\n")
            elif exchange.protocol == "HTTP/1.0":
                self._closing = True
            elif status != 304:
                lines.append("transfer-encoding: chunked\r\n")
        limit = self._options.max_requests_per_connection
        if (limit is not None and exchange.number >= limit) or not exchange.body.complete:
            self._closing = True
        if "connection" not in names:
            if self._closing:
                lines.append("connection: close\r\n")
            elif exchange.protocol == "HTTP/1.0":
                lines.append("connection: keep-alive\r\n")
        if self._options.announce_keep_alive and self._options.keep_alive_timeout and not self._closing:
            lines.append(f"keep-alive: timeout={self._options.keep_alive_timeout:g}\r\n")
        exchange.status = status
        exchange.first_byte = time.monotonic()
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")

    def write_raw(self, data: bytes) -> None:
        self._wire.write(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def finish_then_close(self) -> None:
        self._closing = True
        if self._current is None:
            self._wire.close()

    async def drain(self) -> None:
        """Wait until the wire takes more."""
        while self._wire.is_full and not self._wire.is_closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drained.append(future)
            await future

    # Inside: reading requests.

    def _next(self) -> None:
        """Take the next requests out of the buffer, as far as answers are not pending."""
        if self._looping:
            return
        self._looping = True
        try:
            while self._buffer and self._current is None and self._parser is None and not self._wire.is_closed:
                if self._closing:
                    self._buffer = b""
                    return
                if not self._take_ordinary():
                    self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_LIMIT)
                    self._parser.receive_data(self._buffer)
                    self._buffer = b""
                    self._pump(self._parser)
        finally:
            self._looping = False
        if len(self._buffer) > _LIMIT:
            self._wire.hold_reading(True)

    def _take_ordinary(self) -> bool:
        match = _HEAD.match(self._buffer)
        if match is None:
            return False
        method, target, lines = match.groups()
        headers: HeaderList = []
        length = 0
        host: str | None = None
        sized = closing = False
        for line in lines.decode("latin-1").split("\r\n")[:-1]:
            name, _, value = line.partition(":")
            value = value.strip(" \t")
            headers.append((name, value))
            lowered = name.lower()
            if lowered == "content-length":
                if sized or not (value.isascii() and value.isdigit()):
                    return False
                length, sized = int(value), True
            elif lowered == "host":
                if host is not None:
                    return False
                host = value
            elif lowered == "connection":
                if value.lower() not in ("close", "keep-alive"):
                    return False
                closing = value.lower() == "close"
            elif lowered in ("transfer-encoding", "expect", "upgrade"):
                return False
        if host is None:
            return False
        self._closing = self._closing or closing
        rest = self._buffer[match.end() :]
        self._buffer = b""
        self._left = length
        exchange = self._exchange("HTTP/1.1", method.decode("ascii"), target.decode("ascii"), host, headers)
        backend = self._connection.backend
        if length <= len(rest) or (length <= _LIMIT and not backend.faults.is_active):
            self._waiting_for_body = True  # a small body comes along at once: answer when it is whole
        else:
            backend.begin(exchange)
        if length == 0:
            self._body_done(exchange)
        if rest:
            if self._left:
                self._feed(exchange, rest)
            else:
                self._buffer = rest + self._buffer
        return True

    def _feed(self, exchange: Exchange, data: bytes) -> None:
        part = data[: self._left]
        self._left -= len(part)
        exchange.body.feed(part)
        self._hold(exchange)
        if len(data) > len(part):
            self._buffer += data[len(part) :]
        if self._left == 0:
            self._body_done(exchange)

    def _body_done(self, exchange: Exchange) -> None:
        exchange.body.finish()
        self._wire.hold_reading(False)
        if self._waiting_for_body:
            self._waiting_for_body = False
            self._connection.backend.begin(exchange)

    def _pump(self, parser: h11.Connection) -> None:
        while not self._wire.is_closed:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error)
                return
            if isinstance(event, h11.Request):
                self._open_by_h11(parser, event)
            elif isinstance(event, h11.Data) and self._current is not None:
                self._current.body.feed(bytes(event.data))
                self._hold(self._current)
            elif isinstance(event, h11.EndOfMessage):
                self._buffer = parser.trailing_data[0]
                self._parser = None
                if self._current is not None:
                    self._body_done(self._current)
                self._next()
                return
            else:
                return

    def _open_by_h11(self, parser: h11.Connection, event: h11.Request) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()]
        version = event.http_version.decode("ascii")
        tokens = [
            part.strip().lower() for key, value in headers if key.lower() == "connection" for part in value.split(",")
        ]
        self._closing = self._closing or "close" in tokens or (version == "1.0" and "keep-alive" not in tokens)
        target = event.target.decode("latin-1")
        host = next((value for key, value in headers if key.lower() == "host"), "")
        exchange = self._exchange(f"HTTP/{version}", event.method.decode("ascii"), target, host, headers)
        if parser.they_are_waiting_for_100_continue:
            exchange.body.start = lambda: self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._connection.backend.begin(exchange)

    def _exchange(self, protocol: str, method: str, target: str, host: str, headers: HeaderList) -> Exchange:
        body = Body(self._options.keep_body)
        output = Http1Output(self)
        exchange = self._connection.exchange(
            stream=None, protocol=protocol, method=method, target=target, authority=host, headers=headers, body=body,
            output=output,
        )  # fmt: skip
        output.exchange = exchange
        body.consumed = lambda _: self._hold(exchange)
        self._current = exchange
        return exchange

    def _hold(self, exchange: Exchange) -> None:
        self._wire.hold_reading(exchange.body.waiting > 4 * _LIMIT)

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        self._connection.note("protocol_error", {"error": str(error)})
        if self._current is None:
            body = Answer.error(error.error_status_hint, str(error)).body
            assert isinstance(body, bytes)
            line = _STATUS_LINES[error.error_status_hint]
            head = f"{line}content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self._wire.write(head.encode("ascii") + body)
        self._wire.close()

    def _arm_idle(self) -> None:
        seconds = self._options.keep_alive_timeout
        if seconds is not None:
            self._idle = asyncio.get_running_loop().call_later(seconds, self._wire.close)

    def _release(self) -> None:
        futures, self._drained = self._drained, []
        for future in futures:
            if not future.done():
                future.set_result(None)


class Http1Output:
    """The plain way out of one exchange."""

    exchange: Exchange

    def __init__(self, codec: Http1) -> None:
        self._codec = codec
        self._chunked = False
        self._silent = False

    async def informational(self, status: int, headers: HeaderList) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self._codec.write_raw(f"{_STATUS_LINES[status]}{lines}\r\n".encode("latin-1"))

    async def head(self, status: int, headers: HeaderList) -> None:
        head = self._codec.head_bytes(self.exchange, status, headers, None)
        self._chunked = b"\r\ntransfer-encoding: chunked\r\n" in head
        self._silent = _bodiless(self.exchange, status)
        if self.exchange.head_pace is None:
            self._codec.write_raw(head)
            return
        size, interval = self.exchange.head_pace
        for offset in range(0, len(head), size):
            if offset:
                await asyncio.sleep(interval)
            self._codec.write_raw(head[offset : offset + size])

    async def data(self, chunk: bytes) -> None:
        if self._silent or not chunk:
            return
        self.exchange.bytes_sent += len(chunk)
        self.exchange.events_sent += 1
        self._codec.write_raw(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)
        await self._codec.drain()

    async def end(self, trailers: HeaderList) -> None:
        if self._chunked and not self._silent:
            lines = "".join(f"{name}: {value}\r\n" for name, value in trailers)
            self._codec.write_raw(f"0\r\n{lines}\r\n".encode("latin-1"))
        self.exchange.finish("complete")


def _bodiless(exchange: Exchange, status: int) -> bool:
    return exchange.method == "HEAD" or status in (204, 304) or status < 200
