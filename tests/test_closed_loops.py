"""A loop that is stopped and closed with calls under way: what they held is the session's again."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import netkit
from netkit.runtime import Asyncio
from netkit.testing import MockGPU, conformance
from netkit.testing.mock_gpu import Answer, Exchange

FACES = [face for face in conformance.FACES if face.is_async and conformance.is_installed(face)]
PLUGINS: dict[str, Any] = {
    "cache": True,
    "coalesce": True,
    "batch": True,
    "limit": {"concurrency": 1},
    "breaker": True,
    "pool": True,
    "http2": True,
}


def _closed_under(work: Any) -> None:
    """Run `work(stop)` in a loop of its own until it calls `stop`, and close the loop then, cancelling nothing."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(loop.stop))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_forever()
    loop.close()


def test_work_of_a_closed_loop_is_given_up_when_another_loop_begins_some() -> None:
    runtime, ended = Asyncio(), []

    async def spawned(name: str) -> None:
        try:
            await runtime.event().wait()
        finally:
            ended.append(name)

    async def first(stop: Any) -> None:
        runtime.spawn(spawned("first"), name="first")
        await asyncio.sleep(0)
        stop()

    async def second() -> None:
        runtime.spawn(spawned("second"), name="second")
        assert ended == ["first"]
        await asyncio.sleep(0)

    _closed_under(first)
    gc.collect()
    assert ended == []
    asyncio.run(second())
    assert ended == ["first", "second"]


@pytest.mark.parametrize("face", FACES, ids=str)
def test_slots_and_counts_of_a_closed_loop_come_back(face: Any) -> None:
    with MockGPU(launch_ms=0, per_item_ms=0) as gpu:

        async def held(exchange: Exchange) -> Answer:
            if b"held" in exchange.content:
                await asyncio.Event().wait()
            return Answer.json({"data": [{"index": 0, "embedding": [1.0]}]})

        gpu.route("/v1/embeddings", held)
        sessions: list[Any] = []

        async def call(text: str) -> int:
            answer = await sessions[0].request(
                "POST", f"{gpu.url}/v1/embeddings", json={"model": "m", "input": text}, timeout=30.0
            )
            return int(answer.status)

        async def dying(stop: Any) -> None:
            sessions.append(face.open(PLUGINS, {"verify": gpu.ca_file}))
            leader = asyncio.ensure_future(call("held"))
            leader._log_destroy_pending = False  # type: ignore[attr-defined]
            await gpu.log.wait_async(lambda log: log.requests)
            stop()
            await asyncio.Event().wait()

        async def living() -> None:
            assert await call("after") == 200
            # The caller's own task goes when nothing waits for what it began.
            gc.collect()
            held = netkit.stats(sessions[0].native)
            assert (held.limit.in_use, held.cache.in_flight, held.coalesce.in_flight) == (0, 0, 0)
            assert (held.batch.in_flight, held.batch.waiting, held.requests.in_flight) == (0, 0, 0)
            await sessions[0].close()

        _closed_under(dying)
        gc.collect()
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(living())
        assert len(gpu.log.requests) == 2
