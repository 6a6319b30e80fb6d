"""What a server says on one connection, frame by frame, and what follows for its streams (the machine's `Sink`).

Rules of this file:

- Frames for a stream that is not among the connection's `streams` are ignored, save that they may be too many.
- Whatever costs us and carries nothing is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netkit.errors import FailureKind, Verdict
from netkit.http2.flood import FloodGuard
from netkit.http2.protocol import Code, Headers, MachineError

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["Frames"]


class Frames:
    """One connection's ear."""

    __slots__ = ("_connection", "_credit", "_flood", "_streams")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._credit = connection.credit
        self._flood = FloodGuard()
        self._streams = connection.streams

    def on_head(self, stream_id: int, headers: Headers, end: bool) -> None:
        connection = self._connection
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        # RFC 9113 section 8.3: pseudo-headers come first, and a response has only :status.
        fields = list(headers)
        stream.status = int(fields.pop(0)[1])
        stream.headers = fields
        if end:
            connection.complete(stream)
        else:
            stream.wake()

    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        connection = self._connection
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if data:
            stream.chunks.append(data)
        elif not end:
            self._flood.count()
        if end:
            if stream.held:
                self._credit.arrived(stream, len(data))
            connection.complete(stream)
            return
        if not stream.held:
            stream.held = True
            connection.machine.hold_stream(stream_id)
        self._credit.arrived(stream, len(data))
        stream.wake()

    def on_trailers(self, stream_id: int, headers: Headers) -> None:
        connection = self._connection
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.trailers = list(headers)
            connection.complete(stream)

    def on_informational(self, stream_id: int, headers: Headers) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._flood.count()
            if stream.informational is None:
                stream.informational = []
            stream.informational.append((int(headers[0][1]), list(headers[1:])))

    def on_reset(self, stream_id: int, code: int) -> None:
        connection = self._connection
        connection.pool.counters.resets_received += 1
        stream = self._streams.get(stream_id)
        if stream is None:
            self._flood.count()
            return
        if code == Code.HTTP_1_1_REQUIRED and not stream.status:
            connection.remove(stream)
            connection.pool.fall_back(stream, "http_1_1_required")
        elif code == Code.REFUSED_STREAM:
            verdict = Verdict.PROCESSED if stream.status else Verdict.REFUSED
            connection.lose(stream, FailureKind.REFUSED, verdict, "the server refused the stream", code=code)
        else:
            if code == Code.ENHANCE_YOUR_CALM:
                connection.pool.calm()
            verdict = Verdict.PROCESSED if stream.status else Verdict.AMBIGUOUS
            message = f"the server reset the stream: {Code.name(code)}"
            connection.lose(stream, FailureKind.RESET, verdict, message, code=code)
        connection.freed()

    def on_broken(self, stream_id: int, code: int, message: str) -> None:
        connection = self._connection
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if connection.draining and code == Code.REFUSED_STREAM and not stream.status:
            connection.lose(stream, FailureKind.REFUSED, Verdict.REFUSED, "the server is going away", code=code)
        else:
            short = bool(stream.status) and stream.header(b"content-length") is not None
            kind = FailureKind.BODY if short else FailureKind.PROTOCOL
            if short:
                message = "the body does not have the length that content-length announced"
            verdict = Verdict.PROCESSED if stream.status else Verdict.AMBIGUOUS
            connection.lose(stream, kind, verdict, message, code=code)
        connection.freed()

    def on_settings(self, max_streams: int | None) -> None:
        connection = self._connection
        self._flood.count()
        if max_streams is not None:
            connection.peer_limit = max_streams
        first, connection.settled = not connection.settled, True
        if not connection.draining:
            connection.limit = connection.expected = connection.pool.expected_streams = min(
                connection.pool.options.max_streams, connection.peer_limit
            )
            if first:
                connection.pool.settled(connection)
            elif connection.pool.waiting:
                connection.pool.dispatch()

    def on_settings_ack(self) -> None:
        pass

    def on_ping(self) -> None:
        self._flood.count()

    def on_pong(self, payload: bytes) -> None:
        self._connection.alive.answered()

    def on_window(self, stream_id: int) -> None:
        connection = self._connection
        if connection.uploading:
            connection.schedule_flush()

    def on_goaway(self, last_stream_id: int, code: int, reason: bytes) -> None:
        connection = self._connection
        connection.pool.counters.goaways += 1
        said = reason[:200].decode("utf-8", "replace")
        connection.pool.emit(
            "goaway",
            connection=connection.connection_id,
            last_stream_id=last_stream_id,
            code=code,
            reason=f"{Code.name(code)}: {said}" if said else Code.name(code),
        )
        if code == Code.ENHANCE_YOUR_CALM:
            connection.pool.calm()
        connection.broken = MachineError(f"the server is going away: {Code.name(code)}", code)
        connection.drain("goaway")
        for stream_id in sorted((sid for sid in self._streams if sid > last_stream_id), reverse=True):
            stream = self._streams.get(stream_id)
            if stream is not None:
                verdict = Verdict.PROCESSED if stream.status else Verdict.REFUSED
                connection.lose(stream, FailureKind.REFUSED, verdict, "the server is going away", code=code)
        connection.freed()

    def on_terminated(self, code: int) -> None:
        connection = self._connection
        if connection.closed:
            return
        if connection.broken is None and code:
            connection.broken = MachineError(f"HTTP/2 protocol error: {Code.name(code)}", code)
        # Its last bytes (a GOAWAY) are being written by the caller of output().
        connection.draining = True
        connection.limit = connection.expected = 0
        connection.loop.call_soon(connection.terminate)

    def __repr__(self) -> str:
        return f"<Frames of {self._connection!r}>"
