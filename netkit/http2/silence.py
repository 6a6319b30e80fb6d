"""Read and write timeouts of all streams of one connection, checked together.

Rules of this file:

- A request costs one comparison here, not a timer: the streams are looked over every twentieth of the shortest
  limit among them (at least every 2 ms), which is how late a timeout can be.
- Only a caller that waits can time out. A slow producer of a body is not the server's silence.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING

from netkit.errors import FailureKind, TransportError
from netkit.http2.exchange import Stream

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["SilenceWatch"]


def _period(limit: float) -> float:
    return max(limit / 20, 0.002)


class SilenceWatch:
    """On the wheel while a stream of its connection has a limit."""

    __slots__ = ("_connection", "shortest", "timer")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.shortest = math.inf
        self.timer: float | None = None

    def start(self, stream: Stream) -> None:
        """A caller begins to wait for `stream`."""
        request = stream.request
        limit = request.read_timeout if stream.upload_done else request.write_timeout
        if limit is not None:
            stream.since = monotonic()
            if limit < self.shortest:
                self.watch(limit)

    def watch(self, limit: float) -> None:
        """A limit shorter than all others has come: look more often."""
        self.shortest = limit
        self._connection.pool.wheel.arm(self, _period(limit))

    def expired(self, now: float) -> float | None:
        """Look over the streams; end those whose silence has lasted too long."""
        shortest = math.inf
        for stream in list(self._connection.streams.values()):
            limit = self._check(stream, now)
            if limit is not None and limit < shortest:
                shortest = limit
        self.shortest = shortest
        return None if shortest == math.inf else _period(shortest)

    def _check(self, stream: Stream, now: float) -> float | None:
        request = stream.request
        uploading = not stream.upload_done
        limit = request.write_timeout if uploading else request.read_timeout
        if limit is None or stream.ended or stream.left:
            return None
        if not stream.waiting or (uploading and not stream.queued) or now - stream.since < limit:
            return limit
        kind = FailureKind.WRITE_TIMEOUT if uploading else FailureKind.READ_TIMEOUT
        message = f"nothing was {'sent' if uploading else 'received'} for {limit:g} s"
        connection = self._connection
        connection.pool.counters.timeouts += 1
        connection.give_up(stream, TransportError(message, kind=kind, verdict=connection.verdict(stream)))
        return None

    def __repr__(self) -> str:
        return f"<SilenceWatch {self.shortest:g} s>"
