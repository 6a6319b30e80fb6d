"""The request bodies of one connection on their way out (`upload` is one body's pump)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from netkit.http2.exchange import Stream
from netkit.http2.protocol import MachineError

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["Sending"]


class Sending:
    """Works on a connection's `uploading` (streams whose body is not sent yet) and `uploads` (the large ones)."""

    __slots__ = ("_connection", "_stalled")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stalled = False

    def progressed(self) -> None:
        """Something has left: ask bodies for more, note those that are sent."""
        connection = self._connection
        machine, now = connection.machine, monotonic()
        stalled = False
        for stream_id, stream in tuple(connection.uploading.items()):
            queued = machine.queued(stream_id)
            if queued != stream.queued:
                stream.queued = queued
                stream.since = now
            if stream.body_iter is None:
                if queued == 0:
                    self._sent(stream, now)
                    continue
            elif queued < 131072 and stream.pumping is not None:
                stream.pumping()
            stalled = stalled or (queued > 0 and machine.blocked(stream_id))
        if stalled and not self._stalled:
            connection.pool.counters.window_stalls += 1
            connection.pool.emit("window_stall", connection=connection.connection_id)
        self._stalled = stalled

    def _sent(self, stream: Stream, now: float) -> None:
        connection = self._connection
        stream.upload_done = True
        stream.since = now
        if connection.uploading.pop(stream.stream_id, None) is not None and stream.uploaded:
            connection.uploads -= 1
            stream.uploaded = 0
        if stream.waiting:
            connection.silence.start(stream)

    def register(self, stream: Stream) -> None:
        """This stream has a body to send."""
        connection = self._connection
        connection.uploading[stream.stream_id] = stream
        if stream.large:
            stream.uploaded = 1
            connection.uploads += 1

    def feed(self, stream: Stream, data: bytes, end: bool) -> None:
        """More of a streamed request body."""
        connection = self._connection
        if stream.ended or stream.left or stream.connection is not connection:
            return
        try:
            connection.machine.send(stream.stream_id, data, end)
        except MachineError:
            return  # closed on the wire in this very turn: the stream is about to be told
        stream.queued += len(data)
        if end:
            stream.body_iter = None
        connection.schedule_flush()

    def ended(self, stream: Stream) -> None:
        """This stream is gone before its body was sent."""
        connection = self._connection
        connection.uploading.pop(stream.stream_id, None)
        if stream.uploaded:
            connection.uploads -= 1
            stream.uploaded = 0
        pumping = stream.pumping
        stream.pumping = None
        if pumping is not None:
            stream.body_iter = None
            pumping.close()

    def __repr__(self) -> str:
        return f"<Sending {len(self._connection.uploading)} bodies>"
