"""The runtime of asynchronous stacks: asyncio, and trio where httpx runs on it.

Rules of this file:

- The loop is looked up at each wait, never kept by the runtime: one client may serve several loops in turn.
- An event belongs to the loop in which it was made; `set()` from elsewhere goes through that loop's own door.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from typing import Any, TypeVar

__all__ = ["Asyncio"]

T = TypeVar("T")
log = logging.getLogger("netkit")


class _LoopEvent:
    __slots__ = ("_loop", "_set", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def set(self) -> None:
        self._set = True
        # The running loop, not the thread, decides: one thread may run several loops, one after the other.
        if asyncio._get_running_loop() is self._loop:
            self._wake()
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # That loop is closed: nobody is left in it to wake. The flag still tells a later look.
            pass

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def is_set(self) -> bool:
        return self._set

    async def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        waiter = self._loop.create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        timer = None if timeout is None else self._loop.call_later(max(0.0, timeout), _finish, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if self._waiters is not None and waiter in self._waiters:
                self._waiters.remove(waiter)
        return self._set


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Pool:
    """The bounded worker pool for offloaded work; a forked child starts its own."""

    def __init__(self) -> None:
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def get(self) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                workers = min(8, (os.cpu_count() or 1) + 1)
                self._executor = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="netkit-offload")
            return self._executor


_pool = _Pool()


def _fresh_pool() -> None:
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_fresh_pool)


class Asyncio:
    """Waits by suspending the calling task. One instance serves any number of loops."""

    name = "asyncio"

    def __init__(self) -> None:
        self._spawned: dict[asyncio.AbstractEventLoop, set[asyncio.Task[Any]]] = {}
        """What runs now, by its loop."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        if asyncio._get_running_loop() is None:
            await _trio().sleep(seconds)
        else:
            await asyncio.sleep(max(0.0, seconds))

    def event(self) -> Any:
        loop = asyncio._get_running_loop()
        return _trio().event() if loop is None else _LoopEvent(loop)

    def wake(self, events: Sequence[Any]) -> None:
        for event in events:
            event.set()

    def place(self) -> object:
        loop = asyncio._get_running_loop()
        return _trio().place() if loop is None else loop

    def undisturbed(self) -> bool:
        return False

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[Any]:
        if asyncio._get_running_loop() is None:
            return _trio().timeout(seconds)  # type: ignore[no-any-return]
        return asyncio.timeout(seconds)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        loop = asyncio._get_running_loop()
        if loop is None:
            result: T = await _trio().offload(function, *args)
            return result
        return await loop.run_in_executor(_pool.get(), function, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str, context: Context | None = None) -> Any:
        if asyncio._get_running_loop() is None:
            return _trio().spawn(coroutine, name=name, context=context)
        loop = asyncio.get_running_loop()
        task = loop.create_task(coroutine, name=f"netkit-{name}", context=Context() if context is None else context)
        known = self._spawned.get(loop)
        if known is None:
            self._give_up_closed()
            known = self._spawned[loop] = set()
        known.add(task)
        task.add_done_callback(self._reap)
        return task

    def _give_up_closed(self) -> None:
        """Work whose loop was closed under it will never go on: what it holds (slots, counts) is given back."""
        for loop in [loop for loop in list(self._spawned) if loop.is_closed()]:
            for task in self._spawned.pop(loop, ()):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(Exception):
                    # What it would do on the way out in its loop cannot be done any more.
                    task.get_coro().close()

    def _reap(self, task: asyncio.Task[Any]) -> None:
        loop = task.get_loop()
        known = self._spawned.get(loop)
        if known is not None:
            known.discard(task)
            if not known:
                self._spawned.pop(loop, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("netkit: %s failed", task.get_name(), exc_info=error)

    def __repr__(self) -> str:
        return "<Asyncio>"


def _trio() -> Any:
    from netkit.runtime import _trio as runtime

    return runtime
