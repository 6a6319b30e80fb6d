"""The gate: never more at once than allowed, first come first served, nothing lost however a caller leaves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from netkit_plugins.image.gate import Gate, gate_of

from netkit.flow import run_sync
from netkit.runtime import Asyncio, Scripted, Threads


class Work:
    """Counts what runs at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.done = 0
        self.bytes = self.most_bytes = 0

    def __call__(self, cost: int) -> int:
        with self._lock:
            self.now += 1
            self.bytes += cost
            self.most, self.most_bytes = max(self.most, self.now), max(self.most_bytes, self.bytes)
        sum(range(2000))
        with self._lock:
            self.now -= 1
            self.bytes -= cost
            self.done += 1
        return cost


def at_rest(gate: Gate) -> bool:
    return (gate.in_use, gate.memory_in_use, gate.waiting) == (0, 0, 0)


def test_one_after_the_other() -> None:
    runtime, gate, order = Scripted(), Gate(1, 100), []
    tasks = [runtime.task(gate.run(runtime, 10, order.append, number)) for number in range(4)]
    runtime.run_to_end()
    assert order == [0, 1, 2, 3]
    assert all(task.result() is None for task in tasks)
    assert at_rest(gate)


def test_a_large_one_waits_alone_and_is_not_overtaken() -> None:
    runtime, gate, order = Scripted(), Gate(4, 100), []
    for number, cost in enumerate((60, 500, 10)):
        runtime.task(gate.run(runtime, cost, order.append, number), name=str(number))
    assert [task.waiting for task in runtime.tasks] == [None, None, None]
    for task in list(runtime.ready):
        task.step()
    assert (gate.in_use, gate.waiting) == (1, 2)
    runtime.run_to_end()
    assert order == [0, 1, 2]
    assert at_rest(gate)


@pytest.mark.parametrize("victim", range(3))
def test_cancelled_at_every_wait(victim: int) -> None:
    for step in range(6):
        runtime, gate, order = Scripted(), Gate(1, 100), []
        tasks = [
            runtime.task(gate.run(runtime, 10, order.append, number), cancel_at=step if number == victim else None)
            for number in range(3)
        ]
        runtime.run_to_end()
        assert at_rest(gate)
        assert [number for number in order if number != victim] == [n for n in range(3) if n != victim]
        assert all(task.cancelled is (number == victim) or number == victim for number, task in enumerate(tasks))


def test_what_fails_gives_its_place_back() -> None:
    runtime, gate = Scripted(), Gate(1, 100)
    failing = runtime.task(gate.run(runtime, 10, int, "x"))
    after = runtime.task(gate.run(runtime, 10, int, "7"))
    runtime.run_to_end()
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result()
    assert after.result() == 7
    assert at_rest(gate)


def test_threads_stay_within_the_limits() -> None:
    gate, work = Gate(3, 100), Work()

    def caller(number: int) -> None:
        for turn in range(20):
            cost = (number * 7 + turn) % 60
            assert run_sync(gate.run(Threads(), cost, work, cost)) == cost

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert work.done == 64 * 20
    assert work.most <= 3
    assert work.most_bytes <= 100
    assert at_rest(gate)


async def test_tasks_stay_within_the_limits_and_cancelled_work_counts_until_it_ends() -> None:
    gate, started, go = Gate(2, 100), threading.Semaphore(0), threading.Event()

    def slow() -> str:
        started.release()
        assert go.wait(10)
        return "done"

    runtime = Asyncio()
    first = [asyncio.create_task(gate.run(runtime, 10, slow)) for _ in range(2)]
    await asyncio.to_thread(lambda: (started.acquire(), started.acquire()))
    later = [asyncio.create_task(gate.run(runtime, 10, slow)) for _ in range(5)]
    await asyncio.sleep(0)
    assert (gate.in_use, gate.waiting) == (2, 5)
    first[0].cancel()
    later[0].cancel()
    await asyncio.gather(first[0], later[0], return_exceptions=True)
    # The thread goes on: its memory is taken, and nobody else may begin.
    assert (gate.in_use, gate.waiting) == (2, 4)
    go.set()
    assert await asyncio.gather(first[1], *later[1:]) == ["done"] * 5
    while gate.in_use:
        await asyncio.sleep(0)
    assert at_rest(gate)


def test_several_loops_and_threads_share_one_gate() -> None:
    gate, work = Gate(2, 50), Work()

    async def many() -> None:
        await asyncio.gather(*(gate.run(Asyncio(), number, work, number) for number in range(30)))

    def in_a_loop() -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(many())

    def in_a_thread() -> None:
        for number in range(30):
            run_sync(gate.run(Threads(), number, work, number))

    threads = [threading.Thread(target=target) for target in (in_a_loop, in_a_loop, in_a_thread, in_a_thread)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert work.done == 120
    assert work.most <= 2
    assert at_rest(gate)


def test_a_forked_child_starts_with_nothing_in_use() -> None:
    runtime, gate = Scripted(), Gate(1, 10)
    runtime.task(gate.run(runtime, 5, int))
    runtime.task(gate.run(runtime, 5, int))
    for task in list(runtime.ready):
        task.step()
    assert (gate.in_use, gate.waiting) == (1, 1)
    gate.after_fork_in_child()
    assert at_rest(gate)
    runtime.run()  # what the parent had begun ends, and counts for nothing here
    assert at_rest(gate)


def test_sessions_with_the_same_limits_share_them() -> None:
    one: Any = gate_of(2, 100)
    assert gate_of(2, 100) is one
    assert gate_of(3, 100) is not one
