"""The engine as threads see it: one background loop per process, reached through a batch of hand-overs.

Example::

    engine = SyncEngine()
    exchange = engine.send(H2Request(key, connect, b"POST", b"host", b"/embed", headers, body))
    print(exchange.status, exchange.read())

Rules of this file:

- Only the first hand-over of a burst wakes the loop; one wake-up of the loop serves all that are there.
- A waiting thread sleeps on a raw lock of its own exchange; wake-ups may be spurious, conditions are checked again.
- A forked child starts afresh: the parent's thread does not exist there.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import logging
import os
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.engine import Engine
from netkit.http2.exchange import Stream
from netkit.http2.fields import request_fields
from netkit.http2.options import H2Request, Http1Only, Http2Options
from netkit.http2.pool import Pool
from netkit.http2.protocol import Header
from netkit.http2.reactor import EngineStats, Reactor
from netkit.http2.upload import HIGH, Fed
from netkit.runtime import interruptible, time_left

__all__ = ["Portal", "SyncEngine", "SyncExchange", "portal"]

log = logging.getLogger("netkit")
_JOIN_SECONDS: Final = 2.0


class Portal:
    """A loop in a daemon thread. Started by the first `post()`."""

    def __init__(self) -> None:
        self._inbox: deque[Callable[[], None]] = deque()
        self._signalled = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Weakly: an engine whose session is gone closes itself.
        self._engines: tuple[weakref.ref[Engine], ...] = ()
        self._stopped = False

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop, in the order of posting. It must not raise."""
        self._inbox.append(call)
        if not self._signalled:
            self._signalled = True
            loop = self._loop
            if loop is None:
                try:
                    loop = self._start()
                except BaseException:
                    self._signalled = False
                    raise
            try:
                loop.call_soon_threadsafe(self._drain)
            except RuntimeError as error:
                raise TransportError(
                    "the interpreter is shutting down", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT
                ) from error

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return self._loop or self._start()

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                if self._stopped:
                    raise TransportError(
                        "the interpreter is shutting down", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT
                    )
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(loop,), name="netkit-http2", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _drain(self) -> None:
        self._signalled = False
        inbox = self._inbox
        reactors = self._reactors()
        for reactor in reactors:
            # What the calls below make ready to write is written when they are done: no turn need be asked for.
            reactor._flushing = True
        try:
            while inbox:
                call = inbox.popleft()
                try:
                    call()
                except Exception:
                    log.exception("netkit: a hand-over to the HTTP/2 loop failed")
        finally:
            for reactor in reactors:
                reactor.flush()

    def _reactors(self) -> list[Reactor]:
        """What the attached engines have in this loop."""
        loop: Any = self._loop
        engines = [known() for known in self._engines]
        found = [engine._reactors.get(loop) for engine in engines if engine is not None]
        return [reactor for reactor in found if reactor is not None]

    def attach(self, engine: Engine) -> None:
        """Flush this engine's connections right after each batch of hand-overs."""
        with self._starting:
            living = [known for known in self._engines if known() is not None]
            if all(known() is not engine for known in living):
                living.append(weakref.ref(engine))
            self._engines = tuple(living)

    def detach(self, engine: Engine) -> None:
        with self._starting:
            self._engines = tuple(known for known in self._engines if known() not in (None, engine))

    def stop(self) -> None:
        """Close every connection, end the thread, close the loop. At interpreter exit."""
        with self._starting:
            self._stopped = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            try:
                loop.call_soon_threadsafe(loop.stop)
            except RuntimeError:
                return  # closed already
            thread.join(_JOIN_SECONDS)

    def __repr__(self) -> str:
        return f"<Portal {'running' if self._loop else 'idle'} inbox={len(self._inbox)}>"


_portal = Portal()


def portal() -> Portal:
    """This process's portal."""
    return _portal


def _after_fork() -> None:
    global _portal
    _portal = Portal()


