"""Whether a connection still lives: PING while streams wait in silence, and a look before it is used again."""

from __future__ import annotations

import select
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from netkit.http2.protocol import MachineError

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["KeepAlive"]

_STALE_AFTER: Final = 0.05
"""Seconds since the last read within which an idle connection is taken to live."""


class KeepAlive:
    """One connection's. `sent` is when the PING left that has not been answered; 0.0: there is none."""

    __slots__ = ("_connection", "_poll", "sent")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poll: Any = None
        self.sent = 0.0

    def expired(self, now: float) -> float | None:
        """Keep-alive: PING only while streams are open and nothing was read; and the end of an idle connection.
        Seconds until the next look; None: no more."""
        connection = self._connection
        if connection.closed:
            return None
        if not connection.open:
            return connection.pool.idle_expired(connection, now)
        interval = connection.pool.ping_interval
        if interval is None:
            return None
        if self.sent and connection.last_read < self.sent:
            left = self.sent + connection.pool.options.ping_timeout - now
            if left > 0:
                return left
            connection.die(TimeoutError("PING was not answered"))
            return None
        quiet = now - connection.last_read
        if quiet < interval:
            return min(interval - quiet, connection.pool.watch_interval)
        self.sent = monotonic()
        try:
            connection.machine.ping(b"netkit\0\0")
            connection.flush()
        except MachineError as error:
            connection.fail_protocol(error)
            return None
        return connection.pool.options.ping_timeout

    def answered(self) -> None:
        """A PING has come back."""
        pool = self._connection.pool
        if self.sent:
            pool.counters.ping_rtt = monotonic() - self.sent
            pool.emit("ping", connection=self._connection.connection_id, rtt=pool.counters.ping_rtt)
            self.sent = 0.0

    def is_fresh(self) -> bool:
        """Whether an idle connection was read from so lately, and is so young, that it is used without a look."""
        connection, now = self._connection, monotonic()
        return now - connection.last_read < _STALE_AFTER and now < connection.retire_at

    def stale(self) -> bool:
        """True when an idle connection has something to read that the loop has not seen yet: perhaps its end."""
        connection = self._connection
        if connection.open or monotonic() - connection.last_read < _STALE_AFTER or connection.transport is None:
            return False
        if self._poll is None:
            sock = connection.transport.get_extra_info("socket")
            if sock is None or not hasattr(select, "poll"):
                return False
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def __repr__(self) -> str:
        return f"<KeepAlive {'PING sent' if self.sent else 'quiet'}>"
