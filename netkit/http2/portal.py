"""One background loop per process, which threads hand their work to in batches.

Rules of this file:

- Only the first hand-over of a burst wakes the loop; one wake-up of the loop serves all that are there, and what they
  make ready to write is written behind the last of them.
- What runs in the loop runs in no caller's context.
- A forked child starts afresh: the parent's thread does not exist there.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Final

from netkit.errors import FailureKind, TransportError, Verdict

__all__ = ["Portal", "portal"]

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
        self._ring: Callable[[], object] | None = None
        """Wakes the loop, from any thread."""
        self._bell: int | None = None
        self._behind: list[Callable[[], None]] | None = None
        """While a batch is served: what is to run behind it."""
        self._stopped = False

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop, in the order of posting. It must not raise."""
        self._inbox.append(call)
        if not self._signalled:
            try:
                self._signalled = True
                ring = self._ring
                if ring is None or self._stopped:
                    ring = self._start()
                ring()
            except RuntimeError as error:
                raise _shutting_down() from error
            except BaseException:
                self._signalled = False
                raise

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        if self._loop is None:
            self._start()
        assert self._loop is not None
        return self._loop

    def soon(self, call: Callable[[], None]) -> None:
        """Run `call` behind the batch that is being served, else in the loop's next turn. In the loop only."""
        if self._behind is not None:
            self._behind.append(call)
        else:
            self.loop.call_soon(call)

    def _start(self) -> Callable[[], object]:
        with self._starting:
            if self._stopped:
                raise _shutting_down()
            if self._ring is None:
                loop = asyncio.new_event_loop()
                ring = Context().run(self._hang_bell, loop)
                self._thread = threading.Thread(target=self._run, args=(loop,), name="netkit-http2", daemon=True)
                self._thread.start()
                self._loop = loop
                self._ring = ring
            return self._ring

    def _hang_bell(self, loop: asyncio.AbstractEventLoop) -> Callable[[], object]:
        """How `loop` is woken: through an eventfd where there is one, at half the cost of asyncio's own way, which
        makes a handle and a context for each call and reads until there is nothing more."""
        if not hasattr(os, "eventfd"):
            return partial(loop.call_soon_threadsafe, self._drain)
        # Never closed in this process: a thread on its way to ring must not meet another file under its number.
        self._bell = bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(bell, self._rung, bell)
        return partial(os.eventfd_write, bell, 1)

    def _rung(self, bell: int) -> None:
        os.eventfd_read(bell)
        self._drain()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _drain(self) -> None:
        self._signalled = False
        inbox = self._inbox
        behind: list[Callable[[], None]] = []
        self._behind = behind
        try:
            while inbox:
                call = inbox.popleft()
                try:
                    call()
                except Exception:
                    log.exception("netkit: a hand-over to the HTTP/2 loop failed")
        finally:
            self._behind = None
            for call in behind:
                call()

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

    def disown(self) -> None:
        """In a forked child: give back what is a copy of the parent's."""
        if self._bell is not None:
            os.close(self._bell)

    def __repr__(self) -> str:
        return f"<Portal {'running' if self._loop else 'idle'} inbox={len(self._inbox)}>"


def _shutting_down() -> TransportError:
    return TransportError("the interpreter is shutting down", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT)


_portal = Portal()


def portal() -> Portal:
    """This process's portal."""
    return _portal


def _after_fork() -> None:
    global _portal
    before, _portal = _portal, Portal()
    before.disown()


def _at_exit() -> None:
    _portal.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
