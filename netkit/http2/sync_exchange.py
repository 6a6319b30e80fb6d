"""One request and its answer as the thread that sent it holds them.

Rules of this file:

- A waiting thread sleeps on a raw lock of its own exchange; wake-ups may be spurious, conditions are checked again.
- What changes the exchange runs in the loop: the thread posts it there.
"""

from __future__ import annotations

import _thread
from functools import partial
from typing import TYPE_CHECKING, Any

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.exchange import Stream
from netkit.http2.options import H2Request, Http2Options
from netkit.http2.protocol import Header
from netkit.http2.upload import HIGH, Fed
from netkit.runtime import interruptible, time_left

if TYPE_CHECKING:
    from netkit.http2.portal import Portal

__all__ = ["SyncExchange"]


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
        self._options = options
        self._portal = portal
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

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
        if self._taken >= max(16384, self._options.stream_window // 8) or (self.ended and not self.chunks):
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
