"""One HTTP/2 connection: an asyncio protocol around a protocol machine, shared by many streams.

Rules of this file:

- One loop owns a connection; nothing here is called from another thread.
- Whatever several callers do in one turn of the loop leaves in one write.
- A stream leaves `streams` exactly once, through `remove`; from then on frames for it are ignored.
- Every failure is told to every stream it concerns, at once, each with its own verdict.
"""

from __future__ import annotations

import asyncio
import itertools
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.credit import Credit
from netkit.http2.exchange import Stream
from netkit.http2.frames import Frames
from netkit.http2.keepalive import KeepAlive
from netkit.http2.loss import explain
from netkit.http2.protocol import Code, MachineError
from netkit.http2.sending import Sending
from netkit.http2.silence import SilenceWatch
from netkit.http2.upload import start_upload

if TYPE_CHECKING:
    from netkit.http2.pool import Pool

__all__ = ["Connection"]

_ids = itertools.count(1)
_WRITE_CHUNK: Final = 112 << 10
"""Seven full frames. From 128 KiB on, glibc asks the kernel for each buffer and gives it back at once: the page
faults of an upload in larger pieces cost as much as its encryption."""


class Connection(asyncio.BufferedProtocol):
    """See the module. `open` and `limit` are what `choose` reads; a draining connection has `limit` 0."""

    __slots__ = (
        "_buffer",
        "_flush_scheduled",
        "_flushed_id",
        "_frames",
        "_last_id",
        "_max_requests",
        "_paused",
        "alive",
        "broken",
        "closed",
        "connection_id",
        "consumed",
        "created",
        "credit",
        "draining",
        "expected",
        "http1",
        "last_read",
        "limit",
        "loop",
        "machine",
        "open",
        "peer_limit",
        "pool",
        "reason",
        "retire_at",
        "sending",
        "served",
        "settled",
        "silence",
        "streams",
        "timer",
        "transport",
        "uploading",
        "uploads",
    )

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.loop: asyncio.AbstractEventLoop = pool.loop
        self.connection_id = next(_ids)
        options = pool.options
        self.machine = pool.make_machine()
        self.transport: Any = None
        self.streams: dict[int, Stream] = {}
        self.uploading: dict[int, Stream] = {}
        self.open = 0
        self.uploads = 0
        self.limit = 1
        self.expected = pool.expected_streams
        self.peer_limit = options.max_streams
        self.served = 0
        self.settled = False
        self.http1 = False
        self.draining = False
        self.closed = False
        self.reason = ""
        self.created = self.last_read = monotonic()
        self.retire_at = self.created + pool.lifetime()
        self.timer: float | None = None
        self.silence = SilenceWatch(self)
        self._buffer = pool.buffer
        self._max_requests = options.max_requests
        # One read may bring more than half of a small window: it is held before the first byte.
        self.credit: Credit = Credit(self, early=options.stream_window < 2 * len(pool.buffer))
        self.consumed: Any = self.credit.consumed
        self.sending = Sending(self)
        self.alive = KeepAlive(self)
        self._frames = Frames(self)
        self._flush_scheduled = False
        self._paused = False
        self._flushed_id = self._last_id = 0
        self.broken: BaseException | None = None

    # --- the transport's side

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None and ssl_object.selected_alpn_protocol() != "h2":
            self.http1 = True
            self.limit = self.expected = 0
            return
        self.last_read = monotonic()
        self.machine.start()
        self.schedule_flush()
        self.pool.dialer.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed or self.http1:
            return
        self.last_read = monotonic()
        machine = self.machine
        try:
            machine.receive(self._buffer[:nbytes], self._frames)
            if not self._flush_scheduled and machine.wants_write():
                self.schedule_flush()
        except MachineError as error:
            self.fail_protocol(error)

    def eof_received(self) -> bool:
        if not self.closed and not self.http1:
            self.die(self.broken)
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        if self.http1:
            self.closed = True
        elif not self.closed:
            self.die(exc or self.broken)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    # --- writing

    def schedule_flush(self) -> None:
        """Write at the end of this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.pool.reactor.dirty(self)

    def flush(self) -> None:
        """Write what the machine has, at most a transport's high-water mark ahead."""
        self._flush_scheduled = False
        if self.closed or self.transport is None:
            return
        machine = self.machine
        try:
            while not self._paused:
                data = machine.output(_WRITE_CHUNK, self._frames)
                if not data:
                    break
                self._flushed_id = self._last_id
                self.transport.write(data)
                if self.credit.fresh:
                    self.credit.hold_fresh()  # which may grant windows: they leave now
                elif self.uploading:
                    self.sending.progressed()  # which may have asked bodies for more
                    if not self.uploading and len(data) < _WRITE_CHUNK:
                        break
                elif len(data) < _WRITE_CHUNK:
                    break
                if self.transport is None:
                    return  # a body that raised has ended it
        except MachineError as error:
            self.fail_protocol(error)

    # --- opening, leaving and ending streams

    def start(self, stream: Stream) -> None:
        """Open a stream for this request. The caller has checked that there is room."""
        body = stream.body
        empty = not body if body is None or isinstance(body, bytes) else False
        machine = self.machine
        stream_id = self._last_id = stream.stream_id = machine.request(stream.fields, empty)
        stream.connection = self
        if stream.timer is not None:
            self.pool.wheel.disarm(stream)
        self.streams[stream_id] = stream
        self.open += 1
        self.served += 1
        if self.credit.early:
            self.credit.fresh.append(stream)
        if empty:
            stream.upload_done = True
        elif isinstance(body, bytes):
            try:
                machine.send(stream_id, body, True)
            except MachineError:
                # Its head may leave, its body will not: the server must not wait for it.
                del self.streams[stream_id]
                self.open -= 1
                stream.connection = None
                machine.reset(stream_id, Code.CANCEL)
                raise
            stream.queued = len(body)
            self.sending.register(stream)
        else:
            self.sending.register(stream)
            start_upload(self, stream)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.pool.reactor.dirty(self)
        if self.timer is None:
            self.pool.wheel.arm(self, self.pool.watch_interval)
        request = stream.request
        limit = request.read_timeout if empty else request.write_timeout
        if limit is not None:
            stream.since = monotonic()
            if limit < self.silence.shortest:
                self.silence.watch(limit)
        if self.served == self._max_requests:
            self.drain("max_requests")

    def verdict(self, stream: Stream) -> Verdict:
        """How far this stream's request can have got."""
        if stream.status:
            return Verdict.PROCESSED
        return Verdict.AMBIGUOUS if stream.stream_id <= self._flushed_id else Verdict.NOT_SENT

    def give_up(self, stream: Stream, error: TransportError) -> None:
        """Give one stream up on our side and say so to the server."""
        if self.remove(stream):
            self._reset(stream.stream_id, Code.CANCEL)
            stream.end(error)
            self.freed()

    def leave(self, stream: Stream) -> None:
        """The caller has left: tell the server at once."""
        if self.remove(stream):
            self._reset(stream.stream_id, Code.CANCEL)
            self.freed()
        elif stream.held:
            self.consumed(stream, stream.unread)

    def _reset(self, stream_id: int, code: int) -> None:
        self.machine.reset(stream_id, code)
        self.pool.counters.resets_sent += 1
        self.schedule_flush()

    def remove(self, stream: Stream) -> bool:
        """Take a stream out of `streams`; False when it was gone already."""
        if self.streams.pop(stream.stream_id, None) is None:
            return False
        self.open -= 1
        if not stream.upload_done:
            self.sending.ended(stream)
        if stream.held and stream.left:
            self.consumed(stream, stream.unread)
        return True

    def freed(self) -> None:
        """A stream has gone: let a waiting request in, or note that the connection is idle."""
        if self.pool.waiting:
            if self.draining:
                self.pool.dispatch()
            else:
                self.pool.refill(self)
        if self.open == 0 and not self.closed:
            if self.draining:
                self.close()
            else:
                self.pool.idle(self)

    def complete(self, stream: Stream) -> None:
        """The answer has ended. If the request has not, the server wants no more of it (RFC 9113 section 8.1)."""
        stream_id = stream.stream_id
        if stream.upload_done:
            del self.streams[stream_id]
            self.open -= 1
        else:
            if stream.body_iter is not None or self.machine.queued(stream_id):
                self._reset(stream_id, Code.NO_ERROR)
            self.remove(stream)
        stream.ended = True
        if stream.callbacks is not None:
            stream.tell(None)
        stream.wake()
        if not self.open or self.pool.waiting:
            self.freed()

    def lose(
        self,
        stream: Stream,
        kind: FailureKind,
        verdict: Verdict,
        message: str,
        cause: BaseException | None = None,
        **details: Any,
    ) -> None:
        """The stream is gone on the wire: resend it where nothing can have happened, else fail it."""
        if not self.remove(stream):
            return
        if verdict in (Verdict.NOT_SENT, Verdict.REFUSED) and self.pool.resend(stream, verdict):
            return
        error = TransportError(message, kind=kind, verdict=verdict, **details)
        error.__cause__ = cause
        error.attempts = stream.refusals + 1
        stream.end(error)

    # --- life and death

    def terminate(self) -> None:
        """The session is over: nothing more will be said."""
        if not self.closed:
            self.die(self.broken)

    def expired(self, now: float) -> float | None:
        """The wheel asks: see `KeepAlive`."""
        return self.alive.expired(now)

    def drain(self, reason: str) -> None:
        """No new streams; those that are open finish. `reason` is what its end will be put down to."""
        if not self.draining:
            self.draining = True
            self.reason = self.reason or reason
            self.limit = self.expected = 0
            self.pool.retire(self)

    def fail_protocol(self, error: MachineError) -> None:
        """The protocol is broken, theirs or ours: say why, as far as that is still possible, and end."""
        if self.closed:
            return
        self.machine.goaway(error.code)
        try:
            data = self.machine.output(_WRITE_CHUNK, self._frames)
            if data:
                self.transport.write(data)
        except MachineError:
            pass  # a session that libnghttp2 has given up says nothing
        self.die(error)

    def die(self, cause: BaseException | None) -> None:
        """The connection is lost: tell every stream, each with its own verdict."""
        if self.closed:
            return
        self.closed = True
        self.limit = self.expected = 0
        self.pool.wheel.disarm(self)
        self.pool.wheel.disarm(self.silence)
        if self.credit.starved:
            self.pool.budget.starved.discard(self)
        kind, message, details = explain(cause)
        self.pool.lost(self, self.reason or message)
        for stream in reversed(list(self.streams.values())):
            self.lose(stream, kind, self.verdict(stream), message, cause, **details)
        if not self.settled:
            self.settled = True
            self.pool.dialer.lost(cause or EOFError("the server closed the connection before its SETTINGS"))
        self.shut(cause)
        self.pool.dispatch()

    def shut(self, cause: BaseException | None) -> None:
        """Take the transport down, without waiting for the peer."""
        transport = self.transport
        if transport is None:
            return
        # close() has written close_notify when it returns; the peer's, for which it would wait, may never come.
        if not isinstance(cause, TimeoutError):
            transport.close()
            if transport.get_write_buffer_size():
                return
        transport.abort()

    def close(self, reason: str = "closed") -> None:
        """End it in an orderly way: GOAWAY, close_notify, FIN. Open streams fail. `reason` is for listeners."""
        if self.closed:
            return
        self.drain(reason)
        if self.transport is not None and not self.http1:
            self.machine.goaway(Code.NO_ERROR)
            self.flush()
        self.die(None)

    def abort(self, cause: BaseException) -> None:
        """End it at once."""
        if not self.closed:
            self.die(cause)
            if self.transport is not None:
                self.transport.abort()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "draining" if self.draining else "live" if self.settled else "new"
        return f"<Connection {self.connection_id} {state} {self.open}/{self.limit} streams>"
