"""The watcher in real threads and loops: one for the process, one per loop, gone when there is nothing to watch."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from netkit_plugins.pool.sweep import Sweeper, sweeper_for

from netkit.runtime import Asyncio, Threads


class Pool:
    sweep_interval = 0.01

    def __init__(self) -> None:
        self.open = True
        self.swept = threading.Event()

    def sweep(self) -> bool:
        self.swept.set()
        return self.open


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "netkit-pool-sweep"]


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    return condition()


def test_threads_share_one_watcher_and_the_last_to_close_ends_it() -> None:
    runtime, sweeper = Threads(), Sweeper()
    assert sweeper_for(runtime) is sweeper_for(Threads())
    first, second = Pool(), Pool()
    both = [first, second]
    pokers = [threading.Thread(target=sweeper.poke, args=(pool, runtime)) for pool in both * 8]
    for poker in pokers:
        poker.start()
    for poker in pokers:
        poker.join()
    assert first.swept.wait(20)
    assert second.swept.wait(20)
    assert len(watchers()) == 1
    sweeper.forget(first)
    second.swept.clear()
    assert second.swept.wait(20)
    sweeper.forget(second)
    assert until(lambda: not watchers())


def test_it_ends_by_itself_and_starts_again() -> None:
    runtime, sweeper, pool = Threads(), Sweeper(), Pool()
    for _ in range(3):
        pool.swept.clear()
        sweeper.poke(pool, runtime)
        assert pool.swept.wait(20)
        pool.open = False
        assert until(lambda: not watchers())
        pool.open = True
    assert repr(sweeper) == "<Sweeper watched=0 running=0>"


async def test_a_loops_watcher_ends_with_close() -> None:
    runtime, pool = Asyncio(), Pool()
    sweeper = sweeper_for(runtime)
    sweeper.poke(pool, runtime)
    while not pool.swept.is_set():
        await asyncio.sleep(0.001)
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "netkit-pool-sweep"]
    sweeper.forget(pool)
    await asyncio.wait([task], timeout=20)
    assert task.cancelled()


def test_a_watcher_that_went_with_its_loop_is_replaced() -> None:
    runtime, pool = Asyncio(), Pool()
    sweeper = sweeper_for(runtime)

    async def use() -> Any:
        pool.swept.clear()
        sweeper.poke(pool, runtime)
        while not pool.swept.is_set():
            await asyncio.sleep(0.001)

    for _ in range(3):
        # asyncio.run cancels what is left when it ends.
        asyncio.run(use())
    assert repr(sweeper) == "<Sweeper watched=1 running=0>"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_its_own() -> None:
    runtime, sweeper, pool = Threads(), Sweeper(), Pool()
    sweeper.poke(pool, runtime)
    assert pool.swept.wait(20)
    child = os.fork()
    if child == 0:
        pool.swept = threading.Event()
        sweeper.poke(pool, runtime)
        os._exit(0 if pool.swept.wait(20) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sweeper.forget(pool)
    assert until(lambda: not watchers())
