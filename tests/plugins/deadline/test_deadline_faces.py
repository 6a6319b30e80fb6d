"""On every stack against a real server: case C24, bodies, redirects, and who wins. Times are lower bounds, and upper
bounds that only a limit that does not bind would pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from netkit.errors import DeadlineExceeded
from netkit.testing import MockGPU, conformance
from netkit.testing.conformance._bench import run
from netkit.testing.conformance._session import Credentials
from netkit.testing.mock_gpu import Answer, Exchange, Signal

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
SSE = [("content-type", "text/event-stream")]
RETRY = {"attempts": 5, "backoff_initial": 0.05, "backoff_max": 0.05, "jitter": "none", "statuses": [503]}


async def _silent(_: Exchange) -> Answer:
    await Signal().wait_async(60)
    return Answer.text("late")


async def _lines(line: bytes, count: int) -> AsyncIterator[bytes]:
    yield b"data: first\n\n"
    for _ in range(count):
        await asyncio.sleep(0.02)
        yield line
    await Signal().wait_async(60)


def _redirect(exchange: Exchange) -> Any:
    async def answer() -> Answer:
        await asyncio.sleep(0.1)
        return Answer(302, [("location", exchange.path)], b"")

    return answer()


def _private(exchange: Exchange) -> Any:
    async def answer() -> Answer:
        await asyncio.sleep(0.3)
        if any(name.lower() == "authorization" for name, _ in exchange.headers):
            return Answer.text("in")
        return Answer(401, [("www-authenticate", 'Digest realm="r", nonce="n", qop="auth"')], b"")

    return answer()


@pytest.fixture(scope="module", params=["1.1", "2"])
def gpu(request: pytest.FixtureRequest) -> Iterator[MockGPU]:
    with MockGPU(http="1.1" if request.param == "1.1" else "auto", tls=request.param == "2", launch_ms=0) as running:
        running.route("/silent", _silent)
        running.route("/talk", lambda _: Answer(200, SSE, _lines(b"data: x\n\n", 10_000)))
        running.route("/ping", lambda _: Answer(200, SSE, _lines(b": ping\n\n", 10_000)))
        running.route("/stall", lambda _: Answer(200, SSE, _lines(b"data: x\n\n", 2)))
        running.route("/headless", lambda _: Answer(200, SSE, _after_nothing()))
        running.route("/round", _redirect)
        running.route("/private", _private)
        running.route("/busy", lambda _: Answer(503, [("retry-after", "2")], b"busy"))
        running.route("/ok", lambda _: Answer.text("ok"))
        yield running


async def _after_nothing() -> AsyncIterator[bytes]:
    await Signal().wait_async(60)
    yield b""


@pytest.fixture(autouse=True)
def _clear(gpu: MockGPU) -> Iterator[None]:
    yield
    gpu.log.clear()


def native_timeout(face: Any) -> type[Exception]:
    if face.stack == "requests":
        import requests

        return requests.Timeout
    if face.stack == "aiohttp":
        import aiohttp

        return aiohttp.ServerTimeoutError
    kind: type[Exception] = __import__(face.stack).TimeoutException
    return kind


def seen(gpu: MockGPU, path: str) -> int:
    return len([record for record in gpu.log.requests if record.path == path])


def drive(face: Any, gpu: MockGPU, scenario: Any, *, retry: Any = False, **options: Any) -> Any:
    plugins = {"deadline": options, "retry": retry, "pool": True, "http2": gpu.options.http == "auto"}

    async def work() -> Any:
        session = face.open(plugins, {} if gpu.ca_file is None else {"verify": gpu.ca_file})
        try:
            # The first call of all pays for handshakes and imports.
            await session.request("GET", gpu.url + "/ok")
            return await scenario(session)
        finally:
            await session.close()

    return run(face, work())


async def late(face: Any, work: Any) -> DeadlineExceeded:
    with pytest.raises(DeadlineExceeded) as caught:
        await work
    assert isinstance(caught.value, native_timeout(face))
    return caught.value


async def read(session: Any, url: str, **options: Any) -> None:
    async with session.stream("GET", url, **options) as stream:
        while await stream.chunk():
            pass


@pytest.mark.parametrize("face", FACES, ids=str)
def test_attempts_and_waits_share_one_budget(face: Any, gpu: MockGPU) -> None:
    async def scenario(session: Any) -> None:
        before, started = seen(gpu, "/silent"), time.monotonic()
        error = await late(face, session.request("GET", gpu.url + "/silent", timeout=0.3))
        assert 0.49 <= time.monotonic() - started < 2.0
        assert error.details["reason"] == "deadline"
        assert error.attempts == seen(gpu, "/silent") - before == 2

    drive(face, gpu, scenario, retry=RETRY, total=0.5)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_no_wait_that_would_cross_the_end(face: Any, gpu: MockGPU) -> None:
    async def scenario(session: Any) -> None:
        before = seen(gpu, "/busy")
        got = await session.request("GET", gpu.url + "/busy")
        assert (got.status, got.content) == (503, b"busy")
        assert seen(gpu, "/busy") - before == 1

    drive(face, gpu, scenario, retry=RETRY, total=1.0)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_the_calls_own_time_out_wins_where_it_is_shorter(face: Any, gpu: MockGPU) -> None:
    async def scenario(session: Any) -> None:
        for path in ("/silent", "/stall"):
            with pytest.raises(Exception) as caught:
                await read(session, gpu.url + path, timeout=0.1)
            assert not isinstance(caught.value, DeadlineExceeded)

    drive(face, gpu, scenario, total=60.0, first_byte=50.0, between_events=40.0)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_a_body_that_goes_on_past_the_end_fails(face: Any, gpu: MockGPU) -> None:
    async def scenario(session: Any) -> None:
        for path in ("/talk", "/stall"):
            error = await late(face, read(session, gpu.url + path, timeout=30.0))
            assert error.details["reason"] == "deadline"
        # Also where the session reads it.
        error = await late(face, session.request("GET", gpu.url + "/talk", timeout=30.0))
        assert error.details["reason"] == "deadline"
        await until_all_is_over(face, gpu)

    drive(face, gpu, scenario, total=0.3)


@pytest.mark.parametrize("face", [face for face in FACES if not face.is_async], ids=str)
def test_a_body_that_its_caller_produces_for_too_long(face: Any, gpu: MockGPU) -> None:
    """The thread is in the caller's own code then: it is left at the next piece. In a loop it is cancelled there."""
    produced = 0

    def endless() -> Iterator[bytes]:
        nonlocal produced
        while produced < 2000:
            produced += 1
            time.sleep(0.01)
            yield b"x"

    async def scenario(session: Any) -> None:
        nonlocal produced
        produced = 0
        error = await late(face, session.request("POST", gpu.url + "/ok", content=endless))
        assert error.details["reason"] == "deadline"
        assert 1 <= produced < 1000
        await until_all_is_over(face, gpu)
        # Files, memory and whatever is quick go as they always do.
        answer = await session.request("POST", gpu.url + "/ok", content=lambda: iter([b"a", b"", b"b" * 100_000]))
        assert answer.status == 200
        assert gpu.log.requests[-1].body == b"a" + b"b" * 100_000

    drive(face, gpu, scenario, total=0.5)


