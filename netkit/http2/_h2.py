"""The protocol machine on h2 (pure Python): the fallback where ngh2 has no wheel.

Rules of this file:

- h2 treats some things as the end of the connection that RFC 9113 calls the end of a stream, or of nothing at all:
  a GOAWAY (streams up to last_stream_id still finish) and a wrong content-length. Both are overridden here.
- h2 queues no body bytes: this machine does, and frames them as the windows open, round robin over streams.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    PingReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import DenialOfServiceError, H2Error, ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream
from hyperframe.frame import RstStreamFrame

from netkit.http2.protocol import Code, Headers, MachineError, Sink

__all__ = ["H2Machine"]


class _Connection(H2Connection):
    """h2's connection, with GOAWAY and content-length scoped as the RFC scopes them."""

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]

    def _prepare_for_sending(self, frames: list[Any]) -> None:
        # RFC 9113 section 5.1: what still comes for a stream that was reset is ignored. h2 answers each such frame.
        late = ErrorCodes.STREAM_CLOSED
        super()._prepare_for_sending(
            [frame for frame in frames if not (isinstance(frame, RstStreamFrame) and frame.error_code == late)]
        )

    def _begin_new_stream(self, stream_id: int, allowed_ids: Any) -> H2Stream:
        stream = super()._begin_new_stream(stream_id, allowed_ids)
        stream._initialize_content_length = lambda headers: None  # type: ignore[method-assign]
        return stream


class _Body:
    """Queued request body of one stream."""

    __slots__ = ("chunks", "end", "size")

    def __init__(self) -> None:
        self.chunks: deque[memoryview] = deque()
        self.size = 0
        self.end = False