def _at_exit() -> None:
    _portal.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


class SyncExchange(Stream):
    """What a thread holds: `status`, `headers`, `trailers`, and the body as it arrives. One thread at a time."""

    _asleep = False
    _taken = 0
    _generation = 0
    _room = False
    _fed: Fed | None = None
    # The thread that sends waits from the start: its clock runs in the loop.
    waiting = True

    def __init__(
        self, request: H2Request, fields: list[Header], length: int | None, portal: Portal, options: Http2Options
    ) -> None:
        super().__init__(request, fields, length)
        self._portal = portal
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._unit = max(16384, options.stream_window // 8)

    def wake(self) -> None:
        if self._asleep:
            self._asleep = False
            try:
                self._lock.release()
            except RuntimeError:
                pass  # an earlier wake-up has not been slept through yet

    def _sleep(self, timeout: float | None) -> bool:
        """Sleep until the next wake-up; False when `timeout` seconds passed first. Ctrl-C leaves the exchange."""
        try:
            return self._lock.acquire(True, -1 if timeout is None else max(0.0, timeout))
        except BaseException:
            self.close()
            raise

    def wait_head(self) -> None:
        """Until the response head is here or the exchange has failed."""
        try:
            with interruptible(self.close):
                self._wait_head()
        except BaseException:
            # Also where its work was cancelled before it could wait: the request is under way by then.
            self.close()
            raise

    def _wait_head(self) -> None:
        while not self._answered():
            if self.left:
                raise TransportError("the exchange was closed", kind=FailureKind.BODY, verdict=Verdict.AMBIGUOUS)
            self._asleep = True
            if self._answered():
                self._asleep = False
                return
            if self._generation:
                self._asleep = False
                self.upload()
                continue
            if not self._sleep(time_left()) and not self._answered():
                self._give_up()

    def _give_up(self) -> None:
        """The time limit around this thread has come."""
        self._asleep = False
        self.close()
        raise TransportError("no answer in time", kind=FailureKind.READ_TIMEOUT, verdict=Verdict.AMBIGUOUS)

    def _answered(self) -> bool:
        return bool(self.status) or self.ended

    # --- a body that this thread iterates

    def prepare_body(self) -> None:
        """The body is an iterable: this thread runs it, the loop sends it."""
        self.body = self._fed = self._feed()

    def _feed(self) -> Fed:
        return Fed(self._has_room, self._again)

    def _has_room(self) -> None:
        self._room = True
        self.wake()

    def _again(self) -> Fed:
        self._generation += 1
        self._fed = self._feed()
        self.wake()
        return self._fed

    def upload(self) -> None:
        """Iterate the body and hand it over, at most `HIGH` bytes ahead of the server's windows."""
        generation, self._generation = self._generation, 0
        request = self.request
        body: Any = request.reopen() if generation and request.reopen is not None else request.body
        fed, post = self._fed, self._portal.post
        assert fed is not None
        iterator = iter((body,)) if isinstance(body, bytes) else iter(body)
        ahead = 0
        while self._wants_body() and not self._generation:
            try:
                chunk = next(iterator)
            except StopIteration:
                post(partial(fed.push, [], True))
                return
            except BaseException:
                self.close()
                raise
            if not isinstance(chunk, (bytes, bytearray, memoryview)):
                self.close()
                raise TypeError(f"a request body yields bytes, not {type(chunk).__name__}")
            if chunk:
                post(partial(fed.push, [bytes(chunk)], False))
                ahead += len(chunk)
            if ahead >= HIGH:
                self._wait_room()
                ahead = 0
        if self._generation and self._wants_body():
            self.upload()

    def _wants_body(self) -> bool:
        return not (self.ended or self.left or self.status >= 300)

    def _wait_room(self) -> None:
        while not self._room and self._wants_body() and not self._generation:
            self._asleep = True
            if self._room or not self._wants_body() or self._generation:
                self._asleep = False
                break
            if not self._sleep(time_left()) and not self._room:
                self._give_up()
        self._room = False

    # --- the answer

    def read_chunk(self, timeout: float | None = None) -> bytes:
        """What has arrived, joined; waits only while there is nothing, at most `timeout` seconds (None: the
        request's own read timeout). b"" at the end of the body.

        Raises `TransportError` when the exchange failed, after everything that had arrived was delivered.
        """
        if timeout is None:
            timeout = self.request.read_timeout
        while True:
            if self.chunks:
                data = self._take()
                if self.held:
                    self._credit(len(data))
                return data
            if self.ended:
                if self.chunks:
                    continue  # it ended between the two questions
                if self.held and self._taken:
                    self._credit(0)
                if self.error is not None:
                    raise self.error
                return b""
            if self.left:
                raise TransportError("the exchange was closed", kind=FailureKind.BODY, verdict=Verdict.PROCESSED)
            self._asleep = True
            if self.chunks or self.ended or self.left:
                self._asleep = False
            elif not self._sleep(timeout) and not self.chunks and not self.ended:
                self._asleep = False
                self.close()
                raise TransportError(
                    f"nothing was received for {timeout:g} s",
                    kind=FailureKind.READ_TIMEOUT,
                    verdict=Verdict.PROCESSED,
                )

    def _credit(self, size: int) -> None:
        self._taken += size
        if self._taken >= self._unit or (self.ended and not self.chunks):
            taken, self._taken = self._taken, 0
            connection = self.connection
            if connection is not None:
                self._portal.post(partial(connection.consumed, self, taken))

    def read(self, timeout: float | None = None) -> bytes:
        """The rest of the body, whole; `timeout` as in `read_chunk`."""
        if self.ended and self.error is None and not self.held:
            return self._take() if self.chunks else b""
        parts = []
        while chunk := self.read_chunk(timeout):
            parts.append(chunk)
        return b"".join(parts)

    def close(self) -> None:
        """Leave: RST_STREAM(CANCEL) goes out at once unless the body has ended. Idempotent, from any thread."""
        if not self.left and not (self.ended and not self.held):
            try:
                self._portal.post(self._leave)
            except TransportError:
                pass  # the loop is gone, and the connection with it

    def _leave(self) -> None:
        if not self.ended:
            self.leave()
        elif not self.left:
            self.left = True
            if self.held and self.connection is not None:
                self.connection.consumed(self, self.unread)


def _streams(pool: Pool) -> list[Stream]:
    return [stream for connection in (*pool.connections, *pool.retired) for stream in connection.streams.values()]


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon(loop.call_soon, call)


class SyncEngine:
    """The engine for threads. All instances share the process's one background loop; each has its own pools.

    `finish_open` is for stacks whose sessions may be closed while answers are being read: `close()` then lets every
    exchange that is under way come to its end, and closes the connections after the last one.
    """

    def __init__(
        self,
        options: Http2Options | None = None,
        *,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        finish_open: bool = False,
    ) -> None:
        self._engine = Engine(options, on_event=on_event)
        self.options = self._engine.options
        self._finish_open = finish_open
        self._finishing = False
        self._left = 0
        portal().attach(self._engine)

    def send(self, request: H2Request) -> SyncExchange | Http1Only:
        """Send one request; returns when the response head is here. As `Engine.send`, for threads."""
        engine = self._engine
        if engine._http1 and engine.speaks_http1(request.key):
            return Http1Only(request.key)
        if engine.closed:
            raise TransportError("the engine is closed", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT)
        fields, length = request_fields(request)
        gate = _portal
        exchange = SyncExchange(request, fields, length, gate, self.options)
        streamed = not (request.body is None or isinstance(request.body, bytes))
        if streamed:
            exchange.prepare_body()
        gate.post(partial(self._submit, exchange))
        if streamed:
            exchange.upload()
        exchange.wait_head()
        if exchange.outcome is not None:
            return exchange.outcome
        if exchange.error is not None and not exchange.status:
            raise exchange.error
        exchange.waiting = False
        return exchange

    def _submit(self, exchange: SyncExchange) -> None:
        try:
            self._reactor().submit(exchange)
            if self._finishing:
                self._await(exchange)  # it was on its way when the engine was closed
        except TransportError as error:
            exchange.end(error)
        except Exception as error:  # noqa: BLE001 - a thread is waiting: whatever it was, it must be told
            exchange.end(TransportError(f"cannot send: {type(error).__name__}: {error}", native=error))

    def _reactor(self) -> Reactor:
        """The share of the background loop, which is the one that runs this."""
        engine = self._engine
        loop = asyncio.get_running_loop()
        reactor = engine._reactors.get(loop)
        if reactor is None:
            _portal.attach(engine)
            reactor = engine.reactor(loop)
        return reactor

    def adopt(self, request: H2Request, sock: ssl.SSLSocket) -> None:
        """Serve this request's key over a connected socket on which ALPN chose h2. The socket is the engine's now."""
        if self._engine.closed:
            sock.close()
            raise TransportError("the engine is closed", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT)
        _portal.post(partial(self._adopt, request, sock))

    def _adopt(self, request: H2Request, sock: ssl.SSLSocket) -> None:
        try:
            self._reactor().adopt(request, sock)
        except TransportError:
            sock.close()

    def speaks_http1(self, key: Any) -> bool:
        """See `Engine.speaks_http1`."""
        return self._engine.speaks_http1(key)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._engine.stats()

    def connections(self) -> list[Any]:
        """See `Engine.connections`."""
        return self._engine.connections()

    def close(self, timeout: float | None = 1.0) -> None:
        """Close every connection and wait up to `timeout` seconds until they are; with `finish_open`, those with open
        exchanges close later and are not waited for. Idempotent."""
        if self._engine.closed or self._finishing:
            return
        gate = _portal
        if gate._loop is None or gate._loop not in self._engine._reactors:
            self._shut()
            return
        self._finishing = self._finish_open
        done = threading.Event()
        in_loop = threading.current_thread() is gate._thread
        if self._finish_open:
            step = partial(self._finish, done.set)
            step() if in_loop else gate.post(step)
        else:
            self._shut()
            if not in_loop:
                # Behind the close and the turns in which transports go down.
                gate.post(partial(_soon, gate.loop, done.set))
        if not in_loop:
            done.wait(timeout)

    def _shut(self) -> None:
        self._engine.close()
        _portal.detach(self._engine)

    def _finish(self, told: Callable[[], None]) -> None:
        """In the loop: wait for what is open, and tell the one who closed as soon as he need not wait any more."""
        loop = asyncio.get_running_loop()
        reactor = self._engine._reactors.get(loop)
        pools = [] if reactor is None else list(reactor.pools.values())
        self._left = 1  # this look itself, so that nothing ends before it is over
        for pool in pools:
            for stream in (*pool.waiting, *_streams(pool)):
                self._await(stream)
            for connection in tuple(pool.connections):
                if not connection.open:
                    connection.close()
        self._ended(None)
        # Behind the close and the turns in which transports go down.
        _soon(loop, partial(_soon, loop, told))

    def _await(self, stream: Stream) -> None:
        if not stream.ended:
            self._left += 1
            stream.on_end(self._ended)

    def _ended(self, error: BaseException | None) -> None:
        self._left -= 1
        if not self._left:
            # Not at once: the connection is in the middle of what ended its last stream.
            asyncio.get_running_loop().call_soon(self._shut_if_left)

    def _shut_if_left(self) -> None:
        if not self._left:
            self._shut()

    def __repr__(self) -> str:
        return f"<Sync{repr(self._engine)[1:]}"
