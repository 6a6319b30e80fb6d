"""The runtime of synchronous stacks: every wait blocks the calling thread."""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from netkit.flow import run_sync

__all__ = ["Threads", "checkpoint", "interruptible", "time_left"]

T = TypeVar("T")
log = logging.getLogger("netkit")


class _Cancelled(BaseException):
    """Ends spawned work at its next wait, as CancelledError does in a loop."""


class _Expired(BaseException):
    """Ends a wait whose time limit has come; what cancellation is in a loop."""

    def __init__(self, until: float) -> None:
        self.until = until


_current = threading.local()


def time_left() -> float | None:
    """Seconds that the innermost `timeout` around this thread leaves it; None without one."""
    until: float | None = getattr(_current, "until", None)
    return None if until is None else until - time.monotonic()


def interruptible(interrupt: Callable[[], None]) -> AbstractContextManager[bool]:
    """`with interruptible(shut_socket):` around a call that blocks outside of the runtime.

    In spawned work that is cancelled meanwhile, `interrupt` is called from the thread that cancels it: it makes the
    call fail soon, must not block, and is never called after the block was left. The failure then counts as the
    cancellation that it is. A call that succeeds all the same keeps its result; the work is cancelled at its next
    wait. Everywhere else the block does nothing. As its value it has whether this is spawned work.

    An `interrupt` that comes before there is anything to interrupt, a socket that is still being connected, is
    caught up on by `checkpoint`.
    """
    job: _Job | None = getattr(_current, "job", None)
    return _NOTHING if job is None else _Interruptible(job, interrupt)


def checkpoint() -> None:
    """End spawned work here if it was cancelled: called once there is something that `interrupt` can shut, and before
    the next step that blocks. Everywhere else it does nothing."""
    job: _Job | None = getattr(_current, "job", None)
    if job is not None:
        job.check()


_NOTHING: Final = nullcontext(False)


class _Interruptible:
    __slots__ = ("_interrupt", "_job")

    def __init__(self, job: _Job, interrupt: Callable[[], None]) -> None:
        self._job = job
        self._interrupt = interrupt

    def __enter__(self) -> bool:
        self._job.block_in(self._interrupt)
        return True

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._job.unblock(failed=isinstance(error, Exception)):
            raise _Cancelled from None


class _Limit:
    """`async with` for code that a thread steps through."""

    __slots__ = ("_outer", "_seconds", "_until")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> None:
        self._outer: float | None = getattr(_current, "until", None)
        until = time.monotonic() + self._seconds
        self._until = until if self._outer is None else min(until, self._outer)
        _current.until = self._until

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        _current.until = self._outer
        if isinstance(error, _Expired) and error.until == self._until != self._outer:
            raise TimeoutError from None


