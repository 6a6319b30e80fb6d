"""Many callers: each gets its own answer, and one who is cancelled takes nothing from the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from netkit.testing.conformance._bench import Bench, in_threads, run
from netkit.testing.conformance._rule import rule
from netkit.testing.conformance._session import Session
from netkit.testing.mock_gpu import Answer, Exchange, Signal, expected_bytes

__all__ = ["RULES"]


async def _own(exchange: Exchange) -> Answer:
    """Says back what it was asked, after a while of its own, so that answers overtake each other."""
    await asyncio.sleep(random.random() * 0.003)
    return Answer(200, [("x-own", exchange.query)], exchange.content)


async def _ask(session: Session, url: str, name: str) -> None:
    got = await session.request("POST", f"{url}?{name}", content=name.encode() * 20)
    assert (got.status, got.values("x-own")) == (200, [name])
    assert got.content == name.encode() * 20, f"{name} got the answer of another caller"


def _askers(session: Session, url: str, callers: int, calls: int) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    async def caller(number: int) -> None:
        for call in range(calls):
            await _ask(session, url, f"caller{number}call{call}")

    return [lambda number=number: caller(number) for number in range(callers)]  # type: ignore[misc]


async def _storm(bench: Bench, callers: int, calls: int) -> None:
    from netkit import stats

    url = bench.route(_own)
    async with bench.session() as session:
        await bench.together(_askers(session, url, callers, calls))
        total, held = stats(session.native).requests.total, bench.held(session)
    assert len(bench.seen(url)) == callers * calls
    assert total == callers * calls
    assert held == {}


@rule(only="sync")
async def each_thread_gets_its_own_answer(bench: Bench) -> None:
    """Threads that share a session never see each other's answers."""
    await _storm(bench, callers=8, calls=12)


@rule(only="async")
async def each_task_gets_its_own_answer(bench: Bench) -> None:
    """Tasks that share a session never see each other's answers."""
    await _storm(bench, callers=48, calls=2)


@rule(only="async")
async def cancelling_some_harms_no_other(bench: Bench) -> None:
    """Of many tasks every third is cancelled at a moment of its own; the others get their answers, and nothing stays
    in use."""

    url, chance = bench.route(_own), random.Random(7)
    async with bench.session() as session:
        tasks = [asyncio.ensure_future(asker()) for asker in _askers(session, url, 48, 1)]
        leaving = tasks[::3]
        chance.shuffle(leaving)
        for task in leaving:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        staying = [result for task, result in zip(tasks, results, strict=True) if task not in leaving]
        assert staying == [None] * len(staying)
        await _ask(session, url, "afterwards")
        assert bench.held(session) == {}


@rule(only="async")
async def a_call_can_be_cancelled_at_any_step(bench: Bench) -> None:
    """A call cancelled at its n-th step of the loop, for every n, leaves the session usable and nothing in use."""

    async def silent(_: Exchange) -> Answer:
        await Signal().wait_async()
        return Answer.text("never")

    url = bench.route(silent)
    async with bench.session() as session:
        for steps in range(24):
            task = asyncio.ensure_future(session.request("POST", url, content=b"{}"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.done(), f"a call cancelled after {steps} steps did not end"
            assert task.cancelled(), f"a call cancelled after {steps} steps ended with {task!r}"
            assert bench.held(session) == {}, f"held after a cancellation at step {steps}"
        assert (await session.request("GET", f"{bench.url}/bytes/5")).content == expected_bytes(5)


@rule(only="async")
async def one_loop_after_another_works(bench: Bench) -> None:
    """Sessions in one event loop after another, with the plugin's state in the same process."""
    url = bench.route(_own)

    async def work() -> None:
        async with bench.session() as session:
            await bench.together(_askers(session, url, 4, 2))

    for _ in range(3):
        in_threads([lambda: run(bench.face, work())])


@rule(only="async")
async def loops_at_once_work(bench: Bench) -> None:
    """Sessions in several event loops at once, each in a thread of its own."""
    url = bench.route(_own)

    async def work() -> None:
        async with bench.session() as session:
            await bench.together(_askers(session, url, 6, 2))

    in_threads([lambda: run(bench.face, work())] * 3)
    assert len(bench.seen(url)) == 3 * 12


RULES = (
    each_thread_gets_its_own_answer,
    each_task_gets_its_own_answer,
    cancelling_some_harms_no_other,
    a_call_can_be_cancelled_at_any_step,
    one_loop_after_another_works,
    loops_at_once_work,
)
