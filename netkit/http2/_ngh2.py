"""The protocol machine on ngh2 (libnghttp2 bindings): the fast one.

Rules of this file:

- ngh2 has one switch for receive windows: all by itself, or all by acknowledgement. Held windows are made of its
  automatic mode: a local window target of zero makes libnghttp2 owe a reduction that no WINDOW_UPDATE can exceed,
  raising the target for a moment pays out exactly the difference.
"""

from __future__ import annotations

from typing import Any, Final

import ngh2

from netkit.http2.protocol import Code, Headers, MachineError, Sink

__all__ = ["Ngh2Machine"]

_LARGE: Final = 1 << 20
_Data, _Head, _Closed = ngh2.DataReceived, ngh2.ResponseReceived, ngh2.StreamClosed


class Ngh2Machine:
    """See `netkit.http2.protocol.Machine`."""

    __slots__ = (
        "_connection",
        "_events",
        "_failed",
        "_held",
        "_initial_window",
        "_max_frame_size",
        "_max_header_list",
        "_max_streams",
        "_output",
        "_receive",
        "_request",
        "_stream_window",
        "_window",
        "name",
    )

    def __init__(
        self,
        *,
        stream_window: int,
        connection_window: int,
        max_frame_size: int,
        max_streams: int,
        max_header_list: int,
    ) -> None:
        self.name = "ngh2"
        self._stream_window = stream_window
        # Held before the server has acknowledged our SETTINGS, a stream would be given the difference to 65,535 in
        # automatic mode when the acknowledgement comes. Such windows are granted stream by stream instead.
        self._initial_window = 65535 if 65535 < stream_window < _LARGE else stream_window
        self._window = connection_window
        self._max_frame_size = max_frame_size
        self._max_header_list = max_header_list
        self._max_streams = max_streams
        self._held: set[int] = set()
        self._failed = False
        self._connection: Any = ngh2.Connection(
            ngh2.Role.CLIENT,
            ngh2.Configuration(
                peer_max_concurrent_streams=max_streams,
                max_inbound_header_list_size=max_header_list,
                # 64 KiB of headers fit into four full frames; libnghttp2 also counts partial reads.
                max_continuations=32,
                max_send_header_block_length=1 << 20,
            ),
        )
        self._receive = self._connection.receive_data
        self._events = self._connection.events
        self._output = self._connection.data_to_send
        self._request = self._connection.send_request

    def start(self) -> None:
        self._connection.initiate_connection(
            {
                ngh2.Setting.ENABLE_PUSH: 0,
                ngh2.Setting.INITIAL_WINDOW_SIZE: self._initial_window,
                ngh2.Setting.MAX_FRAME_SIZE: self._max_frame_size,
                ngh2.Setting.MAX_HEADER_LIST_SIZE: self._max_header_list,
            }
        )
        self._connection.set_local_window_size(self._window)

    def request(self, headers: Headers, end: bool) -> int:
        try:
            stream_id: int = self._request(headers, end_stream=end)
        except ngh2.NGH2Error as error:
            raise MachineError(str(error)) from error
        return stream_id

    def send(self, stream_id: int, data: bytes, end: bool) -> None:
        try:
            self._connection.send_data(stream_id, data, end_stream=end)
        except ngh2.NGH2Error as error:
            raise MachineError(str(error)) from error

    def queued(self, stream_id: int) -> int:
        return 0 if self._failed else int(self._connection.queued_body_size(stream_id))

    def blocked(self, stream_id: int) -> bool:
        connection = self._connection
        try:
            return bool(connection.queued_body_size(stream_id)) and (
                connection.remote_window_size <= 0 or connection.stream_remote_window_size(stream_id) <= 0
            )
        except ngh2.NGH2Error:
            return False

    def reset(self, stream_id: int, code: int) -> None:
        self._held.discard(stream_id)
        try:
            self._connection.reset_stream(stream_id, code)
        except ngh2.NGH2Error:
            pass  # terminating or failed: every stream is already being told

    def ping(self, payload: bytes) -> None:
        try:
            self._connection.ping(payload)
        except ngh2.NGH2Error as error:
            raise MachineError(str(error)) from error

    def goaway(self, code: int) -> None:
        try:
            self._connection.send_goaway(code, last_stream_id=0)
        except ngh2.NGH2Error:
            pass  # a failed session can say nothing more

    def receive(self, data: bytes | bytearray | memoryview, sink: Sink) -> None:
        error: BaseException | None = None
        try:
            self._receive(data)
        except ngh2.NGH2Error as failure:
            error = failure
            self._failed = True
        self._dispatch(sink)
        if error is not None:
            calm = isinstance(error, ngh2.DenialOfServiceError)
            raise MachineError(str(error), Code.ENHANCE_YOUR_CALM if calm else Code.PROTOCOL_ERROR) from error

    def output(self, limit: int, sink: Sink) -> bytes:
        if self._failed:
            return b""
        try:
            data: bytes = self._output(limit)
        except ngh2.NGH2Error as error:
            self._failed = True
            raise MachineError(str(error)) from error
        self._dispatch(sink)
        return data

    def _dispatch(self, sink: Sink) -> None:
        events: list[Any] = self._events()
        for event in events:
            kind = type(event)
            if kind is _Data:
                sink.on_data(event.stream_id, event.data, event.end_stream)
            elif kind is _Head:
                sink.on_head(event.stream_id, event.headers, event.end_stream)
            elif kind is _Closed:
                if event.error_code or self._held:
                    self._closed(event, sink)
            else:
                self._rare(kind, event, sink)

    def _closed(self, event: Any, sink: Sink) -> None:
        stream_id, code = event.stream_id, event.error_code
        if self._held:
            self._held.discard(stream_id)
        if event.local_error is not None:
            sink.on_broken(stream_id, code or Code.INTERNAL_ERROR, str(event.local_error))
        elif code:
            # A reset by the peer was told before; what is left are rules that libnghttp2 itself enforces.
            sink.on_broken(stream_id, code, "the response breaks HTTP/2 message rules")

    def _rare(self, kind: type, event: Any, sink: Sink) -> None:
        if kind is ngh2.WindowUpdated:
            sink.on_window(event.stream_id)
        elif kind is ngh2.StreamReset:
            sink.on_reset(event.stream_id, event.error_code)
        elif kind is ngh2.TrailersReceived:
            sink.on_trailers(event.stream_id, event.headers)
        elif kind is ngh2.InformationalResponseReceived:
            sink.on_informational(event.stream_id, event.headers)
        elif kind is ngh2.SettingsReceived:
            sink.on_settings(event.settings.get(3))
        elif kind is ngh2.SettingsAcknowledged:
            for stream_id in tuple(self._held):
                self._target(stream_id, 0)  # the new initial window has just been added to it
            sink.on_settings_ack()
        elif kind is ngh2.PingReceived:
            sink.on_ping()
        elif kind is ngh2.PingAcknowledged:
            sink.on_pong(event.opaque_data)
        elif kind is ngh2.GoAwayReceived:
            sink.on_goaway(event.last_stream_id, event.error_code, event.debug_data)
        elif kind is ngh2.ConnectionClosed:
            sink.on_terminated(event.error_code)
        elif kind is ngh2.PushedStreamReceived:
            self.reset(event.promised_stream_id, Code.REFUSED_STREAM)

    def wants_write(self) -> bool:
        return not self._failed and bool(self._connection.want_write)

    def hold_stream(self, stream_id: int) -> None:
        if self._initial_window < self._stream_window and stream_id not in self._held:
            self._target(stream_id, self._stream_window)
        self._held.add(stream_id)
        self._target(stream_id, 0)

    def refill_stream(self, stream_id: int, size: int) -> bool:
        if stream_id not in self._held:
            return True
        # libnghttp2 grants nothing below half of the target, nor while an earlier grant waits to leave; and it counts
        # what it has got of a frame that it has not handed out yet.
        before = self._credit(stream_id)
        self._target(stream_id, size)
        self._target(stream_id, 0)
        return self._credit(stream_id) > before

    def _credit(self, stream_id: int) -> int:
        """Bytes that the peer may still send on a stream."""
        try:
            return int(self._connection.stream_local_window_size(stream_id))
        except ngh2.NGH2Error:
            return 0

    def hold_connection(self) -> None:
        self._target(0, 0)

    def release_connection(self) -> None:
        self._target(0, self._window)

    def _target(self, stream_id: int, size: int) -> None:
        try:
            self._connection.set_local_window_size(size, stream_id=stream_id)
        except ngh2.NGH2Error:
            self._held.discard(stream_id)  # the stream has ended on the wire, or the connection with it

    def connection_credit(self) -> int:
        return 0 if self._failed else int(self._connection.local_window_size)

    def __repr__(self) -> str:
        return f"<Ngh2Machine {'failed' if self._failed else 'live'} held={len(self._held)}>"