class _ThreadEvent:
    __slots__ = ("_following", "_lock", "_main_waits", "_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        # Entered again by a collector that runs inside it, ends a body, and so sets this very event.
        self._lock = threading.RLock()
        self._waiters: list[threading.Lock] | None = None
        self._following: _ThreadEvent | None = None
        self._main_waits = False

    def set(self) -> None:
        event: _ThreadEvent | None = self
        while event is not None:
            event = event._release()

    def follow(self, following: _ThreadEvent) -> None:
        """Have `following` set by whoever wakes from this one."""
        with self._lock:
            earlier, self._following = self._following, following
        if earlier is not None:
            earlier.set()

    def _release(self) -> _ThreadEvent | None:
        """Set it. The event that is now to be set because nobody wakes here who would do it."""
        with self._lock:
            self._set = True
            waiters, self._waiters = self._waiters, None
            # The main thread may be interrupted before it does anything for others.
            following = self._followed() if not waiters or self._main_waits else None
        for waiter in waiters or ():
            waiter.release()
        return following

    def _followed(self) -> _ThreadEvent | None:
        following, self._following = self._following, None
        return following

    def is_set(self) -> bool:
        return self._set

    async def wait(self, timeout: float | None = None) -> bool:
        job: _Job | None = getattr(_current, "job", None)
        if job is not None:
            return job.wait_for(self, timeout)
        until: float | None = getattr(_current, "until", None)
        if until is None:
            return self.block(timeout)
        left = until - time.monotonic()
        if timeout is not None and timeout < left:
            return self.block(timeout)
        if not self.block(left):
            raise _Expired(until)
        return True

    def block(self, timeout: float | None, job: _Job | None = None) -> bool:
        """Wait in this thread; a `job` that is cancelled wakes early."""
        # One raw lock per waiter: a Condition would take its lock twice per wake-up and wakes in no fixed order.
        following = None
        with self._lock:
            if self._set or (job is not None and job.cancelled):
                return self._set
            waiter = threading.Lock()
            waiter.acquire()
            waiters = self._waiters or []
            waiters.append(waiter)
            self._waiters = waiters
            if threading.get_ident() == threading.main_thread().ident:
                self._main_waits = True
            if job is not None:
                job.waiter = waiter
            collected = self.is_set()
            if collected:
                # By a collector, since the first look: nobody would wake this caller, and it has nothing to wait for.
                self._waiters = None
                following = self._followed()
        try:
            if not collected:
                waiter.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                if self._waiters is not None and waiter in self._waiters:
                    self._waiters.remove(waiter)
                following = following or (self._followed() if self.is_set() else None)
            if following is not None:
                following.set()
        return self._set

    def interrupt(self, job: _Job) -> None:
        """Wake `job` alone, without setting the flag, so that it sees its own cancellation."""
        with self._lock:
            waiter = job.waiter
            if waiter is None or self._waiters is None or waiter not in self._waiters:
                return
            self._waiters.remove(waiter)
        waiter.release()


class _Job:
    """Spawned work in a thread of its own; cancelled at its next wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str, context: contextvars.Context) -> None:
        self._coroutine = coroutine
        self.cancelled = False
        self.waiter: threading.Lock | None = None
        self._waiting: _ThreadEvent | None = None
        self._interrupt: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._finished = False
        self._context = context
        self._thread = threading.Thread(target=self._run, name=f"netkit-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _current.job = self
        try:
            self._context.run(run_sync, self._coroutine)
        except _Cancelled:
            pass
        except Exception:
            log.exception("netkit: %s failed", self._thread.name)
        finally:
            self._finished = True

    def wait_for(self, event: _ThreadEvent, timeout: float | None) -> bool:
        with self._lock:
            if self._interrupted():
                raise _Cancelled
            self._waiting = event
        # `cancel` from here on either is seen by `block` before it waits, or finds its waiter.
        result = event.block(timeout, self)
        with self._lock:
            self._waiting = self.waiter = None
            if not result and self._interrupted():
                raise _Cancelled
        return result

    def block_in(self, interrupt: Callable[[], None]) -> None:
        with self._lock:
            if self._interrupted():
                raise _Cancelled
            self._interrupt = interrupt

    def check(self) -> None:
        with self._lock:
            if self._interrupted():
                raise _Cancelled

    def unblock(self, *, failed: bool) -> bool:
        """Whether what failed was cancelled."""
        with self._lock:
            self._interrupt = None
            return failed and self._interrupted()

    def _interrupted(self) -> bool:
        # Told once, as in a loop: what the work awaits while it cleans up is not cut short again.
        cancelled, self.cancelled = self.cancelled, False
        return cancelled

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            waiting = self._waiting
            if self._interrupt is not None:
                # Under the lock: what the work does next is not meant.
                self._interrupt()
        if waiting is not None:
            waiting.interrupt(self)

    def done(self) -> bool:
        return self._finished


class Threads:
    """Waits by blocking. Any number of threads may share one instance."""

    name = "threads"

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        job: _Job | None = getattr(_current, "job", None)
        if job is not None:
            job.wait_for(_ThreadEvent(), max(0.0, seconds))
            return
        until: float | None = getattr(_current, "until", None)
        if until is None or seconds < (left := until - time.monotonic()):
            # Giving way takes some 60 µs: not where there is nobody.
            if seconds > 0 or threading.active_count() > 1:
                time.sleep(max(0.0, seconds))
            return
        time.sleep(max(0.0, left))
        raise _Expired(until)

    def event(self) -> _ThreadEvent:
        return _ThreadEvent()

    def wake(self, events: Sequence[Any]) -> None:
        # One by one, each by the one before: woken all at once, they would queue for the interpreter, and each of
        # those who wait there wakes every few milliseconds to ask for it.
        for event, following in itertools.pairwise(events):
            event.follow(following)
        if events:
            events[0].set()

    def timeout(self, seconds: float) -> _Limit:
        return _Limit(seconds)

    def place(self) -> object:
        return self

    def undisturbed(self) -> bool:
        return getattr(_current, "job", None) is None and threading.current_thread() is not threading.main_thread()

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        return function(*args)

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], *, name: str, context: contextvars.Context | None = None
    ) -> _Job:
        return _Job(coroutine, name, contextvars.Context() if context is None else context)

    def __repr__(self) -> str:
        return "<Threads>"
