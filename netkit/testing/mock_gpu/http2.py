"""HTTP/2: exchanges over an engine, with its own output under watch.

Rules of this file:
- Everything sent passes `_flush`, frame by frame: it is logged there, and what a fault forbids is dropped there.
- GOAWAY is written here and not by the engine: a fault may name any last stream, and the streams below it go on.
- Credit is given back when a route has read the bytes; an answer that does not read leaves the window closed.
- A stream's exchange ends when its last byte left the engine, not when it was handed over.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import frames
from .engines import BodyBytes, EngineError, Event, Happened, RequestHead, RequestTrailers, StreamOver, open_engine
from .exchange import Answer, Body, Exchange, HeaderList

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Http2", "Http2Output"]

_ROOM = 256 * 1024
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "proxy-connection", "upgrade"}
_DEFAULT_SETTINGS = {3: 250, 4: 1024 * 1024, 6: 256 * 1024}
_KINDS = {
    frames.RST_STREAM: "rst_sent",
    frames.SETTINGS: "settings_sent",
    frames.PING: "ping_sent",
    frames.GOAWAY: "goaway_sent",
    frames.WINDOW_UPDATE: "window_sent",
}
_SHORTEST = {frames.RST_STREAM: 4, frames.GOAWAY: 8, frames.WINDOW_UPDATE: 4}


class Http2:
    """The protocol state of one connection."""

    name = "HTTP/2"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wire = connection.wire
        self._backend = connection.backend
        self._options = connection.backend.options
        self._loop = asyncio.get_running_loop()
        self._engine = open_engine(self._options.engine)
        self._streams: dict[int, Exchange] = {}
        self._ending: list[Exchange] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._flush_planned = False
        self._held = connection.plan.settings_after > 0
        self._highest = 0
        self._accepts_up_to = 2**31 - 1
        self._closing = False
        self._idle: asyncio.TimerHandle | None = None
        self._engine.start(
            {**_DEFAULT_SETTINGS, **self._options.settings, **connection.plan.settings},
            self._options.connection_window,
        )
        if self._held:
            self._loop.call_later(connection.plan.settings_after, self._unhold)
        self._arm_idle()
        self.flush()

    def __repr__(self) -> str:
        return f"<Http2 streams={sorted(self._streams)} highest={self._highest} closing={self._closing}>"

    @property
    def highest_stream(self) -> int:
        """The highest stream that the client has opened; 0 before the first."""
        return self._highest

    # From the wire.

    def receive(self, data: bytes) -> None:
        self._flush_planned = True  # at the end of this
        try:
            events = self._engine.receive(data)
        except EngineError as error:
            self._connection.note("protocol_error", {"error": str(error)})
            self.flush()
            self._wire.close()
            return
        begun: list[Exchange] = []
        for event in events:
            self._take(event, begun)
        for exchange in begun:
            if exchange.is_open:
                self._backend.begin(exchange)
        self.flush()
        if self._engine.is_over() and not self._wire.is_closed:
            self._connection.note("protocol_error", {"error": "the engine ended the connection"})
            self._wire.close()

    def writable(self) -> None:
        self.flush()

    def lost(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._release()

    # From the exchange.

    def exchange_ended(self, exchange: Exchange) -> None:
        stream = exchange.stream or 0
        self._streams.pop(stream, None)
        unread = exchange.body.uncredited
        if unread:
            self._credit(stream, unread)
        if exchange.outcome == "complete" and not exchange.body.complete and exchange.unread_code is not None:
            # RFC 9113, 8.1: the answer is complete, the rest of the request is not wanted
            self._engine.reset(stream, exchange.unread_code)
            self._plan_flush()
        if not self._streams:
            self._arm_idle()
            if self._closing:
                self._loop.call_soon(self._close_if_done)

    def send_whole(self, exchange: Exchange, answer: Answer) -> None:
        assert isinstance(answer.body, bytes)
        headers = answer.headers
        status = answer.status
        if status != 204 and not any(name.lower() == "content-length" for name, _ in headers):
            headers = [*headers, ("content-length", str(len(answer.body)))]
        body = b"" if exchange.method == "HEAD" or status in (204, 304) else answer.body
        stream = exchange.stream or 0
        self.send_head(exchange, status, headers, end=not body)
        if body:
            self._engine.send(stream, body, end=True)
        exchange.bytes_sent += len(body)
        exchange.events_sent += 1
        self.end_when_sent(exchange)

    def send_head(self, exchange: Exchange, status: int, headers: HeaderList, *, end: bool) -> None:
        self._engine.respond(exchange.stream or 0, _raw(status, headers), end=end)
        exchange.status = status
        exchange.first_byte = time.monotonic()
        self._plan_flush()

    def send_informational(self, exchange: Exchange, status: int, headers: HeaderList) -> None:
        self._engine.inform(exchange.stream or 0, _raw(status, headers))
        self._plan_flush()

    async def send_data(self, exchange: Exchange, chunk: bytes) -> None:
        stream = exchange.stream or 0
        self._engine.send(stream, chunk, end=False)
        exchange.bytes_sent += len(chunk)
        exchange.events_sent += 1
        self._plan_flush()
        while (
            exchange.is_open
            and not self._wire.is_closed
            and (self._wire.is_full or self._engine.queued(stream) > _ROOM)
        ):
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(future)
            await future

    def send_end(self, exchange: Exchange, trailers: HeaderList) -> None:
        if trailers:
            self._engine.trail(exchange.stream or 0, [(n.lower().encode(), v.encode("latin-1")) for n, v in trailers])
        else:
            self._engine.send(exchange.stream or 0, b"", end=True)
        self.end_when_sent(exchange)

    def end_when_sent(self, exchange: Exchange) -> None:
        """Finish the exchange as soon as nothing of its body waits in the engine."""
        self._ending.append(exchange)
        self._plan_flush()

    # From faults and tests.

    def reset(self, exchange: Exchange, code: int) -> None:
        self._engine.reset(exchange.stream or 0, code)
        exchange.finish("server_reset", reset_code=code)
        self.flush()

    def goaway(self, code: int, last_stream: int | None, *, debug: bytes) -> None:
        last = self._highest if last_stream is None else last_stream
        self.write_raw(frames.goaway(last, code, debug))
        self._accepts_up_to = min(self._accepts_up_to, last)
        for stream, exchange in tuple(self._streams.items()):
            if stream > last:
                exchange.leave("refused_by_goaway")

    def change_settings(self, settings: Mapping[int, int]) -> None:
        self._engine.change_settings(settings)
        self.flush()

    def ping(self) -> None:
        self._engine.ping()
        self.flush()

    def write_raw(self, data: bytes) -> None:
        self.flush()
        self._watch(data)
        self._wire.write(data)

    def finish_then_close(self) -> None:
        """Close the connection when the streams that are open have ended."""
        self._closing = True
        if not self._streams:
            self._close_if_done()

    def flush(self) -> None:
        """Send what the engine has, unless the wire is full or held back by a fault."""
        self._flush_planned = False
        if self._held:
            return
        if not (self._wire.is_full or self._wire.is_closed):
            data = self._engine.take()
            if data:
                self._wire.write(self._watch(data))
        if self._ending:
            self._finish_sent()
        self._release()

    # Inside.

    def _take(self, event: Event, begun: list[Exchange]) -> None:
        if isinstance(event, RequestHead):
            self._open(event, begun)
        elif isinstance(event, BodyBytes):
            exchange = self._streams.get(event.stream)
            if exchange is None:
                self._engine.credit(event.stream, len(event.data))
                return
            if event.data:
                exchange.body.feed(event.data)
            if event.end:
                exchange.body.finish()
        elif isinstance(event, RequestTrailers):
            if event.stream in self._streams:
                self._streams[event.stream].body.finish()
        elif isinstance(event, StreamOver):
            if event.by_client:
                self._backend.log._event("rst_received", self._connection.id, event.stream, event.code)
            exchange = self._streams.get(event.stream)
            if exchange is not None:
                exchange.leave("client_reset" if event.by_client else "server_reset", reset_code=event.code)
        else:
            self._note(event)

    def _note(self, event: Happened) -> None:
        self._backend.log._event(event.kind, self._connection.id, event.stream, event.code, event.detail)

    def _open(self, event: RequestHead, begun: list[Exchange]) -> None:
        self._highest = max(self._highest, event.stream)
        if event.stream > self._accepts_up_to:
            return  # RFC 9113, 6.8: not processed, and the client knows it
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        pseudo: dict[bytes, str] = {}
        headers: HeaderList = []
        for name, value in event.headers:
            if name.startswith(b":"):
                pseudo[name] = value.decode("latin-1")
            else:
                headers.append((name.decode("latin-1"), value.decode("latin-1")))
        body = Body(self._options.keep_body)
        output = Http2Output(self)
        exchange = self._connection.exchange(
            stream=event.stream,
            protocol=self.name,
            method=pseudo.get(b":method", ""),
            target=pseudo.get(b":path", ""),
            authority=pseudo.get(b":authority", ""),
            headers=headers,
            body=body,
            output=output,
        )
        output.exchange = exchange
        body.consumed = lambda size: self._credit(event.stream, size)
        self._streams[event.stream] = exchange
        if event.end:
            body.finish()
        begun.append(exchange)
        if self._options.max_requests_per_connection == exchange.number:
            self.goaway(0, event.stream, debug=b"")
            self.finish_then_close()

    def _credit(self, stream: int, size: int) -> None:
        self._engine.credit(stream, size)
        self._plan_flush()

    def _finish_sent(self) -> None:
        sent = [e for e in self._ending if not e.is_open or self._engine.queued(e.stream or 0) == 0]
        if sent:
            self._ending = [e for e in self._ending if e not in sent]
            for exchange in sent:
                exchange.finish("complete")

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self.flush)

    def _unhold(self) -> None:
        self._held = False
        self.flush()

    def _close_if_done(self) -> None:
        self.flush()
        if not self._streams and not self._wire.is_closed:
            self._wire.close()

    def _arm_idle(self) -> None:
        seconds = self._options.keep_alive_timeout
        if seconds is not None and self._idle is None:
            self._idle = self._loop.call_later(seconds, self._end_idle)

    def _end_idle(self) -> None:
        self.goaway(0, None, debug=b"idle")
        self.finish_then_close()

    def _release(self) -> None:
        futures, self._waiting = self._waiting, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    def _watch(self, data: bytes) -> bytes:
        """Log the control frames among those to be sent; returns them without the ones that a fault forbids."""
        dropped: list[tuple[int, int]] = []
        for kind, flags, stream, start, end in frames.split(data):
            if kind in (frames.DATA, frames.HEADERS):
                continue
            acks = bool(flags & frames.ACK)
            if self._is_forbidden(kind, acks):
                dropped.append((start, end))
            elif kind in _KINDS and not (kind == frames.SETTINGS and acks):
                self._log_sent(kind, stream, data[start + 9 : end], acks=acks)
        for start, end in reversed(dropped):
            data = data[:start] + data[end:]
        return data

    def _is_forbidden(self, kind: int, acks: bool) -> bool:
        drop = self._connection.plan.drop
        return bool(drop) and (
            (kind == frames.WINDOW_UPDATE and "WINDOW_UPDATE" in drop)
            or (kind == frames.PING and acks and "PING_ACK" in drop)
            or (kind == frames.SETTINGS and acks and "SETTINGS_ACK" in drop)
        )

    def _log_sent(self, kind: int, stream: int, payload: bytes, *, acks: bool) -> None:
        if len(payload) < _SHORTEST.get(kind, 0):
            return  # forged
        code: int | None = None
        detail: dict[str, object] = {}
        name = _KINDS[kind]
        if kind == frames.RST_STREAM:
            code = int.from_bytes(payload, "big")
        elif kind == frames.GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            detail = {"last_stream": last, "debug": payload[8:].decode("latin-1")}
        elif kind == frames.WINDOW_UPDATE:
            detail = {"increment": int.from_bytes(payload, "big")}
        elif kind == frames.SETTINGS:
            detail = {"settings": dict(struct.iter_unpack(">HI", payload[: len(payload) // 6 * 6]))}
        elif acks:
            name = "ping_answered"
        self._backend.log._event(name, self._connection.id, stream or None, code, detail)


class Http2Output:
    """The plain way out of one exchange."""

    exchange: Exchange

    def __init__(self, codec: Http2) -> None:
        self._codec = codec

    async def informational(self, status: int, headers: HeaderList) -> None:
        self._codec.send_informational(self.exchange, status, headers)

    async def head(self, status: int, headers: HeaderList) -> None:
        if self.exchange.head_pace is not None:
            await asyncio.sleep(self.exchange.head_pace[1])
        self._codec.send_head(self.exchange, status, headers, end=False)

    async def data(self, chunk: bytes) -> None:
        if chunk:
            await self._codec.send_data(self.exchange, chunk)

    async def end(self, trailers: HeaderList) -> None:
        self._codec.send_end(self.exchange, trailers)


def _raw(status: int, headers: HeaderList) -> list[tuple[bytes, bytes]]:
    raw = [(b":status", b"%d" % status)]
    for name, value in headers:
        lowered = name.lower()
        if lowered not in _HOP_BY_HOP:
            raw.append((lowered.encode("latin-1"), value.encode("latin-1")))
    return raw
