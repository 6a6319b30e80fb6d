"""A runtime for tests: time stands still until the test moves it, and every wait is a step that can be cancelled.

Example::

    runtime = Scripted()
    task = runtime.task(layer(request, send))
    runtime.run()                  # until everything waits
    assert task.waiting == "sleep 0.5"
    runtime.advance(0.5)           # timers fire in order
    assert task.result().status == 200

    for step in range(100):        # cancel at every await
        runtime = Scripted()
        task = runtime.task(layer(request, send), cancel_at=step)
        runtime.run_to_end()
        if not task.cancelled:
            break
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

__all__ = ["Scripted", "ScriptedTask"]

T = TypeVar("T")


class _Pause:
    """What a task yields to the script: why it waits, and whom to wake."""

    __slots__ = ("ready", "task", "why")

    def __init__(self, why: str) -> None:
        self.why = why
        self.ready = False
        self.task: ScriptedTask | None = None

    def __await__(self) -> Generator[_Pause, None, None]:
        if not self.ready:
            yield self

    def wake(self) -> None:
        if not self.ready:
            self.ready = True
            # A task that was cancelled out of this pause may wait elsewhere by now.
            if self.task is not None and self.task.pause is self:
                self.task.wake()


class ScriptedTask:
    """A coroutine that a test drives. `steps` counts its waits so far, `waiting` names the present one."""

    def __init__(
        self, runtime: Scripted, coroutine: Coroutine[Any, Any, Any], name: str, cancel_at: int | None
    ) -> None:
        self._runtime = runtime
        self._coroutine = coroutine
        self._queued = False
        self.pause: _Pause | None = None
        self._cancel = False
        self._cancel_at = cancel_at
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._expired: list[_Limit] = []
        self.name = name
        self.steps = 0
        self.context: contextvars.Context | None = None
        """What it runs in; None: the test's own."""
        self.wake()

    @property
    def waiting(self) -> str | None:
        """Why it waits ("sleep 0.5", "event", "checkpoint …"), None when it is runnable or done."""
        return None if self.pause is None else self.pause.why

    @property
    def cancelled(self) -> bool:
        return self._outcome is not None and isinstance(self._outcome[1], asyncio.CancelledError)

    def done(self) -> bool:
        return self._outcome is not None

    def result(self) -> Any:
        """What it returned; raises what it raised; AssertionError while it still waits."""
        assert self._outcome is not None, f"{self.name} still waits: {self.waiting}"
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def expire(self, limit: _Limit) -> None:
        """The time limit around its present wait has come."""
        if self._outcome is None:
            self._expired.append(limit)
            self.wake()

    def cancel(self) -> None:
        """Raise CancelledError inside it at its present wait (or before its first step)."""
        if self._outcome is None:
            self._cancel = True
            self.wake()

    def wake(self) -> None:
        self.pause = None
        if not self._queued:
            self._queued = True
            self._runtime.ready.append(self)

    def step(self) -> None:
        """Run it to its next wait. The runtime calls this."""
        self._queued = False
        if self._outcome is not None:
            return
        self._runtime.stepping = self
        try:
            if self._expired:
                self._expired.pop(0).fired = True
                pause = self._coroutine.throw(asyncio.CancelledError())
            elif self._cancel or self._cancel_at == self.steps:
                self._cancel, self._cancel_at = False, None
                pause = self._coroutine.throw(asyncio.CancelledError())
            else:
                pause = (
                    self._coroutine.send(None)
                    if self.context is None
                    else self.context.run(self._coroutine.send, None)
                )
        except StopIteration as stop:
            self._outcome = (stop.value, None)
        except BaseException as error:  # noqa: BLE001 - a task's outcome is whatever it raised
            self._outcome = (None, error)
        else:
            self._wait(pause)

    def _wait(self, pause: Any) -> None:
        if not isinstance(pause, _Pause):
            raise AssertionError(f"{self.name} awaited a foreign {type(pause).__name__}")
        self.steps += 1
        if pause.ready or self._cancel_at == self.steps:
            self.wake()
        else:
            self.pause = pause
            pause.task = self

    def __repr__(self) -> str:
        return f"<ScriptedTask {self.name} {'done' if self.done() else self.waiting or 'ready'}>"


