"""On every stack against a real server: cases C28, C30 and C32, and their neighbours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import netkit
from netkit.errors import CircuitOpen
from netkit.testing import MockGPU, conformance, faults
from netkit.testing.conformance._bench import in_threads, run
from netkit.testing.mock_gpu import Answer, Exchange, Signal

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
ASYNC = [face for face in FACES if face.is_async]


@pytest.fixture(scope="module", params=["1.1", "2"])
def gpu(request: pytest.FixtureRequest) -> Iterator[MockGPU]:
    with MockGPU(http="1.1" if request.param == "1.1" else "auto", tls=request.param == "2", launch_ms=0) as running:
        yield running


@pytest.fixture(autouse=True)
def _clear(gpu: MockGPU) -> Iterator[None]:
    yield
    gpu.faults.clear()
    gpu.log.clear()


def opened(face: Any, gpu: MockGPU, **options: Any) -> Any:
    plugins: dict[str, Any] = {"breaker": options, "retry": False, "pool": True, "http2": gpu.options.http == "auto"}
    return face.open(plugins, {} if gpu.ca_file is None else {"verify": gpu.ca_file})


def circuit(session: Any, gpu: MockGPU) -> Any:
    return netkit.stats(session.native).breakers[gpu.url]


def native_connection_error(face: Any) -> type[Exception]:
    if face.stack == "requests":
        import requests

        return requests.exceptions.ConnectionError
    if face.stack == "aiohttp":
        import aiohttp

        return aiohttp.ClientConnectionError
    module: Any = __import__(face.stack)
    kind: type[Exception] = module.ConnectError
    return kind


async def fails(session: Any, url: str, **options: Any) -> Exception:
    try:
        await session.request("POST", url, json={"input": "a"}, **options)
    except Exception as error:
        return error
    raise AssertionError("it was to fail")


async def to_the_end(stream: Any) -> None:
    while await stream.chunk():
        pass


@pytest.mark.parametrize("face", FACES, ids=str)
def test_resets_open_it_and_callers_get_their_own_connection_error(face: Any, gpu: MockGPU) -> None:
    async def scenario() -> None:
        session = opened(face, gpu, fail_max=3)
        try:
            gpu.faults.push(faults.ResetBeforeHeaders(times=None))
            errors = [await fails(session, gpu.url + "/v1/embeddings") for _ in range(5)]
            assert [isinstance(error, CircuitOpen) for error in errors] == [False] * 3 + [True] * 2
            assert isinstance(errors[4], native_connection_error(face))
            assert errors[4].retry_after > 0  # type: ignore[attr-defined]
            assert len(gpu.log.requests) == 3
            assert circuit(session, gpu).state == "open"
        finally:
            await session.close()

    run(face, scenario())


@pytest.mark.parametrize("face", FACES, ids=str)
def test_a_reset_in_the_body_counts(face: Any, gpu: MockGPU) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"data: x\n\n"

    gpu.route("/endless", lambda _: Answer(200, [], pieces()))
    gpu.faults.push(faults.CutBody(after_events=2, how="reset", times=None))

    async def scenario() -> None:
        session = opened(face, gpu, fail_max=3)
        try:
            for _ in range(3):
                async with session.stream("GET", gpu.url + "/endless") as stream:
                    assert stream.status == 200
                    with pytest.raises(Exception):  # noqa: B017 - each stack has its own
                        await to_the_end(stream)
            assert isinstance(await fails(session, gpu.url + "/endless"), CircuitOpen)
            assert len(gpu.log.requests) == 3
        finally:
            await session.close()

    run(face, scenario())


@pytest.mark.parametrize("face", FACES, ids=str)
def test_a_server_that_hangs_counts(face: Any, gpu: MockGPU) -> None:
    gpu.faults.push(faults.BlackHole(times=None))

    async def scenario() -> None:
        session = opened(face, gpu, fail_max=2)
        try:
            for _ in range(2):
                assert not isinstance(await fails(session, gpu.url + "/v1/models", timeout=0.05), CircuitOpen)
            assert isinstance(await fails(session, gpu.url + "/v1/models", timeout=0.05), CircuitOpen)
        finally:
            await session.close()

    run(face, scenario())


@pytest.mark.parametrize("face", FACES, ids=str)
def test_fifty_callers_at_the_reset_are_one_probe(face: Any, gpu: MockGPU) -> None:
    go = Signal()

    async def slow(_: Exchange) -> Answer:
        await go.wait_async()
        return Answer.text("up")

    gpu.route("/storm", slow)

    async def scenario() -> None:
        session = opened(face, gpu, fail_max=3, reset_timeout=1e-9)
        try:
            gpu.faults.push(faults.Status(503, times=3))
            for _ in range(3):
                await session.request("GET", gpu.url + "/storm")
            gpu.log.clear()
            waits: list[float] = []

            async def call() -> str:
                try:
                    got = await session.request("GET", gpu.url + "/storm")
                except CircuitOpen as error:
                    waits.append(error.retry_after)
                    if circuit(session, gpu).rejected == 49:
                        go.set()
                    return "refused"
                return got.content.decode()

            if face.is_async:
                outcomes = await asyncio.gather(*(call() for _ in range(50)))
            else:
                from netkit.flow import run_sync

                outcomes = in_threads([lambda: run_sync(call())] * 50)
            assert sorted(outcomes) == ["refused"] * 49 + ["up"]
            assert min(waits) > 0
            assert len([record for record in gpu.log.requests if record.path == "/storm"]) == 1
            assert circuit(session, gpu).state == "closed"
            assert circuit(session, gpu).in_use == 0
        finally:
            await session.close()

    run(face, scenario())


@pytest.mark.parametrize("face", ASYNC, ids=str)
def test_a_cancelled_probe_makes_room_for_the_next(face: Any, gpu: MockGPU) -> None:
    async def never(_: Exchange) -> Answer:
        await Signal().wait_async(30)
        return Answer.text("")

    gpu.route("/never", never)

    async def scenario() -> None:
        session = opened(face, gpu, fail_max=1, reset_timeout=1e-9)
        try:
            gpu.faults.push(faults.Status(503))
            await session.request("GET", gpu.url + "/never")
            gpu.log.clear()
            task = asyncio.create_task(session.request("GET", gpu.url + "/never"))
            await gpu.log.wait_async(lambda log: any(record.path == "/never" for record in log.requests))
            assert circuit(session, gpu).in_use == 1
            assert isinstance(await fails(session, gpu.url + "/v1/models"), CircuitOpen)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert circuit(session, gpu).in_use == 0
            assert (await session.request("GET", gpu.url + "/v1/models")).status == 200
            assert circuit(session, gpu).state == "closed"
        finally:
            await session.close()

    run(face, scenario())


@pytest.mark.parametrize("face", FACES, ids=str)
def test_nothing_is_serialised(face: Any, gpu: MockGPU) -> None:
    there = threading.Semaphore(0)
    go = Signal()

    async def together(_: Exchange) -> Answer:
        there.release()
        if there._value >= 20:
            go.set()
        await go.wait_async()
        return Answer.text("ok")

    gpu.route("/together", together)

    async def scenario() -> None:
        session = opened(face, gpu)
        netkit.listen(session.native, lambda event: 1 / 0)
        try:

            async def call() -> int:
                return int((await session.request("GET", gpu.url + "/together")).status)

            if face.is_async:
                found = await asyncio.gather(*(call() for _ in range(20)))
            else:
                from netkit.flow import run_sync

                found = in_threads([lambda: run_sync(call())] * 20)
            # Each waits at the server until all twenty are there.
            assert found == [200] * 20
        finally:
            await session.close()

    run(face, scenario())


def test_no_coroutine_is_left_unawaited_when_it_is_open(gpu: MockGPU, recwarn: pytest.WarningsRecorder) -> None:
    async def scenario() -> None:
        async with netkit.AsyncClient(plugins={"breaker": {"fail_max": 1}, "retry": False}, verify=False) as client:
            gpu.faults.push(faults.Status(503))
            await client.get(gpu.url + "/v1/models")
            with pytest.raises(CircuitOpen):
                await client.get(gpu.url + "/v1/models")

    asyncio.run(scenario())
    assert not [each for each in recwarn if "never awaited" in str(each.message)]
