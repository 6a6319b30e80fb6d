"""Ends: every call is over once, close leaves nothing, copies keep what they had."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import warnings
from typing import Any

from netkit.testing.conformance._bench import Bench
from netkit.testing.conformance._rule import rule
from netkit.testing.conformance._servers import closed_port
from netkit.testing.conformance._session import Session
from netkit.testing.mock_gpu import Answer, Log, expected_bytes

__all__ = ["RULES"]


async def _every_kind_of_end(bench: Bench, session: Session) -> None:
    """Whole, empty, streamed to the end, left early, failed before and after the head."""
    await session.request("GET", f"{bench.url}/bytes/1000")
    await session.request("GET", f"{bench.url}/status/204")
    await session.request("GET", f"{bench.url}/redirect/1")
    async with session.stream("GET", f"{bench.url}/stream/3") as stream:
        while await stream.chunk():
            pass
    async with session.stream("GET", f"{bench.url}/stream/inf?interval_ms=2") as stream:
        await stream.event()
    await bench.failure(session, "GET", f"http://127.0.0.1:{closed_port()}/")


@rule()
async def counters_return_to_zero(bench: Bench) -> None:
    """Once a call is over, however it ended, nothing is counted as held: in flight, in use, queued."""
    from netkit import stats

    async with bench.session() as session:
        await _every_kind_of_end(bench, session)
        snapshot = stats(session.native)
        held = bench.held(session)
        assert held == {}, f"still held when all calls are over: {held}"
        assert snapshot.requests.total == 7
        assert snapshot.requests.errors == 1


@rule()
async def closing_twice_is_fine(bench: Bench) -> None:
    """The second close does nothing, with and without a call before."""
    async with bench.session() as session:
        await session.close()
    async with bench.session() as session:
        await session.request("GET", f"{bench.url}/bytes/5")
        await session.close()
        await session.close()


@rule()
async def nothing_is_left_open(bench: Bench) -> None:
    """After close there is no thread, no task, no socket and no ResourceWarning more than before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # What belongs to the process (a worker pool, a background loop) starts in the first round.
        await _round(bench)
        threads = set(threading.enumerate())
        tasks = asyncio.all_tasks() if bench.face.is_async else set()
        await _round(bench)
        # After an exception requests' own objects form a cycle that holds its connection.
        gc.collect()
        await bench.until(_all_closed)
        left_tasks = await _left_tasks(tasks) if bench.face.is_async else set()
        left_threads = _left_threads(threads)
        gc.collect()
    assert left_tasks == set()
    assert left_threads == set()
    assert [str(one.message) for one in caught if issubclass(one.category, (ResourceWarning, RuntimeWarning))] == []


async def _left_tasks(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Close cannot await what it cancelled; a few rounds of the loop end it."""
    left: set[asyncio.Task[Any]] = set()
    for _ in range(10):
        left = asyncio.all_tasks() - before
        if not left:
            break
        await asyncio.sleep(0)
    return left


def _left_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """Close cannot wait for what it told to end; a moment of its own ends it."""
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
    return set(threading.enumerate()) - before


def _all_closed(log: Log) -> bool:
    return all(record.closed is not None for record in log.connections)


@rule()
async def closing_needs_no_collection(bench: Bench) -> None:
    """The sockets of a closed session are closed at once: no cycle keeps them until the garbage collector runs."""
    gc.collect()
    await bench.until(_all_closed)
    gc.disable()
    try:
        async with bench.session() as session:
            await session.request("GET", f"{bench.url}/bytes/1000")
            async with session.stream("GET", f"{bench.url}/stream/3") as stream:
                while await stream.chunk():
                    pass
            async with session.stream("GET", f"{bench.url}/stream/inf?interval_ms=2") as stream:
                await stream.event()
            del stream
        await bench.until(_all_closed)
    finally:
        gc.enable()


async def _round(bench: Bench) -> None:
    async with bench.session() as session:
        await _every_kind_of_end(bench, session)


@rule()
async def a_copy_keeps_the_plugin(bench: Bench) -> None:
    """Where the stack's own session can be pickled, netkit's can, and the copy has the same plugins."""
    from netkit import stats

    async with bench.native() as session:
        try:
            pickle.dumps(session.native)
        except Exception:  # noqa: BLE001 - whatever keeps it from being pickled
            return
    async with bench.session() as session:
        await session.request("GET", f"{bench.url}/bytes/5")
        copy: Any = pickle.loads(pickle.dumps(session.native))
        url = bench.route(lambda _: Answer.text("copied"))
        original, session.native = session.native, copy
        try:
            assert (await session.request("GET", url)).content == b"copied"
            assert stats(copy).requests.total == 1
            assert stats(copy).plugins.keys() == stats(original).plugins.keys()
        finally:
            await session.close()
            session.native = original
        assert (await session.request("GET", f"{bench.url}/bytes/5")).content == expected_bytes(5)


RULES = (
    counters_return_to_zero,
    closing_twice_is_fine,
    nothing_is_left_open,
    closing_needs_no_collection,
    a_copy_keeps_the_plugin,
)
