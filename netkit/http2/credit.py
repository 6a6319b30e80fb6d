"""What a server may send: windows that open as callers read, and stay shut while this process holds too much.

Rules of this file:

- Small answers cost nothing here: a stream's window is held at its first bytes, unless one read may bring more than
  half of it; then before the first byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netkit.http2.exchange import Stream

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["Credit"]


class Credit:
    """One connection's. `early`: windows are held from the start; `fresh` are the streams whose turn that is;
    `starved`: the connection's own window is held."""

    __slots__ = ("_connection", "early", "fresh", "starved")

    def __init__(self, connection: Connection, early: bool) -> None:
        self._connection = connection
        self.early = early
        self.fresh: list[Stream] = []
        self.starved = False

    def hold_fresh(self) -> None:
        """Hold the windows of the streams whose requests have just left."""
        connection = self._connection
        for stream in self.fresh:
            if stream.stream_id in connection.streams:
                connection.machine.hold_stream(stream.stream_id)
                stream.held = True
        self.fresh.clear()

    def arrived(self, stream: Stream, size: int) -> None:
        """`size` bytes lie unread for a held stream."""
        connection = self._connection
        budget = connection.pool.budget
        stream.unread += size
        budget.unread += size
        if not self.starved and budget.exceeded():
            self.starved = True
            connection.machine.hold_connection()
            budget.starve(connection)

    def consumed(self, stream: Stream, size: int) -> None:
        """The caller took `size` bytes of a held stream: give the credit back once it is half a window."""
        connection = self._connection
        stream.unread -= size
        budget = connection.pool.budget
        budget.unread -= size
        if budget.starved:
            budget.feed()
        if stream.ended or stream.left or connection.closed:
            return
        stream.credit += size
        window = connection.pool.options.stream_window
        if stream.credit * 2 >= window and connection.machine.refill_stream(
            stream.stream_id, max(0, window - stream.unread)
        ):
            stream.credit = 0
            connection.schedule_flush()

    def unstarve(self) -> None:
        """The process has room again."""
        connection = self._connection
        self.starved = False
        if not connection.closed:
            connection.machine.release_connection()
            connection.schedule_flush()

    def __repr__(self) -> str:
        return f"<Credit {'starved' if self.starved else 'open'}>"
