"""Asyncio: events reach their own loop from anywhere, also when that loop is gone."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from netkit.runtime import Asyncio


async def test_set_from_another_thread_wakes_the_loop() -> None:
    event = Asyncio().event()
    waiter = asyncio.create_task(event.wait(10))
    await asyncio.sleep(0)
    thread = threading.Thread(target=event.set)
    thread.start()
    assert await waiter is True
    thread.join()


async def test_set_shows_at_once_from_any_thread() -> None:
    event = Asyncio().event()
    thread = threading.Thread(target=event.set)
    thread.start()
    thread.join()
    assert event.is_set()
    assert await event.wait(0) is True


async def test_a_wait_that_times_out_or_is_cancelled_leaves_nothing_behind() -> None:
    event = Asyncio().event()
    assert await event.wait(0) is False
    waiter = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert not event._waiters


def test_set_in_a_second_loop_of_the_same_thread_does_not_touch_a_closed_loop() -> None:
    runtime = Asyncio()
    first = asyncio.new_event_loop()
    coroutine = None

    async def make() -> None:
        nonlocal coroutine
        event = runtime.event()
        coroutine = event.wait()
        coroutine.send(None)
        events.append(event)

    events: list[object] = []
    first.run_until_complete(make())
    first.close()

    async def use() -> None:
        events[0].set()  # type: ignore[attr-defined]

    asyncio.run(use())
    assert events[0].is_set()  # type: ignore[attr-defined]
    assert coroutine is not None
    coroutine.close()
    gc.collect()
