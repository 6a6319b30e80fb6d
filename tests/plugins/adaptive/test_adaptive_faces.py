"""Real sessions: which knobs each face offers, that moving them counts at once, and a climb against a mock GPU."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from netkit_plugins.adaptive.options import KNOBS
from netkit_plugins.limit import LimitLayer, LimitOptions
from netkit_plugins.pool import PoolLayer, PoolOptions
from netkit_plugins.pool.slots import SlotQueue

import netkit
from netkit import Context, Request, Response
from netkit.edge import Edge
from netkit.events import Emitter
from netkit.facade import edge_of
from netkit.knobs import Knob
from netkit.runtime import Scripted, Threads
from netkit.stats import Meter
from netkit.testing import MockGPU

PLUGINS: dict[str, Any] = {
    "adaptive": {"window": 0.05, "min_calls": 5},
    "batch": {"max_items": 4, "max_wait": 0.01},
    "limit": {"concurrency": 16},
    "pool": {"max_connections": 8, "acquire_timeout": 10.0},
    "retry": {"budget_ratio": 0.3},
}


@pytest.fixture
def gpu() -> Iterator[MockGPU]:
    with MockGPU(http="1.1", tls=False, launch_ms=2) as server:
        yield server


def edge(plugins: dict[str, Any]) -> Edge:
    async def terminal(request: Request) -> Response:
        return Response.of(200)

    return Edge(stack="httpx", runtime=Threads(), terminal=terminal, plugins=plugins, config=netkit.Config())


def test_every_built_in_knob_is_offered_with_what_is_configured() -> None:
    made = edge(PLUGINS)
    offered = made._context.knobs()
    assert {name: knob.get() for name, knob in offered.items()} == {
        "batch.max_items": 4,
        "batch.max_wait": 0.01,
        "limit.concurrency": 16,
        "pool.max_connections": 8,
        "retry.budget_ratio": 0.3,
    }
    assert set(offered) == set(KNOBS)
    assert {name: (knob.lowest, knob.highest) for name, knob in offered.items()} == {
        "batch.max_items": (1, 256),
        "batch.max_wait": (0.0, 0.05),
        "limit.concurrency": (4, 16),
        "pool.max_connections": (2, 32),
        "retry.budget_ratio": (0.0, 0.3),
    }
    for knob in offered.values():
        knob.set(knob.highest)
        assert knob.get() == knob.highest
    made.close()


def test_what_is_unlimited_or_moves_by_itself_is_not_offered() -> None:
    made = edge({"limit": {"concurrency": "adaptive"}, "pool": False, "retry": False, "http2": False})
    assert made._context.knobs() == {}
    made.close()


def test_of_two_layers_of_one_plugin_the_default_ones_knobs_count() -> None:
    made = edge({"limit": {"concurrency": 16}})
    with netkit.overrides(limit={"concurrency": 3}):
        made.select("http://gpu.test/")
    assert made._context.knobs()["limit.concurrency"].get() == 16
    made.close()


def test_more_slots_wake_those_who_wait() -> None:
    queue = SlotQueue(1)
    assert queue.take("http://a.test/") is not None
    woken: list[int] = []
    tickets = [queue.join("http://a.test/", lambda number=number: woken.append(number)) for number in range(3)]  # type: ignore[misc]
    queue.resize(3)
    assert woken == [0, 1]
    queue.resize(1)
    slots = [queue.leave(ticket) for ticket in tickets[:2]]
    assert queue.in_use == 3
    for each in slots:
        assert each is not None
        each.release()
    assert woken == [0, 1]
    assert queue.limit == 1


@pytest.mark.parametrize("plugin", ["pool", "limit"])
def test_a_wider_limit_lets_in_those_who_wait(plugin: str) -> None:
    runtime = Scripted()
    context = Context(runtime=runtime, emit=Emitter(), stack="scripted", meter=Meter())
    layer: Any = (
        PoolLayer(PoolOptions(max_connections=1, acquire_timeout=None), context)
        if plugin == "pool"
        else LimitLayer(LimitOptions(concurrency=1), context)
    )
    inside: list[int] = []

    async def send(request: Request) -> Response:
        inside.append(1)
        await runtime.sleep(10)
        return Response.of(200)

    async def call() -> None:
        response = await layer(Request("GET", "http://a.test/"), send)
        response.body.end()

    tasks = [runtime.task(call()) for _ in range(4)]
    runtime.run()
    assert len(inside) == 1
    (knob,) = layer.knobs()
    knob.set(3)
    runtime.run()
    assert len(inside) == 3
    runtime.run_to_end()
    assert all(task.done() for task in tasks)
    assert len(inside) == 4


def test_a_larger_batch_counts_from_the_next_one_on(gpu: MockGPU) -> None:
    async def run() -> list[int]:
        plugins = {"batch": {"max_items": 2, "max_wait": 0.05, "max_in_flight": 1}, "http2": False}
        async with netkit.AsyncClient(plugins=plugins, config=netkit.Config()) as client:

            async def burst() -> None:
                url = f"{gpu.url}/v1/embeddings"
                answers = await asyncio.gather(
                    *(client.post(url, json={"model": "mock-embed", "input": f"{n}"}) for n in range(16))
                )
                assert [answer.status_code for answer in answers] == [200] * 16

            await burst()
            before = netkit.stats(client).batch.largest
            knob: Knob = edge_of(client)._context.knobs()["batch.max_items"]
            knob.set(8)
            await burst()
            return [before, netkit.stats(client).batch.largest, netkit.stats(client).batch.max_items]

    assert asyncio.run(run()) == [2, 8, 8]


def test_threads_get_their_answers_while_settings_move(gpu: MockGPU) -> None:
    """64 threads, windows as short as they can be: every step of every knob, and no call notices."""
    plugins: dict[str, Any] = {
        "adaptive": {"window": 0.02, "min_calls": 1, "significance": 0.1},
        "pool": {"max_connections": 32, "acquire_timeout": 60.0},
        "limit": {"concurrency": 48, "acquire_timeout": 60.0},
        "batch": {"max_items": 4},
        "http2": False,
    }
    statuses: list[int] = []
    with netkit.Client(plugins=plugins, config=netkit.Config(), timeout=60.0) as client:

        def calls(number: int) -> None:
            for turn in range(10):
                text = {"model": "mock-embed", "input": f"{number} {turn}"}
                statuses.append(client.post(f"{gpu.url}/v1/embeddings", json=text).status_code)

        threads = [threading.Thread(target=calls, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = netkit.stats(client)
        assert statuses == [200] * 640
        assert stats.adaptive.windows > 0
        assert set(stats.adaptive.knobs) == set(KNOBS)
        assert (stats.limit.in_use, stats.limit.queued, stats.batch.waiting) == (0, 0, 0)


def test_a_batch_that_is_too_small_grows() -> None:
    """One text at a time, 10 ms each, and 16 callers: two at a time serve twice as many."""

    async def run() -> tuple[netkit.Stats, set[int]]:
        plugins: dict[str, Any] = {
            "adaptive": {"knobs": ["batch.max_items"], "window": 0.1, "min_calls": 16, "significance": 0.1},
            "batch": {"max_items": 1, "max_in_flight": 1},
            "pool": {"acquire_timeout": 60.0},
            "http2": False,
        }
        statuses: set[int] = set()
        moved = asyncio.Event()
        with MockGPU(http="1.1", tls=False, launch_ms=10) as gpu:
            async with netkit.AsyncClient(plugins=plugins, config=netkit.Config(), timeout=60.0) as client:
                netkit.listen(client, lambda event: moved.set() if getattr(event, "reason", "") == "win" else None)

                async def caller(number: int) -> None:
                    while not moved.is_set():
                        text = {"model": "mock-embed", "input": f"{number}"}
                        statuses.add((await client.post(f"{gpu.url}/v1/embeddings", json=text)).status_code)

                async with asyncio.timeout(90):
                    await asyncio.gather(*(caller(number) for number in range(16)))
                return netkit.stats(client), statuses

    stats, statuses = asyncio.run(run())
    assert statuses == {200}
    assert stats.adaptive.moves == 1
    assert stats.batch.max_items >= 2
    assert stats.batch.largest >= 2


def test_cached_answers_measure_nothing(gpu: MockGPU) -> None:
    plugins: dict[str, Any] = {
        "adaptive": {"window": 0.001, "min_calls": 1, "knobs": ["retry.budget_ratio"]},
        "cache": True,
    }
    with netkit.Client(plugins=plugins, config=netkit.Config()) as client:
        text = {"model": "mock-embed", "input": "the same"}
        for _ in range(20):
            assert client.post(f"{gpu.url}/v1/embeddings", json=text).status_code == 200
        assert netkit.stats(client).adaptive.windows <= 1
    assert len([record for record in gpu.log.requests if record.path == "/v1/embeddings"]) == 1
