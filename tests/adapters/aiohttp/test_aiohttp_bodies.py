"""The life of a response body: told chunk by chunk, ended once, its connection free as early as it can be."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

import netkit
from netkit import Request, Response, Send
from netkit.errors import BodyClosed
from netkit.testing import MockGPU, faults

OpenSession = Callable[..., netkit.ClientSession]
LEAVE_WITHIN = 5.0
"""Seconds: generous, the exact time is a benchmark's business; the order of events is checked exactly."""


class Watcher:
    """A layer that notes chunks, the end and the release of each response."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.ends: list[BaseException | None] = []
        self.releases = 0

    async def __call__(self, request: Request, send: Send) -> Response:
        response = await send(request)
        response.observe(self._chunk, self.ends.append)
        response.body.on_release(self._released)
        return response

    def _chunk(self, chunk: bytes) -> bytes:
        self.chunks.append(chunk)
        return chunk

    def _released(self) -> None:
        self.releases += 1


async def read_all(answer: aiohttp.ClientResponse) -> bytes:
    return await answer.read()


async def read_pieces(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk in answer.content.iter_chunked(7)])


async def read_any(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk in answer.content.iter_any()])


async def read_chunks(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk, _ in answer.content.iter_chunks()])


async def read_lines(answer: aiohttp.ClientResponse) -> bytes:
    return b"".join([line async for line in answer.content])


@pytest.mark.parametrize("reader", [read_all, read_pieces, read_any, read_chunks, read_lines])
@pytest.mark.parametrize("query", ["", "?chunked=1", "?gzip=1", "?chunked=1&gzip=1"])
async def test_every_way_of_reading_is_told_and_ends_the_body_without_close(
    gpu: MockGPU, http: str, open_session: OpenSession, reader: Any, query: str
) -> None:
    watcher = Watcher()
    session = open_session(watcher)
    answer = await session.get(f"{gpu.url}/bytes/3000{query}")
    content = await reader(answer)
    assert len(content) == 3000
    assert b"".join(watcher.chunks) == content
    assert (watcher.ends, watcher.releases) == ([None], 1)
    pool = netkit.stats(session).pool
    assert (pool.in_use, pool.idle) == (0, 1 if http == "1.1" else 0)
    assert netkit.stats(session).requests.in_flight == 0
    answer.close()
    assert len(watcher.ends) == 1


@pytest.mark.parametrize(
    ("verb", "path"), [("head", "/bytes/9"), ("get", "/status/204"), ("get", "/status/304"), ("get", "/bytes/0")]
)
async def test_empty_bodies_end_at_once(gpu: MockGPU, open_session: OpenSession, verb: str, path: str) -> None:
    watcher = Watcher()
    answer = await getattr(open_session(watcher), verb)(f"{gpu.url}{path}")
    assert (watcher.ends, watcher.releases, watcher.chunks) == ([None], 1, [])
    assert await answer.read() == b""


async def test_ten_streams_read_to_their_end_need_one_connection(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"pool": {"max_connections": 2}})
    for _ in range(10):
        answer = await session.get(f"{gpu.url}/stream/3?interval_ms=1")
        assert len([chunk async for chunk in answer.content.iter_any()]) >= 1
        assert netkit.stats(session).pool.in_use == 0
    assert len(gpu.log.connections) == 1


async def leave_by_close(answer: aiohttp.ClientResponse) -> None:
    answer.close()


async def leave_by_release(answer: aiohttp.ClientResponse) -> None:
    answer.release()


async def leave_by_context(answer: aiohttp.ClientResponse) -> None:
    async with answer:
        pass


async def leave_by_cancelled_read(answer: aiohttp.ClientResponse) -> None:
    task = asyncio.ensure_future(answer.read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_timed_out_read(answer: aiohttp.ClientResponse) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answer.read(), 0.01)


@pytest.mark.parametrize(
    "leave", [leave_by_close, leave_by_release, leave_by_context, leave_by_cancelled_read, leave_by_timed_out_read]
)
@pytest.mark.parametrize("plugins", [None, {"pool": {"max_connections": 1}, "retry": True}], ids=["bare", "plugins"])
async def test_leaving_a_stream_reaches_the_server(
    gpu: MockGPU, left: str, open_session: OpenSession, leave: Any, plugins: Any
) -> None:
    watcher = Watcher()
    session = open_session(plugins=plugins) if plugins else open_session(watcher)
    answer = await session.get(f"{gpu.url}/stream/inf?interval_ms=10")
    assert await answer.content.readany()
    await leave(answer)
    await gpu.log.wait_async(lambda log: log.requests[0].outcome == left, LEAVE_WITHIN)
    if not plugins:
        assert [type(end) for end in watcher.ends] == [BodyClosed]
        assert watcher.releases == 1
    stats = netkit.stats(session)
    assert (stats.requests.in_flight, stats.requests.errors, stats.pool.in_use, stats.pool.queued) == (0, 0, 0, 0)
    assert len(gpu.log.requests) == 1


async def test_a_generator_that_is_dropped_leaves_its_stream(
    gpu: MockGPU, left: str, open_session: OpenSession
) -> None:
    # A response alone, dropped in mid-stream, stays: its connection refers to it, with netkit and without.
    watcher = Watcher()
    session = open_session(watcher)

    async def events() -> AsyncIterator[bytes]:
        async with session.get(f"{gpu.url}/stream/inf?interval_ms=10") as answer:
            async for chunk in answer.content.iter_any():
                yield chunk

    stream = events()
    assert await anext(stream)
    del stream
    await gpu.log.wait_async(lambda log: log.requests[0].outcome == left, LEAVE_WITHIN)
    assert [type(end) for end in watcher.ends] == [BodyClosed]
    assert watcher.releases == 1


async def test_a_stream_outlives_the_variable_of_its_response(gpu: MockGPU, open_session: OpenSession) -> None:
    content = (await open_session(Watcher()).get(f"{gpu.url}/bytes/200000?chunked=1")).content
    gc.collect()
    assert len(await content.read()) == 200_000


async def test_an_answer_that_arrived_but_was_not_read_was_left(gpu: MockGPU, open_session: OpenSession) -> None:
    watcher = Watcher()
    session = open_session(watcher)
    for _ in range(2):
        async with session.get(f"{gpu.url}/bytes/100"):
            pass
    assert [type(end) for end in watcher.ends] == [BodyClosed, BodyClosed]
    assert watcher.releases == 2
    assert netkit.stats(session).requests.errors == 0


@pytest.mark.parametrize("stage", ["headers", "queue"])
async def test_cancellation_before_the_answer_frees_everything(
    gpu: MockGPU, http: str, left: str, open_session: OpenSession, stage: str
) -> None:
    def queued() -> int:
        stats = netkit.stats(session)
        return stats.pool.queued if http == "1.1" else stats.plugins["http2"].queued

    session = open_session(
        plugins={
            "pool": {"max_connections": 1, "acquire_timeout": 30.0},
            "http2": {"max_connections": 1, "max_streams": 1},
        }
    )
    first = asyncio.ensure_future(session._request("GET", f"{gpu.url}/delay/30000"))
    await gpu.log.wait_async(lambda log: len(log.requests) == 1)
    if stage == "queue":
        second = asyncio.ensure_future(session._request("GET", f"{gpu.url}/echo"))
        while queued() == 0:
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert queued() == 0
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await gpu.log.wait_async(lambda log: log.requests[0].outcome == left, LEAVE_WITHIN)
    stats = netkit.stats(session)
    assert (stats.pool.in_use, stats.requests.in_flight) == (0, 0)
    async with session.get(f"{gpu.url}/echo") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "fault", [faults.CutBody(after_events=3, how="reset"), faults.CutBody(after_events=3), faults.ResetAfterHeaders()]
)
async def test_failures_in_mid_stream_are_told_once_and_never_resent(
    gpu: MockGPU, open_session: OpenSession, fault: Any
) -> None:
    gpu.script(fault)
    session = open_session(plugins={"retry": {"attempts": 3}})
    received = b""

    async def listen() -> None:
        nonlocal received
        async with session.get(f"{gpu.url}/stream/10?interval_ms=5") as answer:
            async for chunk in answer.content.iter_any():
                received += chunk

    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
        await listen()
    assert received.count(b"data:") == (0 if isinstance(fault, faults.ResetAfterHeaders) else 3)
    assert len(gpu.log.requests) == 1
    stats = netkit.stats(session).requests
    assert (stats.total, stats.errors, stats.attempts, stats.in_flight) == (1, 1, 1, 0)


async def test_the_failure_of_a_body_is_its_end(gpu: MockGPU, open_session: OpenSession) -> None:
    watcher = Watcher()
    gpu.script(faults.ShortBody())
    answer = await open_session(watcher).get(f"{gpu.url}/bytes/100")
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.read()
    assert [type(end) for end in watcher.ends] == [aiohttp.ClientPayloadError]
    answer = await open_session(watcher).get(
        f"{gpu.url}/stream/inf?interval_ms=20", timeout=aiohttp.ClientTimeout(total=0.1)
    )
    with pytest.raises(TimeoutError):
        await answer.read()
    assert isinstance(watcher.ends[1], TimeoutError)


@pytest.mark.parametrize("query", ["", "&gzip=1", "&heartbeat=1"])
async def test_events_arrive_one_by_one_through_all_plugins(
    gpu: MockGPU, open_session: OpenSession, query: str
) -> None:
    session = open_session(plugins={"retry": True, "pool": True})
    async with session.get(f"{gpu.url}/stream/inf?interval_ms=50{query}") as answer:
        for expected in range(3):
            event = b""
            while b"data:" not in event or not event.endswith(b"\n\n"):
                event += await answer.content.readany()
            # The server cannot be far ahead: it has not written what was not received.
            assert gpu.log.requests[0].events_sent <= 2 * (expected + 2)
    assert netkit.stats(session).first_byte.p50 > 0


async def test_first_byte_is_of_the_body_not_of_the_head(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"retry": False})
    async with session.get(f"{gpu.url}/stream/1?interval_ms=1") as answer:
        await asyncio.sleep(0.15)
        await answer.read()
    stats = netkit.stats(session)
    assert stats.first_byte.mean >= 0.15
    assert stats.latency.mean >= stats.first_byte.mean


async def test_memory_of_a_long_stream_is_constant(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"retry": True})
    async with session.get(f"{gpu.url}/bytes/{50 * 2**20}?chunked=1") as answer:
        await answer.content.readany()
        tracemalloc.start()
        try:
            size = 0
            async for chunk in answer.content.iter_any():
                size += len(chunk)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size > 45 * 2**20
    assert peak < 20 * 2**20


async def test_discarding_keeps_the_connection_when_that_is_cheap(
    gpu: MockGPU, http: str, open_session: OpenSession
) -> None:
    async def twice(request: Request, send: Send) -> Response:
        await (await send(request)).discard()
        return await send(request)

    for path, connections in (("/bytes/1000", 1), ("/bytes/1000?chunked=1", 1), ("/stream/inf?interval_ms=10", 2)):
        gpu.log.clear()
        async with open_session(twice).get(f"{gpu.url}{path}"):
            pass
        # On HTTP/2 it is always cheap: the stream alone is reset.
        assert len({record.connection for record in gpu.log.requests}) == (connections if http == "1.1" else 1), path


async def test_an_early_answer_to_a_long_upload_is_delivered(gpu: MockGPU, open_session: OpenSession) -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 1000
            await asyncio.sleep(0.001)

    gpu.script(faults.Status(413, read_body=False))
    watcher = Watcher()
    async with open_session(watcher).post(f"{gpu.url}/upload", data=endless()) as answer:
        assert answer.status == 413
        await answer.read()
    assert (watcher.ends, watcher.releases) == ([None], 1)


async def test_a_storm_of_tasks_gives_each_its_own_answer(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"pool": {"max_connections": 8, "acquire_timeout": 30.0}})

    async def one(number: int) -> bool:
        async with session.post(f"{gpu.url}/echo", data=f"caller {number}") as answer:
            return bool((await answer.json())["body"] == f"caller {number}")

    started = time.monotonic()
    assert all(await asyncio.gather(*(one(number) for number in range(200))))
    assert time.monotonic() - started < 30
    assert len(gpu.log.connections) <= 8
    stats = netkit.stats(session)
    assert (stats.requests.total, stats.requests.in_flight, stats.pool.in_use, stats.pool.queued) == (200, 0, 0, 0)
