"""Trio's side of the asynchronous runtime: imported only when a layer waits inside a trio program."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, TypeVar

import trio

__all__ = ["event", "offload", "place", "sleep", "spawn"]

T = TypeVar("T")
log = logging.getLogger("netkit")


async def sleep(seconds: float) -> None:
    await trio.sleep(max(0.0, seconds))


@asynccontextmanager
async def timeout(seconds: float) -> AsyncIterator[None]:
    with trio.move_on_after(max(0.0, seconds)) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError


class _TrioEvent:
    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def set(self) -> None:
        try:
            inside = trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            inside = False
        if inside:
            self._event.set()
            return
        try:
            self._token.run_sync_soon(self._event.set)
        except trio.RunFinishedError:
            # That run is over: nobody is left in it to wake.
            pass

    def is_set(self) -> bool:
        return bool(self._event.is_set())

    async def wait(self, timeout: float | None = None) -> bool:
        with trio.move_on_after(float("inf") if timeout is None else max(0.0, timeout)):
            await self._event.wait()
        return bool(self._event.is_set())


def event() -> _TrioEvent:
    return _TrioEvent()


def place() -> object:
    return trio.lowlevel.current_trio_token()


async def offload(function: Callable[..., T], *args: Any) -> T:
    result: T = await trio.to_thread.run_sync(lambda: function(*args))
    return result


class _SystemTask:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str, context: Context | None) -> None:
        self._scope = trio.CancelScope()
        self._finished = False
        self._name = name
        trio.lowlevel.spawn_system_task(self._run, coroutine, name=f"netkit-{name}", context=context)

    async def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            with self._scope:
                await coroutine
        except Exception:
            log.exception("netkit: netkit-%s failed", self._name)
        finally:
            self._finished = True

    def cancel(self) -> None:
        self._scope.cancel()

    def done(self) -> bool:
        return self._finished


def spawn(coroutine: Coroutine[Any, Any, Any], *, name: str, context: Context | None = None) -> _SystemTask:
    return _SystemTask(coroutine, name, context)
