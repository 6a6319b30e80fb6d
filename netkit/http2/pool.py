"""The connections of one key on one loop: who serves which request, who waits, who is let go.

Rules of this file:

- Decisions come from `choose`; this class only carries them out. `dialing` opens what it asks for.
- A waiting request is its own place in the queue: leaving or failing it removes it, so no wake-up can be lost.
- One dial at a time: a cold burst waits for one negotiation, then grows as fast as connections can be opened. Until a
  server's SETTINGS are here one request tries the connection, the others do not hang on its promise.
- Queues are first in, first out; what is sent again goes to the front.
"""

from __future__ import annotations

import math
import random
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from netkit.errors import FailureKind, PoolTimeout, QueueFull, TransportError, Verdict
from netkit.http2.choice import choose
from netkit.http2.connection import Connection
from netkit.http2.dial import dial_failure
from netkit.http2.dialing import Dialing
from netkit.http2.exchange import Stream
from netkit.http2.options import ConnectSpec, Http1Only
from netkit.http2.protocol import Machine, MachineError

if TYPE_CHECKING:
    from netkit.http2.reactor import Reactor

__all__ = ["Pool"]

_USUAL_STREAMS: Final = 100
"""What a server should allow at least (RFC 9113 section 6.5.2), and most do."""


class Pool:
    """Connections for one key. Called in its loop only."""

    def __init__(self, reactor: Reactor, key: Any, spec: ConnectSpec) -> None:
        self.reactor = reactor
        self.key = key
        self.spec = spec
        self.options = reactor.options
        self.loop = reactor.loop
        self.wheel = reactor.wheel
        self.buffer = reactor.buffer
        self.budget = reactor.budget
        self.counters = reactor.counters
        self.ping_interval = self.options.ping_interval
        self.connections: list[Connection] = []
        """Usable ones, oldest first."""
        self.retired: set[Connection] = set()
        self.waiting: deque[Stream] = deque()
        self.dialing = 0
        self.expected_streams = min(_USUAL_STREAMS, self.options.max_streams)
        """What a new connection will allow: what the last one did."""
        self.negotiated = False
        self.settled_at = 0.0
        self.closed = False
        self.dialer = Dialing(self)
        self._upload_size = self.options.upload_lane_size if self.options.upload_lane else math.inf
        self._recheck = False
        self._packed = self.options.distribution == "pack"

    def make_machine(self) -> Machine:
        """A protocol machine for a new connection."""
        options = self.options
        return self.reactor.factory(
            stream_window=options.stream_window,
            connection_window=options.connection_window,
            max_frame_size=options.max_frame_size,
            max_streams=options.max_streams,
            max_header_list=options.max_header_list,
        )

    def lifetime(self) -> float:
        """Seconds that a new connection may live, jittered."""
        lifetime = self.options.max_lifetime
        return math.inf if lifetime is None else lifetime * random.uniform(0.9, 1.0)

    @property
    def watch_interval(self) -> float:
        """Seconds after which a connection is looked at: is a PING due, has it been idle for too long?"""
        return min(self.ping_interval or math.inf, self.options.idle_timeout or math.inf)

    def emit(self, name: str, **details: Any) -> None:
        """Tell the engine's listener, if there is one."""
        listener = self.reactor.on_event
        if listener is not None:
            listener(name, {"key": self.key, **details})

    @property
    def in_use(self) -> bool:
        """Whether anything would be lost if it were forgotten."""
        return bool(self.connections or self.retired or self.waiting or self.dialing)

    # --- requests come in

    def submit(self, stream: Stream) -> None:
        """Start this request now, or queue it. Failures are told through the stream."""
        stream.pool = self
        if stream.body is not None:
            size = stream.request.size
            stream.large = size is not None and size > self._upload_size
        upload = stream.large
        if not self.waiting and not upload and self._packed:
            # What `choose` would say, without asking: the oldest with room, if it lives and has no large upload.
            for connection in self.connections:
                if connection.open < connection.limit:
                    if connection.uploads or not (connection.open or connection.alive.is_fresh()):
                        break
                    self._start(connection, stream)
                    return
        if self.closed:
            stream.end(TransportError("the engine is closed", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT))
            return
        self.waiting.append(stream)
        if upload or len(self.waiting) == 1 or not self._packed:
            self.dispatch()  # behind others there is nothing to decide before something changes
        if stream.connection is None and not stream.ended:
            if len(self.waiting) > self.options.max_queue and self.settled_connections():
                self.forget(stream)
                stream.end(QueueFull(f"{self.options.max_queue} callers already wait for a stream"))
                return
            self._arm_queue(stream)

    def settled_connections(self) -> bool:
        """True once a connection has told its limit: from then on, waiting is for a stream, not for a connect."""
        return any(connection.settled for connection in self.connections)

    def _arm_queue(self, stream: Stream) -> None:
        stream.since = monotonic()
        limit = min(self._pool_limit(stream), self.connect_limit(stream))
        if limit != math.inf:
            self.wheel.arm(stream, limit)

    def _pool_limit(self, stream: Stream) -> float:
        limit = stream.request.pool_timeout
        if limit is None:
            limit = self.options.acquire_timeout
        return math.inf if limit is None else limit

    def connect_limit(self, stream: Stream) -> float:
        """Seconds that this request itself will wait for a connect; infinite: as long as the dial takes."""
        # Without a limit of its own a request waits as long as the dial does, which tells everybody when it fails.
        limit = stream.request.connect_timeout
        return math.inf if limit is None else limit

    def queue_expired(self, stream: Stream, now: float) -> float | None:
        """A queued request's time is up: for a stream, or, while nothing is connected yet, for the connect."""
        if self.settled_connections():
            # What it waited for the connect does not count as waiting for a stream.
            waited, limit = now - max(stream.since, self.settled_at), self._pool_limit(stream)
            error: TransportError = PoolTimeout(f"no stream became free within {limit:g} s")
        else:
            waited, limit = now - stream.since, self.connect_limit(stream)
            error = dial_failure(TimeoutError(f"not connected within {limit:g} s"), self.spec)
        if limit == math.inf:
            limit = self._pool_limit(stream)  # the dial has its own clock: look again when it may be over
            return None if limit == math.inf else limit
        if waited < limit:
            return limit - waited
        self.counters.timeouts += 1
        self.forget(stream)
        stream.end(error)
        return None

    def forget(self, stream: Stream) -> None:
        """Take a request out of the queue; the others move up by themselves."""
        try:
            self.waiting.remove(stream)
        except ValueError:
            pass  # not queued (any more)

    # --- requests go out

    def dispatch(self) -> None:
        """Let in whoever can be let in, in order; dial where `choose` says so."""
        options = self.options
        while self.waiting and not self.closed:
            stream = self.waiting[0]
            choice = choose(
                self.connections,
                dialing=self.dialing,
                max_connections=options.max_connections,
                spread=options.distribution == "spread",
                upload=stream.large,
                negotiated=self.negotiated,
                waiting=len(self.waiting),
            )
            if choice.dial:
                self.dialer.dial()
            if choice.use is None:
                if stream.large and self._overtake():
                    continue
                return
            connection = self.connections[choice.use]
            if not self._fit(connection):
                continue
            if self._recheck:
                return
            if self.waiting and self.waiting[0] is stream:
                self.waiting.popleft()
                self._start(connection, stream)

    def refill(self, connection: Connection) -> None:
        """A stream of this connection has gone: whoever is first takes its place."""
        waiting = self.waiting
        while waiting and 0 < connection.open < connection.limit and not connection.uploads:
            if waiting[0].large:
                break
            self._start(connection, waiting.popleft())
        if waiting and connection.open < connection.limit:
            self.dispatch()

    def _overtake(self) -> bool:
        """A large upload waits for a lane of its own: the others need not wait behind it."""
        for index, stream in enumerate(self.waiting):
            if index and not stream.large:
                choice = choose(self.connections, dialing=self.dialing, max_connections=self.options.max_connections)
                if choice.use is None or not self._fit(self.connections[choice.use]) or self._recheck:
                    return False
                del self.waiting[index]
                self._start(self.connections[choice.use], stream)
                return True
        if self.dialing < sum(stream.large for stream in self.waiting):
            choice = choose(
                self.connections,
                dialing=self.dialing,
                max_connections=self.options.max_connections,
                upload=True,
                negotiated=self.negotiated,
            )
            if choice.dial:
                self.dialer.dial()
                return self.dialing < sum(stream.large for stream in self.waiting)
        return False

    def _fit(self, connection: Connection) -> bool:
        """False (and let go) when it is too old; sets `_recheck` when the loop must first read what is there."""
        if connection.open:
            return True
        if connection.served and monotonic() >= connection.retire_at:
            connection.close("lifetime")
            return False
        if connection.alive.stale():
            # Something is readable on an idle connection: its end, perhaps. Let the loop read it before choosing.
            self._recheck = True
            self.loop.call_soon(self.loop.call_soon, self._checked, connection)
        return True

    def _checked(self, connection: Connection) -> None:
        self._recheck = False
        connection.last_read = monotonic()
        if connection.closed or connection.draining:
            self.counters.discarded_stale += 1
        self.dispatch()

    def _start(self, connection: Connection, stream: Stream) -> None:
        try:
            connection.start(stream)
        except MachineError:
            self._unstartable(connection, stream)

    def _unstartable(self, connection: Connection, stream: Stream) -> None:
        """No more stream ids, or it is closing: it may finish what it has."""
        connection.drain("exhausted")
        self.waiting.appendleft(stream)
        self._arm_queue(stream)
        self.dispatch()

    def resend(self, stream: Stream, verdict: Verdict) -> bool:
        """Put a request that surely was not processed back into the queue, once. False: tell its caller instead."""
        request = stream.request
        if stream.resends or stream.left or self.closed or not request.replayable:
            return False
        if not (request.body is None or isinstance(request.body, bytes) or request.reopen is not None):
            return False
        self.counters.resends += 1
        stream.resends += 1
        if verdict is Verdict.REFUSED:
            stream.refusals += 1
            self.emit("resent", call=request.call)
        stream.connection = None
        stream.stream_id = 0
        stream.upload_done = stream.held = False
        stream.queued = stream.uploaded = stream.unread = stream.credit = 0
        stream.body_iter = None
        self.waiting.appendleft(stream)
        self._arm_queue(stream)
        return True

    # --- connections come and go

    def settled(self, connection: Connection) -> None:
        """The server's first SETTINGS are here: as many requests as they allow may go out."""
        if sum(other.settled for other in self.connections) == 1:
            self.settled_at = monotonic()
        self.dispatch()
        if not connection.open:
            self.idle(connection)

    def fall_back(self, stream: Stream, reason: str) -> None:
        """The server wants HTTP/1.1 for this request (and, as we remember, for this key)."""
        self.reactor.remember_http1(self.key)
        stream.outcome = Http1Only(self.key, reason)
        stream.end(None)

    def idle(self, connection: Connection) -> None:
        """It has no streams: it is too old, or its idle time begins."""
        if connection.served and monotonic() >= connection.retire_at:
            connection.close("lifetime")
        elif connection.timer is None and self.options.idle_timeout is not None:
            self.wheel.arm(connection, self.options.idle_timeout)

    def idle_expired(self, connection: Connection, now: float) -> float | None:
        limit = self.options.idle_timeout
        if limit is None:
            return None
        left = connection.last_read + limit - now
        if left > 0:
            return left
        connection.close("idle")
        return None

    def retire(self, connection: Connection) -> None:
        """It takes no new streams; what is open finishes."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.retired.add(connection)
        if not connection.open and not connection.closed:
            self.loop.call_soon(self._close_if_empty, connection)
        if self.waiting:
            self.loop.call_soon(self.dispatch)

    def _close_if_empty(self, connection: Connection) -> None:
        if not connection.open:
            connection.close()

    def lost(self, connection: Connection, reason: str) -> None:
        """It is gone; `reason` is for people."""
        if connection in self.connections:
            self.connections.remove(connection)
        self.retired.discard(connection)
        self.emit("connection_closed", connection=connection.connection_id, reason=reason)

    def calm(self) -> None:
        """The server said ENHANCE_YOUR_CALM: ping half as often."""
        if self.ping_interval is not None:
            self.ping_interval = min(self.ping_interval * 2, 3600.0)

    def close(self) -> None:
        """Close every connection in an orderly way; whoever waits or reads is told."""
        self.closed = True
        self.dialer.cancel()
        waiting, self.waiting = self.waiting, deque()
        for stream in waiting:
            stream.end(TransportError("the engine is closed", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT))
        for connection in (*self.connections, *self.retired):
            connection.close()

    def __repr__(self) -> str:
        return (
            f"<Pool {len(self.connections)} connections, {len(self.retired)} retired, "
            f"{self.dialing} dialing, {len(self.waiting)} waiting>"
        )