class _ScriptedEvent:
    def __init__(self, runtime: Scripted) -> None:
        self._runtime = runtime
        self._set = False
        self._waiters: list[_Pause] = []

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def is_set(self) -> bool:
        return self._set

    async def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        pause = _Pause("event" if timeout is None else f"event or {timeout:g}")
        self._waiters.append(pause)
        timer = None if timeout is None else self._runtime.timer(timeout, pause.wake)
        try:
            await pause
        finally:
            if timer is not None:
                timer.cancelled = True
            if pause in self._waiters:
                self._waiters.remove(pause)
        return self._set


class _Limit:
    """A time limit around what one task does."""

    def __init__(self, runtime: Scripted, seconds: float) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self.fired = False

    async def __aenter__(self) -> None:
        task = self._runtime.stepping
        assert task is not None
        self._timer = self._runtime.timer(self._seconds, lambda: task.expire(self))

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._timer.cancelled = True
        if self.fired and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error


class _Timer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False


class Scripted:
    """Runs tasks in a fixed order on a clock that only `advance()` moves. Single-threaded."""

    name = "scripted"

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self.ready: deque[ScriptedTask] = deque()
        self.stepping: ScriptedTask | None = None
        """The task that runs now, or ran last."""
        self.tasks: list[ScriptedTask] = []

    def now(self) -> float:
        return self._now

    def timer(self, delay: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, delay), next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        pause = _Pause(f"sleep {seconds:g}")
        timer = self.timer(seconds, pause.wake)
        try:
            await pause
        finally:
            timer.cancelled = True

    async def checkpoint(self, why: str = "checkpoint") -> None:
        """A wait that ends at the next `run()`: for a scripted `send` that takes a step."""
        pause = _Pause(why)
        pause.ready = False
        timer = self.timer(0.0, pause.wake)
        try:
            await pause
        finally:
            timer.cancelled = True

    def timeout(self, seconds: float) -> _Limit:
        return _Limit(self, seconds)

    def event(self) -> _ScriptedEvent:
        return _ScriptedEvent(self)

    def wake(self, events: Sequence[Any]) -> None:
        for event in events:
            event.set()

    def place(self) -> object:
        return self

    def undisturbed(self) -> bool:
        return False

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        await self.checkpoint("offload")
        return function(*args)

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], *, name: str, context: contextvars.Context | None = None
    ) -> ScriptedTask:
        task = self.task(coroutine, name=name)
        task.context = contextvars.Context() if context is None else context
        return task

    def task(
        self, coroutine: Coroutine[Any, Any, Any], *, name: str = "task", cancel_at: int | None = None
    ) -> ScriptedTask:
        """Start a task; `cancel_at=n` cancels it at its n-th wait (0: before its first step)."""
        task = ScriptedTask(self, coroutine, name, cancel_at)
        self.tasks.append(task)
        return task

    def run(self) -> None:
        """Run until every task waits for something in the future, or is done."""
        while True:
            while self.ready:
                self.ready.popleft().step()
            if not self._fire(self._now):
                return

    def advance(self, seconds: float) -> None:
        """Move the clock, firing timers in order on the way."""
        end = self._now + seconds
        self.run()
        while self._timers and self._timers[0][0] <= end:
            self._now = max(self._now, self._timers[0][0])
            self._fire(self._now)
            self.run()
        self._now = end
        self.run()

    def run_to_end(self, limit: float = 3600.0) -> None:
        """Run, moving the clock to each next timer, until all tasks are done; AssertionError if one never is."""
        end = self._now + limit
        self.run()
        while any(not task.done() for task in self.tasks):
            live = [when for when, _, timer in self._timers if not timer.cancelled]
            if not live or min(live) > end:
                raise AssertionError(f"stuck: {[task for task in self.tasks if not task.done()]}")
            self.advance(max(0.0, min(live) - self._now))

    def _fire(self, now: float) -> bool:
        """Fire the timers that are due; whether one fired."""
        fired = False
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                fired = True
                timer.callback()
        return fired

    def __repr__(self) -> str:
        return f"<Scripted t={self._now:g} tasks={self.tasks}>"
