"""Scripted: what the other tests lean on."""

from __future__ import annotations

import asyncio

import pytest

from netkit.runtime import Scripted


def test_time_moves_only_when_told_and_timers_fire_in_order() -> None:
    runtime, seen = Scripted(), []

    async def sleeper(seconds: float) -> None:
        await runtime.sleep(seconds)
        seen.append((seconds, runtime.now()))

    for seconds in (3, 1, 2):
        runtime.task(sleeper(seconds))
    runtime.run()
    assert seen == []
    runtime.advance(2)
    assert seen == [(1, 1001), (2, 1002)]
    runtime.run_to_end()
    assert seen[-1] == (3, 1003)


def test_cancel_at_reaches_each_wait_in_turn() -> None:
    reached = []
    for step in range(5):
        runtime = Scripted()

        async def work(runtime: Scripted = runtime) -> str:
            await runtime.sleep(1)
            await runtime.event().wait(1)
            return "done"

        task = runtime.task(work(), cancel_at=step)
        runtime.run_to_end()
        reached.append(task.cancelled)
    assert reached == [True, True, True, False, False]


def test_a_task_that_cleans_up_after_cancellation_is_not_woken_by_what_it_waited_for() -> None:
    runtime = Scripted()
    first, second = runtime.event(), runtime.event()
    seen = []

    async def work() -> None:
        try:
            await first.wait()
        except asyncio.CancelledError:
            seen.append(await second.wait())

    task = runtime.task(work())
    runtime.run()
    task.cancel()
    first.set()
    runtime.run()
    assert not task.done()
    assert seen == []
    second.set()
    runtime.run()
    assert seen == [True]
    assert task.done()


def test_a_foreign_awaitable_is_named() -> None:
    runtime = Scripted()

    async def work() -> None:
        await asyncio.sleep(0)

    runtime.task(work())
    with pytest.raises(AssertionError, match="awaited a foreign"):
        runtime.run()


def test_a_stuck_task_is_reported() -> None:
    runtime = Scripted()
    task = runtime.task(runtime.event().wait(), name="lost")
    with pytest.raises(AssertionError, match=r"stuck: .*lost event"):
        runtime.run_to_end()
    task.cancel()
    runtime.run()
    assert task.cancelled
