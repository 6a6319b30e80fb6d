"""The plugin on every face: what the server saw, and what the caller got."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import netkit
from netkit.errors import DeadlineExceeded, PoolTimeout, QueueFull
from netkit.testing import MockGPU, faults
from netkit.testing.mock_gpu.exchange import Answer, Exchange
from tests.benchmarks.adaptive_limit import measure

RETRY = {"attempts": 3, "backoff_initial": 0.001, "budget_min_per_second": 1000.0}


@pytest.fixture
def gpu() -> Iterator[MockGPU]:
    with MockGPU(http="1.1", tls=False) as gpu:
        yield gpu


@dataclass(frozen=True, kw_only=True)
class RefusesForAWhile(faults.Fault):
    """C51's server: after `allowed` calls 429 for `seconds`, then everything is well."""

    allowed: int
    seconds: float
    headers: tuple[tuple[str, str], ...] = (("retry-after", "1"),)
    times: int | None = None
    _state: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    async def run(self, exchange: Exchange, proceed: faults.Proceed) -> None:
        state, now = self._state, time.monotonic()
        state["seen"] = state.get("seen", 0) + 1
        if state["seen"] <= self.allowed or now >= state.setdefault("until", now + self.seconds):
            await proceed()
            return
        await exchange.body.wait()
        await faults.respond(exchange, Answer.error(429, "slow down", headers=list(self.headers)))


def test_c51_one_429_pauses_the_whole_origin(faced: Any, gpu: MockGPU) -> None:
    gpu.faults.push(RefusesForAWhile(allowed=10, seconds=1.0))

    async def work(session: Any) -> tuple[list[Any], Any]:
        async def call(number: int) -> int:
            url = f"{gpu.url}/v1/embeddings"
            body = {"model": "m", "input": str(number)}
            status: int = (await session.request("POST", url, json=body, timeout=30.0)).status
            return status

        return await faced.many(100, 10, call), netkit.stats(session.native)

    results, stats = faced.run({"limit": True, "retry": RETRY}, work)
    assert results == [200] * 100
    refused = [record for record in gpu.log.requests if record.status == 429]
    assert 1 <= len(refused) <= 10
    last = max(record.time for record in refused)
    later = sorted(record.time for record in gpu.log.requests if record.time > last)
    # Who was told last was told "1 s"; the first comes back no earlier.
    assert later[0] - last >= 0.95
    assert sum(moment - later[0] < 0.05 for moment in later) <= 10
    assert stats.requests.attempts == len(gpu.log.requests)
    assert stats.limit.pauses == 1
    assert (stats.limit.queued, stats.limit.in_use) == (0, 0)
    assert stats.limit.waited_total > 0


def test_nothing_left_holds_everybody_before_anybody_is_refused(faced: Any, gpu: MockGPU) -> None:
    def spent(seen: Answer) -> Answer:
        left = [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "300ms")]
        return replace(seen, headers=[*seen.headers, *left])

    gpu.faults.push(faults.Edit(change=spent))

    async def work(session: Any) -> list[int]:
        async def call(number: int) -> int:
            status: int = (await session.request("GET", f"{gpu.url}/v1/models")).status
            return status

        first = await call(0)
        return [first, *await faced.many(20, 10, call)]

    assert faced.run({"limit": True}, work) == [200] * 21
    times = sorted(record.time for record in gpu.log.requests)
    assert times[1] - times[0] >= 0.29
    assert sum(moment - times[1] < 0.05 for moment in times[1:]) <= 10


def test_other_keys_and_other_origins_are_not_paused(faced: Any, gpu: MockGPU) -> None:
    gpu.faults.push(faults.Status(429, headers={"retry-after": "60"}))

    async def work(session: Any) -> list[int]:
        async def call(url: str, key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": "m", "input": "x"}
            status: int = (await session.request("POST", f"{url}/v1/embeddings", json=body, headers=headers)).status
            return status

        with MockGPU(http="1.1", tls=False) as other:
            return [await call(gpu.url, "a"), await call(gpu.url, "b"), await call(other.url, "a")]

    assert faced.run({"limit": True}, work) == [429, 200, 200]


def test_a_place_is_held_until_the_stream_ends(faced: Any, gpu: MockGPU) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}

    held, left = faults.Hold(at="head"), faults.Hold(at="head", nth=3)
    gpu.faults.push(held, left)

    async def work(session: Any) -> None:
        url = f"{gpu.url}/v1/chat/completions"
        stream = await session.open_stream("POST", url, json=chat)
        assert netkit.stats(session.native).limit.in_use == 1
        with pytest.raises(QueueFull):
            await session.request("POST", url, json={**chat, "stream": False})
        held.release()
        while await stream.event():
            pass
        assert netkit.stats(session.native).limit.in_use == 0
        assert (await session.request("POST", url, json={**chat, "stream": False})).status == 200
        stream = await session.open_stream("POST", url, json=chat)
        await stream.close()
        left.release()
        assert netkit.stats(session.native).limit.in_use == 0

    faced.run({"limit": {"concurrency": 1, "max_queue": 0}}, work)
    assert len(gpu.log.requests) == 3


