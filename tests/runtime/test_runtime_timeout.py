"""`runtime.timeout`: the same words in threads, in loops, under trio and on the script."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio

from netkit.flow import run_sync
from netkit.runtime import Asyncio, Scripted, Threads, time_left

RUNNERS: dict[str, tuple[Any, Callable[[Coroutine[Any, Any, Any]], Any]]] = {
    "threads": (Threads(), run_sync),
    "asyncio": (Asyncio(), lambda work: asyncio.run(work)),
    "trio": (Asyncio(), lambda work: trio.run(lambda: work)),
}


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> tuple[Any, Callable[..., Any]]:
    return RUNNERS[request.param]


def test_a_sleep_ends_when_the_time_is_up(runner: Any) -> None:
    runtime, run = runner

    async def work() -> None:
        async with runtime.timeout(0.02):
            await runtime.sleep(60)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        run(work())
    assert time.monotonic() - started < 10


def test_so_does_the_wait_for_an_event(runner: Any) -> None:
    runtime, run = runner

    async def work() -> None:
        async with runtime.timeout(0.02):
            await runtime.event().wait(60)

    with pytest.raises(TimeoutError):
        run(work())


def test_what_ends_in_time_is_left_alone(runner: Any) -> None:
    runtime, run = runner

    async def work() -> str:
        async with runtime.timeout(60):
            await runtime.sleep(0)
            assert not await runtime.event().wait(0.001)
            event = runtime.event()
            event.set()
            assert await event.wait()
        await runtime.sleep(0.001)
        return "done"

    assert run(work()) == "done"


def test_the_outer_limit_passes_through_an_inner_one(runner: Any) -> None:
    runtime, run = runner
    seen: list[str] = []

    async def work() -> None:
        async with runtime.timeout(0.02):
            try:
                async with runtime.timeout(60):
                    await runtime.sleep(60)
            except TimeoutError:
                seen.append("inner")
                raise

    with pytest.raises(TimeoutError):
        run(work())
    assert seen == []


def test_the_inner_limit_leaves_the_outer_one_alone(runner: Any) -> None:
    runtime, run = runner

    async def work() -> str:
        async with runtime.timeout(60):
            with pytest.raises(TimeoutError):
                async with runtime.timeout(0.01):
                    await runtime.sleep(60)
            await runtime.sleep(0)
        return "done"

    assert run(work()) == "done"


def test_other_errors_pass(runner: Any) -> None:
    runtime, run = runner

    async def work() -> None:
        async with runtime.timeout(60):
            raise KeyError("x")

    with pytest.raises(KeyError):
        run(work())
    assert time_left() is None


def test_a_limit_binds_its_own_thread_alone() -> None:
    seen: list[float | None] = []

    async def work() -> None:
        async with Threads().timeout(60):
            other = threading.Thread(target=lambda: seen.append(time_left()))
            other.start()
            other.join()
            seen.append(time_left())

    run_sync(work())
    assert seen[0] is None
    assert seen[1] is not None
    assert 59 < seen[1] <= 60


def test_on_the_script() -> None:
    runtime = Scripted()
    seen: list[str] = []

    async def work() -> str:
        try:
            async with runtime.timeout(2.0):
                try:
                    await runtime.sleep(5.0)
                finally:
                    seen.append("cleaned up")
        except TimeoutError:
            return "late"
        return "in time"

    task = runtime.task(work())
    runtime.advance(1.9)
    assert task.waiting == "sleep 5"
    runtime.advance(0.2)
    assert task.result() == "late"
    assert seen == ["cleaned up"]


def test_on_the_script_a_cancellation_stays_one() -> None:
    runtime = Scripted()

    async def work() -> None:
        async with runtime.timeout(2.0):
            await runtime.sleep(5.0)

    task = runtime.task(work())
    runtime.run()
    task.cancel()
    runtime.advance(10.0)
    assert task.cancelled