async def until_all_is_over(face: Any, gpu: MockGPU) -> None:
    """The server has seen every one of them left: nothing stays open."""

    def over(log: Any) -> bool:
        return all(record.outcome != "open" for record in log.requests)

    await (gpu.log.wait_async(over) if face.is_async else _waited(gpu, over))


async def _waited(gpu: MockGPU, over: Any) -> None:
    gpu.log.wait(over)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_a_stream_that_falls_silent(face: Any, gpu: MockGPU) -> None:
    async def scenario(session: Any) -> None:
        for path in ("/stall", "/ping"):
            error = await late(face, read(session, gpu.url + path, timeout=30.0))
            assert error.details["reason"] == "between_events"
        await until_all_is_over(face, gpu)
        assert (await session.request("GET", gpu.url + "/ok")).content == b"ok"

    drive(face, gpu, scenario, between_events=0.2)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_a_first_byte_that_does_not_come(face: Any, gpu: MockGPU) -> None:
    async def scenario(session: Any) -> None:
        for path in ("/silent", "/headless"):
            error = await late(face, read(session, gpu.url + path, timeout=30.0))
            assert error.details["reason"] == "first_byte"
        async with session.stream("GET", gpu.url + "/talk") as stream:
            began = time.monotonic()
            while time.monotonic() - began < 0.4:
                assert await stream.chunk()

    drive(face, gpu, scenario, first_byte=0.25)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_redirects_share_the_budget_and_the_next_call_has_its_own(face: Any, gpu: MockGPU) -> None:
    async def scenario(session: Any) -> None:
        for _ in range(2):
            before = seen(gpu, "/round")
            error = await late(face, session.request("GET", gpu.url + "/round"))
            assert error.details["reason"] == "deadline"
            assert 1 <= seen(gpu, "/round") - before <= 4

    drive(face, gpu, scenario, total=0.35)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_the_second_leg_of_an_authentication_shares_it_too(face: Any, gpu: MockGPU) -> None:
    digest = Credentials("digest", "u", "p")

    async def scenario(session: Any) -> None:
        before = seen(gpu, "/private")
        await late(face, session.request("GET", gpu.url + "/private", auth=digest))
        assert seen(gpu, "/private") - before == 2

    drive(face, gpu, scenario, total=0.5)

    async def patient(session: Any) -> None:
        for _ in range(2):
            assert (await session.request("GET", gpu.url + "/private", auth=digest)).content == b"in"

    drive(face, gpu, patient, total=10.0)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_a_connection_is_as_it_was_for_the_next_call(face: Any, gpu: MockGPU) -> None:
    """What bounded one body binds no other that comes over the same connection."""
    go = Signal()

    async def held(_: Exchange) -> Answer:
        await go.wait_async(60)
        return Answer.text("held")

    gpu.route("/held", held)

    async def scenario(session: Any) -> None:
        async with session.stream("GET", gpu.url + "/ok") as stream:
            while await stream.chunk():
                pass
        import netkit

        with netkit.overrides(deadline=False):
            with pytest.raises(Exception) as caught:
                await session.request("GET", gpu.url + "/held", timeout=0.6)
        assert not isinstance(caught.value, DeadlineExceeded)

    drive(face, gpu, scenario, total=0.4)
    go.set()