@pytest.mark.parametrize("kind", [QueueFull, PoolTimeout])
def test_what_the_limiter_refuses_is_the_stacks_own_timeout(faced: Any, gpu: MockGPU, kind: type[Exception]) -> None:
    gate = faults.Hold()
    gpu.faults.push(gate)
    native = {
        "requests": "requests.exceptions.ConnectTimeout",
        "httpx": "httpx.PoolTimeout",
        "httpx2": "httpx2.PoolTimeout",
        "aiohttp": "aiohttp.ConnectionTimeoutError",
    }[faced.face.stack]
    options = {"max_queue": 0} if kind is QueueFull else {"acquire_timeout": 0.01}

    async def work(session: Any) -> list[Any]:
        async def first() -> int:
            status: int = (await session.request("GET", f"{gpu.url}/v1/models")).status
            return status

        async def second() -> None:
            await gate.arrived.wait_async(10.0) if faced.face.is_async else gate.wait_for(1)
            try:
                await session.request("GET", f"{gpu.url}/v1/models")
            finally:
                gate.release()

        results: list[Any] = await faced.gather([first, second])
        return results

    status, error = faced.run({"limit": {"concurrency": 1, **options}}, work)
    assert status == 200
    assert isinstance(error, kind)
    module, _, name = native.rpartition(".")
    assert isinstance(error, getattr(__import__(module, fromlist=[name]), name))
    assert len(gpu.log.requests) == 1


def test_tokens_are_settled_by_what_the_server_says(faced: Any, gpu: MockGPU) -> None:
    # One long word: a guess of 500 tokens of the minute's 600, and a few in truth.
    word = "a" * 2000
    chat = {"model": "m", "messages": [{"role": "user", "content": word}], "max_tokens": 2}
    streamed = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    calls = [
        ("embeddings", {"model": "m", "input": word}),
        ("chat/completions", chat),
        ("chat/completions", streamed),
    ]

    async def work(session: Any) -> list[int]:
        statuses = []
        for path, body in calls * 2:
            statuses.append((await session.request("POST", f"{gpu.url}/v1/{path}", json=body)).status)
        return statuses

    # Unsettled, the second would wait for 40 s, and be told after 5.
    options = {"tokens_per_minute": 600.0, "acquire_timeout": 5.0}
    assert faced.run({"limit": options}, work) == [200] * 6


async def test_the_adaptive_number_finds_what_a_server_takes() -> None:
    limit = {"concurrency": "adaptive", "acquire_timeout": 60.0}
    found = await measure({"limit": limit, "retry": {**RETRY, "attempts": 8}}, calls=200, most=6)
    assert found.answered == 200
    # Without it most first attempts are refused, and many calls for good.
    assert found.refused <= 60
    assert 1 <= found.concurrency <= 12


def test_a_deadline_ends_the_wait_for_a_turn(faced: Any, gpu: MockGPU) -> None:
    gpu.faults.push(faults.Status(429, headers={"retry-after": "30"}, times=None))

    async def work(session: Any) -> tuple[list[Any], Any]:
        async def call() -> int:
            status: int = (await session.request("GET", f"{gpu.url}/v1/models", timeout=60.0)).status
            return status

        first = await faced.gather([call])
        return first + await faced.gather([call] * 3), netkit.stats(session.native)

    plugins = {"deadline": {"total": 0.4}, "limit": True, "retry": {**RETRY, "attempts": 1}}
    started = time.monotonic()
    results, stats = faced.run(plugins, work)
    assert time.monotonic() - started < 25
    assert results[0] == 429
    assert all(isinstance(error, DeadlineExceeded) for error in results[1:]), results
    assert len(gpu.log.requests) == 1
    assert (stats.limit.queued, stats.limit.in_use) == (0, 0)
