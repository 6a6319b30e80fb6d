"""The HTTP/2 engine on h2 (pure Python): slower, and independent of the library that netkit's client runs on.

h2 does not hold bodies back for flow control, so they wait in this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from .engines import BodyBytes, EngineError, Event, Happened, RawHeaders, RequestHead, RequestTrailers, StreamOver

__all__ = ["H2Engine"]

_DEFAULT_WINDOW = 65_535
_Gone = (h2.exceptions.StreamClosedError, h2.exceptions.NoSuchStreamError, h2.exceptions.ProtocolError)


class _Queue:
    """What one stream has still to send."""

    __slots__ = ("end", "pieces", "size", "trailers")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.size = 0
        self.end = False
        self.trailers: RawHeaders | None = None


class H2Engine:
    """See `engines.Engine`."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._connection = h2.connection.H2Connection(config)
        self._queues: dict[int, _Queue] = {}

    def start(self, settings: Mapping[int, int], connection_window: int) -> None:
        self._connection.local_settings.update(dict(settings))
        self._connection.local_settings.acknowledge()
        self._connection.initiate_connection()
        if connection_window > _DEFAULT_WINDOW:
            self._connection.increment_flow_control_window(connection_window - _DEFAULT_WINDOW)

    def receive(self, data: bytes) -> list[Event]:
        try:
            received = self._connection.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            raise EngineError(str(error)) from error
        events: list[Event] = []
        for event in received:
            self._translate(event, events)
        return events

    def take(self) -> bytes:
        for stream, queue in tuple(self._queues.items()):
            try:
                self._send_queued(stream, queue)
            except _Gone:
                self._queues.pop(stream, None)
        return self._connection.data_to_send() or b""

    def respond(self, stream: int, headers: RawHeaders, *, end: bool) -> None:
        self._quietly(lambda: self._connection.send_headers(stream, headers, end_stream=end))

    def inform(self, stream: int, headers: RawHeaders) -> None:
        self._quietly(lambda: self._connection.send_headers(stream, headers))

    def send(self, stream: int, data: bytes, *, end: bool) -> None:
        queue = self._queues.setdefault(stream, _Queue())
        if data:
            queue.pieces.append(data)
            queue.size += len(data)
        queue.end = queue.end or end

    def trail(self, stream: int, headers: RawHeaders) -> None:
        queue = self._queues.setdefault(stream, _Queue())
        queue.trailers = headers
        queue.end = True

    def reset(self, stream: int, code: int) -> None:
        self._queues.pop(stream, None)
        self._quietly(lambda: self._connection.reset_stream(stream, code))

    def ping(self) -> None:
        self._quietly(lambda: self._connection.ping(b"netkit!!"))

    def change_settings(self, settings: Mapping[int, int]) -> None:
        self._quietly(lambda: self._connection.update_settings(dict(settings)))

    def credit(self, stream: int, size: int) -> None:
        if size:
            self._quietly(lambda: self._connection.acknowledge_received_data(size, stream))

    def is_over(self) -> bool:
        return False  # h2 raises instead

    def queued(self, stream: int) -> int:
        queue = self._queues.get(stream)
        return 0 if queue is None else max(queue.size, 1)

    def _send_queued(self, stream: int, queue: _Queue) -> None:
        while queue.pieces:
            room = min(self._connection.local_flow_control_window(stream), self._connection.max_outbound_frame_size)
            if room <= 0:
                return
            piece = queue.pieces.popleft()
            if len(piece) > room:
                queue.pieces.appendleft(piece[room:])
                piece = piece[:room]
            queue.size -= len(piece)
            last = queue.end and not queue.pieces and queue.trailers is None
            self._connection.send_data(stream, piece, end_stream=last)
            if last:
                self._queues.pop(stream, None)
                return
        if queue.trailers is not None:
            self._connection.send_headers(stream, queue.trailers, end_stream=True)
        elif queue.end:
            self._connection.end_stream(stream)
        self._queues.pop(stream, None)

    def _quietly(self, action: object) -> None:
        assert callable(action)
        try:
            action()
        except _Gone:
            return

    def _translate(self, event: h2.events.Event, events: list[Event]) -> None:
        if isinstance(event, h2.events.RequestReceived):
            headers = tuple((bytes(name), bytes(value)) for name, value in event.headers or ())
            events.append(RequestHead(event.stream_id or 0, headers, event.stream_ended is not None))
        elif isinstance(event, h2.events.DataReceived):
            padding = (event.flow_controlled_length or 0) - len(event.data or b"")
            self.credit(event.stream_id or 0, padding)
            events.append(BodyBytes(event.stream_id or 0, event.data or b"", event.stream_ended is not None))
        elif isinstance(event, h2.events.TrailersReceived):
            events.append(RequestTrailers(event.stream_id or 0))
        elif isinstance(event, h2.events.StreamReset):
            self._queues.pop(event.stream_id or 0, None)
            events.append(StreamOver(event.stream_id or 0, int(event.error_code or 0), bool(event.remote_reset)))
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            changed = {int(key): int(value.new_value) for key, value in event.changed_settings.items()}
            events.append(Happened("settings_received", detail={"settings": changed}))
        elif isinstance(event, h2.events.SettingsAcknowledged):
            events.append(Happened("settings_acked"))
        elif isinstance(event, h2.events.PingReceived):
            events.append(Happened("ping_received", detail={"data": (event.ping_data or b"").hex()}))
        elif isinstance(event, h2.events.PingAckReceived):
            events.append(Happened("ping_acked", detail={"data": (event.ping_data or b"").hex()}))
        elif isinstance(event, h2.events.WindowUpdated):
            events.append(Happened("window_received", event.stream_id, detail={"increment": event.delta or 0}))
        elif isinstance(event, h2.events.ConnectionTerminated):
            detail: dict[str, object] = {
                "last_stream": event.last_stream_id,
                "debug": (event.additional_data or b"").decode("latin-1"),
            }
            events.append(Happened("goaway_received", code=int(event.error_code or 0), detail=detail))
