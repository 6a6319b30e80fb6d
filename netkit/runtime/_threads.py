"""The runtime of synchronous stacks: every wait blocks the calling thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from netkit.flow import run_sync

__all__ = ["Threads"]

T = TypeVar("T")
log = logging.getLogger("netkit")


class _Cancelled(BaseException):
    """Ends spawned work at its next wait, as CancelledError does in a loop."""


_current = threading.local()


class _ThreadEvent:
    __slots__ = ("_lock", "_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._lock = threading.Lock()
        self._waiters: list[threading.Lock] | None = None

    def set(self) -> None:
        with self._lock:
            self._set = True
            waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter.release()

    def is_set(self) -> bool:
        return self._set

    async def wait(self, timeout: float | None = None) -> bool:
        job: _Job | None = getattr(_current, "job", None)
        if job is not None:
            return job.wait_for(self, timeout)
        return self.block(timeout)

    def block(self, timeout: float | None) -> bool:
        # One raw lock per waiter: a Condition would take its lock twice per wake-up and wakes in no fixed order.
        with self._lock:
            if self._set:
                return True
            waiter = threading.Lock()
            waiter.acquire()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
        waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        return self._set

    def wake(self) -> None:
        """Wake waiters without setting the flag, so that they can see their own cancellation."""
        with self._lock:
            waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter.release()


class _Job:
    """Spawned work in a thread of its own; cancelled at its next wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._coroutine = coroutine
        self._cancelled: list[bool] = []
        self._waiting: _ThreadEvent | None = None
        self._lock = threading.Lock()
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=f"netkit-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _current.job = self
        try:
            run_sync(self._coroutine)
        except _Cancelled:
            pass
        except Exception:
            log.exception("netkit: %s failed", self._thread.name)
        finally:
            self._finished = True

    def wait_for(self, event: _ThreadEvent, timeout: float | None) -> bool:
        with self._lock:
            if self._cancelled:
                raise _Cancelled
            self._waiting = event
        result = event.block(timeout)
        with self._lock:
            self._waiting = None
            cancelled = bool(self._cancelled)
        if cancelled and not result:
            raise _Cancelled
        return result

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.append(True)
            waiting = self._waiting
        if waiting is not None:
            waiting.wake()

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
        else:
            time.sleep(max(0.0, seconds))

    def event(self) -> _ThreadEvent:
        return _ThreadEvent()

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        return function(*args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> _Job:
        return _Job(coroutine, name)

    def __repr__(self) -> str:
        return "<Threads>"