class H2Machine:
    """See `netkit.http2.protocol.Machine`."""

    def __init__(
        self,
        *,
        stream_window: int,
        connection_window: int,
        max_frame_size: int,
        max_streams: int,
        max_header_list: int,
    ) -> None:
        self.name = "h2"
        self._stream_window = stream_window
        self._window = connection_window
        config = H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._connection = _Connection(config)
        self._connection.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
                SettingCodes.MAX_FRAME_SIZE: max_frame_size,
                SettingCodes.MAX_HEADER_LIST_SIZE: max_header_list,
            },
        )
        self._connection.max_inbound_frame_size = max_frame_size
        self._connection.decoder.max_header_list_size = max_header_list
        self._bodies: dict[int, _Body] = {}
        self._held: set[int] = set()
        self._expected: dict[int, int] = {}
        self._heads: set[int] = set()
        self._connection_held = False
        self._failed = False
        self._dirty = False

    def start(self) -> None:
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(self._window - 65535)
        self._dirty = True

    def request(self, headers: Headers, end: bool) -> int:
        try:
            stream_id = self._connection.get_next_available_stream_id()
            self._connection.send_headers(stream_id, headers, end_stream=end)
        except H2Error as error:
            raise MachineError(str(error)) from error
        self._dirty = True
        if not end:
            self._bodies[stream_id] = _Body()
        if (b":method", b"HEAD") in headers:
            self._heads.add(stream_id)
        return stream_id

    def send(self, stream_id: int, data: bytes, end: bool) -> None:
        body = self._bodies.get(stream_id)
        if body is None or body.end:
            raise MachineError("stream has no open body")
        if data:
            body.chunks.append(memoryview(data))
            body.size += len(data)
        body.end = end
        self._dirty = True

    def queued(self, stream_id: int) -> int:
        body = self._bodies.get(stream_id)
        return 0 if body is None else body.size

    def blocked(self, stream_id: int) -> bool:
        return self.queued(stream_id) > 0 and self._room(stream_id) <= 0

    def _room(self, stream_id: int) -> int:
        try:
            return self._connection.local_flow_control_window(stream_id)
        except H2Error:
            return 0

    def _pump(self, limit: int) -> None:
        """Frame queued bodies, one frame per stream and round, until windows or `limit` stop it."""
        progress = True
        while progress and limit > 0:
            progress = False
            for stream_id, body in tuple(self._bodies.items()):
                size = min(self._room(stream_id), body.size, self._connection.max_outbound_frame_size)
                if size <= 0 and not (body.end and not body.size):
                    continue
                frame = self._take(body, size)
                end = body.end and not body.size
                try:
                    self._connection.send_data(stream_id, frame, end_stream=end)
                except H2Error:
                    del self._bodies[stream_id]  # closed under our hands: its owner is told by the event
                    continue
                limit -= size
                progress = True
                if end:
                    del self._bodies[stream_id]

    @staticmethod
    def _take(body: _Body, size: int) -> bytes:
        parts: list[memoryview] = []
        wanted = size
        while wanted:
            chunk = body.chunks[0]
            if len(chunk) <= wanted:
                parts.append(body.chunks.popleft())
                wanted -= len(chunk)
            else:
                parts.append(chunk[:wanted])
                body.chunks[0] = chunk[wanted:]
                wanted = 0
        body.size -= size
        return b"".join(parts)

    def reset(self, stream_id: int, code: int) -> None:
        self._forget(stream_id)
        try:
            self._connection.reset_stream(stream_id, code)
        except H2Error:
            pass  # already closed on the wire
        self._dirty = True

    def _forget(self, stream_id: int) -> None:
        self._bodies.pop(stream_id, None)
        self._held.discard(stream_id)
        self._expected.pop(stream_id, None)
        self._heads.discard(stream_id)

    def ping(self, payload: bytes) -> None:
        try:
            self._connection.ping(payload)
        except H2Error as error:
            raise MachineError(str(error)) from error
        self._dirty = True

    def goaway(self, code: int) -> None:
        try:
            self._connection.close_connection(code)
        except H2Error:
            pass  # closed already
        self._dirty = True

    def receive(self, data: bytes | bytearray | memoryview, sink: Sink) -> None:
        try:
            events = self._connection.receive_data(bytes(data))
        except (H2Error, ValueError) as error:
            self._failed = True
            code = Code.ENHANCE_YOUR_CALM if isinstance(error, DenialOfServiceError) else Code.PROTOCOL_ERROR
            if isinstance(error, ProtocolError) and error.error_code:
                code = int(error.error_code)
            raise MachineError(f"{type(error).__name__}: {error}", code) from error
        for event in events:
            self._dispatch(event, sink)
        connection = self._connection
        if not self._connection_held and connection.inbound_flow_control_window <= self._window // 2:
            connection.increment_flow_control_window(self._window - connection.inbound_flow_control_window)
        self._dirty = True

    def _dispatch(self, event: Event, sink: Sink) -> None:
        if isinstance(event, DataReceived):
            self._data(event, sink)
        elif isinstance(event, ResponseReceived):
            self._head(event, sink)
        elif isinstance(event, InformationalResponseReceived):
            sink.on_informational(event.stream_id or 0, event.headers or ())
        elif isinstance(event, TrailersReceived):
            if self._short(event.stream_id or 0, sink):
                return
            sink.on_trailers(event.stream_id or 0, event.headers or ())
        elif isinstance(event, StreamReset):
            stream_id = event.stream_id or 0
            self._forget(stream_id)
            sink.on_reset(stream_id, int(event.error_code or 0))
        elif isinstance(event, RemoteSettingsChanged):
            changed = event.changed_settings.get(SettingCodes.MAX_CONCURRENT_STREAMS)
            sink.on_settings(None if changed is None else changed.new_value)
        elif isinstance(event, SettingsAcknowledged):
            sink.on_settings_ack()
        elif isinstance(event, PingReceived):
            sink.on_ping()
        elif isinstance(event, PingAckReceived):
            sink.on_pong(event.ping_data or b"")
        elif isinstance(event, WindowUpdated):
            sink.on_window(event.stream_id or 0)
        elif isinstance(event, ConnectionTerminated):
            sink.on_goaway(event.last_stream_id or 0, int(event.error_code or 0), event.additional_data or b"")
        elif isinstance(event, StreamEnded):
            self._held.discard(event.stream_id or 0)
            self._heads.discard(event.stream_id or 0)

    def _head(self, event: ResponseReceived, sink: Sink) -> None:
        stream_id = event.stream_id or 0
        headers: Any = event.headers or ()
        end = event.stream_ended is not None
        if stream_id not in self._heads and (b":status", b"304") not in headers:
            for name, value in headers:
                if name == b"content-length":
                    self._expected[stream_id] = int(value) if value.isdigit() else -1
        if end and self._short(stream_id, sink):
            return
        sink.on_head(stream_id, headers, end)

    def _data(self, event: DataReceived, sink: Sink) -> None:
        stream_id, data = event.stream_id or 0, event.data or b""
        end = event.stream_ended is not None
        padding = (event.flow_controlled_length or 0) - len(data)
        if stream_id in self._expected:
            self._expected[stream_id] -= len(data)
            if self._expected[stream_id] < 0:
                self._broken(stream_id, sink)
                return
        if end and self._short(stream_id, sink):
            return
        if not end:
            self._credit(stream_id, padding if stream_id in self._held else 0)
        sink.on_data(stream_id, data, end)

    def _credit(self, stream_id: int, padding: int) -> None:
        """Stream credit for padding at once, and for data too while the stream is not held."""
        try:
            if padding:
                self._connection.increment_flow_control_window(padding, stream_id)
            elif stream_id not in self._held:
                room = self._connection._get_stream_by_id(stream_id).inbound_flow_control_window
                if room <= self._stream_window // 2:
                    self._connection.increment_flow_control_window(self._stream_window - room, stream_id)
        except (H2Error, KeyError):
            pass  # the stream has just ended

    def _short(self, stream_id: int, sink: Sink) -> bool:
        """True (and told) when the body ended before its content-length."""
        if self._expected.pop(stream_id, 0) == 0:
            return False
        self._broken(stream_id, sink)
        return True

    def _broken(self, stream_id: int, sink: Sink) -> None:
        self.reset(stream_id, Code.PROTOCOL_ERROR)
        sink.on_broken(stream_id, Code.PROTOCOL_ERROR, "the response breaks HTTP/2 message rules")

    def output(self, limit: int, sink: Sink) -> bytes:
        self._dirty = False
        if not self._failed:
            self._pump(limit)
        return self._connection.data_to_send()

    def wants_write(self) -> bool:
        return self._dirty

    def hold_stream(self, stream_id: int) -> None:
        self._held.add(stream_id)

    def refill_stream(self, stream_id: int, size: int) -> bool:
        if stream_id not in self._held:
            return True
        try:
            room = self._connection._get_stream_by_id(stream_id).inbound_flow_control_window
            if size > room:
                self._connection.increment_flow_control_window(size - room, stream_id)
                self._dirty = True
        except (H2Error, KeyError):
            self._held.discard(stream_id)
        return True

    def hold_connection(self) -> None:
        self._connection_held = True

    def release_connection(self) -> None:
        self._connection_held = False
        missing = self._window - self._connection.inbound_flow_control_window
        if missing > 0:
            self._connection.increment_flow_control_window(missing)
            self._dirty = True

    def connection_credit(self) -> int:
        return self._connection.inbound_flow_control_window

    def __repr__(self) -> str:
        return f"<H2Machine {'failed' if self._failed else 'live'} held={len(self._held)}>"
