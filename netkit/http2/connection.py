"""One HTTP/2 connection: an asyncio protocol around a protocol machine, shared by many streams.

Rules of this file:

- One loop owns a connection; nothing here is called from another thread.
- Whatever several callers do in one turn of the loop leaves in one write, a large burst in a few.
- A stream leaves `streams` exactly once, through `_remove`; from then on frames for it are ignored.
- Every failure is told to every stream it concerns, at once, each with its own verdict.
"""

from __future__ import annotations

import asyncio
import itertools
import select
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.exchange import Stream
from netkit.http2.protocol import Code, Headers, MachineError
from netkit.http2.silence import SilenceWatch
from netkit.http2.upload import start_upload

if TYPE_CHECKING:
    from netkit.http2.pool import Pool

__all__ = ["Connection"]

_ids = itertools.count(1)
_WRITE_CHUNK: Final = 1 << 20
_STALE_AFTER: Final = 0.05
_FLOOD_BURST, _FLOOD_RATE = 1000, 100.0
_BURST: Final = 16
"""Requests that leave without waiting for the end of a turn: the server works while the loop makes the next ones."""


class Connection(asyncio.BufferedProtocol):
    """See the module. `open` and `limit` are what `choose` reads; a draining connection has `limit` 0."""

    __slots__ = (
        "_broken",
        "_buffer",
        "_burst",
        "_control_budget",
        "_control_time",
        "_flush_scheduled",
        "_flushed_id",
        "_fresh",
        "_hold_early",
        "_last_id",
        "_max_requests",
        "_paused",
        "_ping_sent",
        "_poll",
        "_stalled",
        "_starved",
        "closed",
        "connection_id",
        "created",
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
        # One read may bring more than half of a small window: it is held before the first byte.
        self._max_requests = options.max_requests
        self._hold_early = options.stream_window < 2 * len(pool.buffer)
        self._fresh: list[Stream] = []
        self._flush_scheduled = False
        self._burst = 0
        self._paused = False
        self._starved = False
        self._stalled = False
        self._flushed_id = self._last_id = 0
        self._ping_sent = 0.0
        self._control_budget, self._control_time = float(_FLOOD_BURST), self.created
        self._broken: BaseException | None = None
        self._poll: Any = None

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
        self._schedule_flush()
        self.pool.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed or self.http1:
            return
        self.last_read = monotonic()
        machine = self.machine
        try:
            machine.receive(self._buffer[:nbytes], self)
            if not self._flush_scheduled and machine.wants_write():
                self._schedule_flush()
        except MachineError as error:
            self._fail_protocol(error)

    def eof_received(self) -> bool:
        if not self.closed and not self.http1:
            self._die(self._broken)
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        if self.http1:
            self.closed = True
        elif not self.closed:
            self._die(exc or self._broken)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    # --- writing

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.pool.reactor.dirty(self)

    def flush(self) -> None:
        """Write what the machine has, at most a transport's high-water mark ahead."""
        self._flush_scheduled = False
        self._burst = 0
        if self.closed or self.transport is None:
            return
        machine = self.machine
        try:
            while not self._paused:
                data = machine.output(_WRITE_CHUNK, self)
                if not data:
                    break
                self._flushed_id = self._last_id
                self.transport.write(data)
                if self._fresh:
                    self._hold_fresh()  # which may grant windows: they leave now
                elif self.uploading:
                    self._uploads_progressed()
                elif len(data) < _WRITE_CHUNK:
                    break
                if self.transport is None:
                    return  # a body that raised has ended it
        except MachineError as error:
            self._fail_protocol(error)

    def _hold_fresh(self) -> None:
        for stream in self._fresh:
            if stream.stream_id in self.streams:
                self.machine.hold_stream(stream.stream_id)
                stream.held = True
        self._fresh.clear()

    def _uploads_progressed(self) -> None:
        machine, now = self.machine, monotonic()
        stalled = False
        for stream_id, stream in tuple(self.uploading.items()):
            queued = machine.queued(stream_id)
            if queued != stream.queued:
                stream.queued = queued
                stream.since = now
            if stream.body_iter is None:
                if queued == 0:
                    self._upload_done(stream, now)
                    continue
            elif queued < 131072 and stream.pumping is not None:
                stream.pumping()
            stalled = stalled or (queued > 0 and machine.blocked(stream_id))
        if stalled and not self._stalled:
            self.pool.counters.window_stalls += 1
            self.pool.emit("window_stall", connection=self.connection_id)
        self._stalled = stalled

    def _upload_done(self, stream: Stream, now: float) -> None:
        stream.upload_done = True
        stream.since = now
        if self.uploading.pop(stream.stream_id, None) is not None and stream.uploaded:
            self.uploads -= 1
            stream.uploaded = 0
        if stream.waiting:
            self.silence.start(stream)

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
        if self._hold_early:
            self._fresh.append(stream)
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
            self._register_upload(stream)
        else:
            self._register_upload(stream)
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
        self._burst += 1
        if self._burst == _BURST:
            self.flush()
            self._flush_scheduled = True  # the reactor still has it on its list

    def _register_upload(self, stream: Stream) -> None:
        self.uploading[stream.stream_id] = stream
        if self.pool.is_upload(stream):
            stream.uploaded = 1
            self.uploads += 1

    def feed(self, stream: Stream, data: bytes, end: bool) -> None:
        """More of a streamed request body."""
        if stream.ended or stream.left or stream.connection is not self:
            return
        try:
            self.machine.send(stream.stream_id, data, end)
        except MachineError:
            return  # closed on the wire in this very turn: the stream is about to be told
        stream.queued += len(data)
        if end:
            stream.body_iter = None
        self._schedule_flush()

    def verdict(self, stream: Stream) -> Verdict:
        """How far this stream's request can have got."""
        if stream.status:
            return Verdict.PROCESSED
        return Verdict.AMBIGUOUS if stream.stream_id <= self._flushed_id else Verdict.NOT_SENT

    def give_up(self, stream: Stream, error: TransportError) -> None:
        """Give one stream up on our side and say so to the server."""
        if self._remove(stream):
            self._reset(stream.stream_id, Code.CANCEL)
            stream.end(error)
            self._freed()

    def leave(self, stream: Stream) -> None:
        """The caller has left: tell the server at once."""
        if self._remove(stream):
            self._reset(stream.stream_id, Code.CANCEL)
            self._freed()
        elif stream.held:
            self.consumed(stream, stream.unread)

    def _reset(self, stream_id: int, code: int) -> None:
        self.machine.reset(stream_id, code)
        self.pool.counters.resets_sent += 1
        self._schedule_flush()

    def _remove(self, stream: Stream) -> bool:
        if self.streams.pop(stream.stream_id, None) is None:
            return False
        self.open -= 1
        if not stream.upload_done:
            self._upload_ended(stream)
        if stream.held and stream.left:
            self.consumed(stream, stream.unread)
        return True

    def _upload_ended(self, stream: Stream) -> None:
        self.uploading.pop(stream.stream_id, None)
        if stream.uploaded:
            self.uploads -= 1
            stream.uploaded = 0
        pumping = stream.pumping
        stream.pumping = None
        if pumping is not None:
            stream.body_iter = None
            pumping.close()

    def _freed(self) -> None:
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

    def _complete(self, stream: Stream) -> None:
        """The answer has ended. If the request has not, the server wants no more of it (RFC 9113 section 8.1)."""
        stream_id = stream.stream_id
        if stream.upload_done:
            del self.streams[stream_id]
            self.open -= 1
        else:
            if stream.body_iter is not None or self.machine.queued(stream_id):
                self._reset(stream_id, Code.NO_ERROR)
            self._remove(stream)
        stream.ended = True
        if stream.callbacks is not None:
            stream.tell(None)
        stream.wake()
        if not self.open or self.pool.waiting:
            self._freed()

    def _lose(
        self,
        stream: Stream,
        kind: FailureKind,
        verdict: Verdict,
        message: str,
        cause: BaseException | None = None,
        **details: Any,
    ) -> None:
        """The stream is gone on the wire: resend it where nothing can have happened, else fail it."""
        if not self._remove(stream):
            return
        if verdict in (Verdict.NOT_SENT, Verdict.REFUSED) and self.pool.resend(stream, verdict):
            return
        error = TransportError(message, kind=kind, verdict=verdict, **details)
        error.__cause__ = cause
        error.attempts = stream.refusals + 1
        stream.end(error)

    # --- what the machine tells (Sink)

    def on_head(self, stream_id: int, headers: Headers, end: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        # RFC 9113 section 8.3: pseudo-headers come first, and a response has only :status.
        fields = list(headers)
        stream.status = int(fields.pop(0)[1])
        stream.headers = fields
        if end:
            self._complete(stream)
        else:
            stream.wake()

    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if data:
            stream.chunks.append(data)
        elif not end and self._flooded():
            return
        if end:
            if stream.held:
                self._unread(stream, len(data))
            self._complete(stream)
            return
        if not stream.held:
            stream.held = True
            self.machine.hold_stream(stream_id)
        self._unread(stream, len(data))
        stream.wake()

    def _unread(self, stream: Stream, size: int) -> None:
        budget = self.pool.budget
        stream.unread += size
        budget.unread += size
        if not self._starved and budget.exceeded():
            self._starved = True
            self.machine.hold_connection()
            budget.starve(self)

    def consumed(self, stream: Stream, size: int) -> None:
        """The caller took `size` bytes of a held stream: give the credit back once it is half a window."""
        stream.unread -= size
        budget = self.pool.budget
        budget.unread -= size
        if budget.starved:
            budget.feed()
        if stream.ended or stream.left or self.closed:
            return
        stream.credit += size
        window = self.pool.options.stream_window
        if stream.credit * 2 >= window and self.machine.refill_stream(
            stream.stream_id, max(0, window - stream.unread)
        ):
            stream.credit = 0
            self._schedule_flush()

    def unstarve(self) -> None:
        """The process has room again."""
        self._starved = False
        if not self.closed:
            self.machine.release_connection()
            self._schedule_flush()

    def on_trailers(self, stream_id: int, headers: Headers) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.trailers = list(headers)
            self._complete(stream)

    def on_informational(self, stream_id: int, headers: Headers) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None and not self._flooded():
            if stream.informational is None:
                stream.informational = []
            stream.informational.append((int(headers[0][1]), list(headers[1:])))

    def on_reset(self, stream_id: int, code: int) -> None:
        self.pool.counters.resets_received += 1
        stream = self.streams.get(stream_id)
        if stream is None:
            self._flooded()
            return
        if code == Code.HTTP_1_1_REQUIRED and not stream.status:
            self._remove(stream)
            self.pool.fall_back(stream, "http_1_1_required")
        elif code == Code.REFUSED_STREAM:
            verdict = Verdict.PROCESSED if stream.status else Verdict.REFUSED
            self._lose(stream, FailureKind.REFUSED, verdict, "the server refused the stream", code=code)
        else:
            if code == Code.ENHANCE_YOUR_CALM:
                self.pool.calm()
            verdict = Verdict.PROCESSED if stream.status else Verdict.AMBIGUOUS
            message = f"the server reset the stream: {Code.name(code)}"
            self._lose(stream, FailureKind.RESET, verdict, message, code=code)
        self._freed()

    def on_broken(self, stream_id: int, code: int, message: str) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if self.draining and code == Code.REFUSED_STREAM and not stream.status:
            self._lose(stream, FailureKind.REFUSED, Verdict.REFUSED, "the server is going away", code=code)
        else:
            short = bool(stream.status) and stream.header(b"content-length") is not None
            kind = FailureKind.BODY if short else FailureKind.PROTOCOL
            if short:
                message = "the body does not have the length that content-length announced"
            verdict = Verdict.PROCESSED if stream.status else Verdict.AMBIGUOUS
            self._lose(stream, kind, verdict, message, code=code)
        self._freed()

    def on_settings(self, max_streams: int | None) -> None:
        if self._flooded():
            return
        if max_streams is not None:
            self.peer_limit = max_streams
        first, self.settled = not self.settled, True
        if not self.draining:
            self.limit = self.expected = self.pool.expected_streams = min(
                self.pool.options.max_streams, self.peer_limit
            )
            if first:
                self.pool.settled(self)
            elif self.pool.waiting:
                self.pool.dispatch()

    def on_settings_ack(self) -> None:
        pass

    def on_ping(self) -> None:
        self._flooded()

    def on_pong(self, payload: bytes) -> None:
        if self._ping_sent:
            self.pool.counters.ping_rtt = monotonic() - self._ping_sent
            self.pool.emit("ping", connection=self.connection_id, rtt=self.pool.counters.ping_rtt)
            self._ping_sent = 0.0

    def on_window(self, stream_id: int) -> None:
        if self.uploading:
            self._schedule_flush()

    def on_goaway(self, last_stream_id: int, code: int, reason: bytes) -> None:
        self.pool.counters.goaways += 1
        said = reason[:200].decode("utf-8", "replace")
        self.pool.emit(
            "goaway",
            connection=self.connection_id,
            last_stream_id=last_stream_id,
            code=code,
            reason=f"{Code.name(code)}: {said}" if said else Code.name(code),
        )
        if code == Code.ENHANCE_YOUR_CALM:
            self.pool.calm()
        self._broken = MachineError(f"the server is going away: {Code.name(code)}", code)
        self.drain("goaway")
        for stream_id in sorted((sid for sid in self.streams if sid > last_stream_id), reverse=True):
            stream = self.streams.get(stream_id)
            if stream is not None:
                verdict = Verdict.PROCESSED if stream.status else Verdict.REFUSED
                self._lose(stream, FailureKind.REFUSED, verdict, "the server is going away", code=code)
        self._freed()

    def on_terminated(self, code: int) -> None:
        if self.closed:
            return
        if self._broken is None and code:
            self._broken = MachineError(f"HTTP/2 protocol error: {Code.name(code)}", code)
        # Its last bytes (a GOAWAY) are being written by the caller of output().
        self.draining = True
        self.limit = self.expected = 0
        self.loop.call_soon(self._terminate)

    def _terminate(self) -> None:
        if not self.closed:
            self._die(self._broken)

    def _flooded(self) -> bool:
        """Count one frame that costs us and carries nothing; True when the peer sends too many of them."""
        now = monotonic()
        budget = self._control_budget + (now - self._control_time) * _FLOOD_RATE
        self._control_time = now
        self._control_budget = min(float(_FLOOD_BURST), budget) - 1
        if self._control_budget >= 0:
            return False
        self._control_budget = _FLOOD_BURST
        raise MachineError("the server floods the connection with control frames", Code.ENHANCE_YOUR_CALM)

    # --- life and death

    def expired(self, now: float) -> float | None:
        """Keep-alive: PING only while streams are open and nothing was read; and the end of an idle connection."""
        if self.closed:
            return None
        if not self.open:
            return self.pool.idle_expired(self, now)
        interval = self.pool.ping_interval
        if interval is None:
            return None
        if self._ping_sent and self.last_read < self._ping_sent:
            left = self._ping_sent + self.pool.options.ping_timeout - now
            if left > 0:
                return left
            self._die(TimeoutError("PING was not answered"))
            return None
        quiet = now - self.last_read
        if quiet < interval:
            return min(interval - quiet, self.pool.watch_interval)
        self._ping_sent = monotonic()
        try:
            self.machine.ping(b"netkit\0\0")
            self.flush()
        except MachineError as error:
            self._fail_protocol(error)
            return None
        return self.pool.options.ping_timeout

    def stale(self) -> bool:
        """True when an idle connection has something to read that the loop has not seen yet: perhaps its end."""
        if self.open or monotonic() - self.last_read < _STALE_AFTER or self.transport is None:
            return False
        if self._poll is None:
            sock = self.transport.get_extra_info("socket")
            if sock is None or not hasattr(select, "poll"):
                return False
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def drain(self, reason: str) -> None:
        """No new streams; those that are open finish. `reason` is what its end will be put down to."""
        if not self.draining:
            self.draining = True
            self.reason = self.reason or reason
            self.limit = self.expected = 0
            self.pool.retire(self)

    def _fail_protocol(self, error: MachineError) -> None:
        """The protocol is broken, theirs or ours: say why, as far as that is still possible, and end."""
        if self.closed:
            return
        self.machine.goaway(error.code)
        try:
            data = self.machine.output(_WRITE_CHUNK, self)
            if data:
                self.transport.write(data)
        except MachineError:
            pass  # a session that libnghttp2 has given up says nothing
        self._die(error)

    def _die(self, cause: BaseException | None) -> None:
        """The connection is lost: tell every stream, each with its own verdict."""
        if self.closed:
            return
        self.closed = True
        self.limit = self.expected = 0
        self.pool.wheel.disarm(self)
        self.pool.wheel.disarm(self.silence)
        if self._starved:
            self.pool.budget.starved.discard(self)
        kind, message, details = _explain(cause)
        self.pool.lost(self, self.reason or message)
        for stream in reversed(list(self.streams.values())):
            self._lose(stream, kind, self.verdict(stream), message, cause, **details)
        if not self.settled:
            self.settled = True
            self.pool.dial_lost(cause or EOFError("the server closed the connection before its SETTINGS"))
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
        self._die(None)

    def abort(self, cause: BaseException) -> None:
        """End it at once."""
        if not self.closed:
            self._die(cause)
            if self.transport is not None:
                self.transport.abort()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "draining" if self.draining else "live" if self.settled else "new"
        return f"<Connection {self.connection_id} {state} {self.open}/{self.limit} streams>"


def _explain(cause: BaseException | None) -> tuple[FailureKind, str, dict[str, Any]]:
    if isinstance(cause, MachineError) and cause.code == Code.NO_ERROR:
        return FailureKind.DISCONNECTED, str(cause), {"code": cause.code}
    if isinstance(cause, MachineError):
        return FailureKind.PROTOCOL, str(cause), {"code": cause.code}
    if isinstance(cause, TimeoutError):
        return FailureKind.DISCONNECTED, f"the connection is dead: {cause}", {}
    if cause is None or isinstance(cause, EOFError):
        return FailureKind.DISCONNECTED, "the server closed the connection", {}
    return FailureKind.RESET, f"the connection was lost: {type(cause).__name__}", {}
