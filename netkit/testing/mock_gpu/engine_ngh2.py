"""The HTTP/2 engine on ngh2 (libnghttp2)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import ngh2

from .engines import BodyBytes, EngineError, Event, Happened, RawHeaders, RequestHead, RequestTrailers, StreamOver

__all__ = ["Ngh2Engine"]

_DEFAULT_WINDOW = 65_535
_GONE = (ngh2.StreamProtocolError, ngh2.ConnectionClosingError, ngh2.ConnectionStateError)
"""The stream or the whole connection has ended, perhaps in the very bytes that are being read."""


class Ngh2Engine:
    """See `engines.Engine`."""

    def __init__(self) -> None:
        config = ngh2.Configuration(
            auto_window_update=False,
            max_send_header_block_length=16 * 1024 * 1024,
            # A benchmark's client cancels in storms; that is what the mock is there to see.
            stream_reset_rate_limit=(1_000_000, 1_000_000),
        )
        self._connection = ngh2.Connection(ngh2.Role.SERVER, config)

    def start(self, settings: Mapping[int, int], connection_window: int) -> None:
        self._connection.initiate_connection(dict(settings))
        if connection_window > _DEFAULT_WINDOW:
            self._connection.set_local_window_size(connection_window)

    def receive(self, data: bytes) -> list[Event]:
        try:
            self._connection.receive_data(data)
        except ngh2.NGH2Error as error:
            raise EngineError(str(error)) from error
        events: list[Event] = []
        for event in self._connection.events():
            translated = _translate(event)
            if translated is not None:
                events.append(translated)
        return events

    def take(self) -> bytes:
        try:
            return bytes(self._connection.data_to_send())
        except ngh2.NGH2Error:
            return b""

    def respond(self, stream: int, headers: RawHeaders, *, end: bool) -> None:
        try:
            self._connection.send_response(stream, headers, end_stream=end)
        except _GONE:
            return

    def inform(self, stream: int, headers: RawHeaders) -> None:
        try:
            self._connection.send_informational_response(stream, headers)
        except _GONE:
            return

    def send(self, stream: int, data: bytes, *, end: bool) -> None:
        try:
            if data:
                self._connection.send_data(stream, data, end_stream=end)
            elif end:
                self._connection.end_stream(stream)
        except _GONE:
            return

    def trail(self, stream: int, headers: RawHeaders) -> None:
        try:
            self._connection.send_trailers(stream, headers)
        except _GONE:
            return

    def reset(self, stream: int, code: int) -> None:
        try:
            self._connection.reset_stream(stream, code)
        except _GONE:
            return

    def ping(self) -> None:
        with suppress(*_GONE):
            self._connection.ping(b"netkit!!")

    def change_settings(self, settings: Mapping[int, int]) -> None:
        with suppress(*_GONE):
            self._connection.update_settings(dict(settings))

    def credit(self, stream: int, size: int) -> None:
        try:
            self._connection.acknowledge_received_data(size, stream)
        except _GONE:
            return
        except ValueError:
            return  # the client reset the stream: what was unread then has been returned with it

    def is_over(self) -> bool:
        return not (self._connection.want_read or self._connection.want_write)

    def queued(self, stream: int) -> int:
        try:
            return self._connection.queued_body_size(stream)
        except _GONE:
            return 0


def _translate(event: ngh2.Event) -> Event | None:
    if isinstance(event, ngh2.RequestReceived):
        return RequestHead(event.stream_id, event.headers, event.end_stream)
    if isinstance(event, ngh2.DataReceived):
        return BodyBytes(event.stream_id, event.data, event.end_stream)
    if isinstance(event, ngh2.TrailersReceived):
        return RequestTrailers(event.stream_id)
    if isinstance(event, ngh2.StreamReset):
        return StreamOver(event.stream_id, event.error_code, True)
    if isinstance(event, ngh2.StreamClosed):
        # Also after every ordinary end: the exchange has ended by then, and nothing happens.
        return StreamOver(event.stream_id, event.error_code, False) if event.error_code else None
    if isinstance(event, ngh2.SettingsReceived):
        return Happened("settings_received", detail={"settings": dict(event.settings)})
    if isinstance(event, ngh2.SettingsAcknowledged):
        return Happened("settings_acked")
    if isinstance(event, ngh2.PingReceived):
        return Happened("ping_received", detail={"data": event.opaque_data.hex()})
    if isinstance(event, ngh2.PingAcknowledged):
        return Happened("ping_acked", detail={"data": event.opaque_data.hex()})
    if isinstance(event, ngh2.WindowUpdated):
        return Happened("window_received", event.stream_id, detail={"increment": event.increment})
    if isinstance(event, ngh2.GoAwayReceived):
        detail: dict[str, object] = {"last_stream": event.last_stream_id, "debug": event.debug_data.decode("latin-1")}
        return Happened("goaway_received", code=event.error_code, detail=detail)
    return None
