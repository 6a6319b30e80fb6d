"""`netkit.map`: several at once, in order, lazily, and nothing left running by whoever stops."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import netkit
from netkit.testing import MockGPU, conformance, expected_vector
from netkit.testing.mock_gpu import Answer, Exchange, Signal

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
every_face = pytest.mark.parametrize("face", FACES, ids=str)


@pytest.fixture
def gpu() -> Iterator[MockGPU]:
    with MockGPU(http="1.1", tls=False, launch_ms=0.0, per_item_ms=0.0) as gpu:
        yield gpu


def run(face: Any, work: Any) -> None:
    """`work(session, collect)`: collect() gives all answers of a map, as the face's users would take them."""

    async def asynchronously() -> None:
        session = face.open({}, {})
        try:
            await work(session.native, _collect_async)
        finally:
            await session.close()

    if face.is_async:
        asyncio.run(asynchronously())
        return
    from netkit.flow import run_sync

    session = face.open({}, {})
    try:
        run_sync(work(session.native, _collect))
    finally:
        run_sync(session.close())


async def _collect(answers: Any) -> list[Any]:
    return list(answers)


async def _collect_async(answers: Any) -> list[Any]:
    return [answer async for answer in answers]


async def vector_of(answer: Any) -> Any:
    payload = answer.json()
    if asyncio.iscoroutine(payload):
        payload = await payload
    return payload["data"][0]["embedding"]


@every_face
def test_answers_come_in_order_and_no_more_at_once_than_allowed(face: Any, gpu: MockGPU) -> None:
    lock, inside, most = threading.Lock(), 0, 0

    async def slow(exchange: Exchange) -> Answer:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        number = int(exchange.query)
        # The later of each five overtake the earlier.
        await asyncio.sleep(0.002 * (5 - number % 5))
        with lock:
            inside -= 1
        return Answer.text(str(number))

    gpu.route("/slow", slow)
    steps: list[tuple[int, int | None]] = []

    async def work(session: Any, collect: Any) -> None:
        requests = [{"method": "GET", "url": f"{gpu.url}/slow?{number}"} for number in range(30)]
        answers = await collect(netkit.map(session, requests, concurrency=5, progress=lambda *now: steps.append(now)))
        texts = [answer.text if isinstance(answer.text, str) else await answer.text() for answer in answers]
        assert texts == [str(number) for number in range(30)]

    run(face, work)
    assert 2 <= most <= 5
    assert steps == [(done, 30) for done in range(1, 31)]


@every_face
def test_every_way_to_say_a_request(face: Any, gpu: MockGPU) -> None:
    async def work(session: Any, collect: Any) -> None:
        native = importlib.import_module(face.stack)
        body = {"model": "m", "input": "a"}
        url = f"{gpu.url}/v1/embeddings"
        requests: list[Any] = [
            {"url": url, "json": body},
            {"method": "POST", "url": url, "json": body, "headers": {"x-a": "1"}},
            netkit.Request(
                "POST", url, [("content-type", "application/json")], netkit.Body.of(b'{"model": "m", "input": "a"}')
            ),
        ]
        if face.stack == "requests":
            requests += [native.Request("POST", url, json=body), native.Request("POST", url, json=body).prepare()]
        elif face.stack != "aiohttp":
            requests.append(session.build_request("POST", url, json=body))
        for answer in await collect(netkit.map(session, iter(requests))):
            assert await vector_of(answer) == expected_vector("a")
        (got,) = await collect(netkit.map(session, [f"{gpu.url}/v1/models"]))
        assert getattr(got, "status_code", None) == 200 or got.status == 200
        assert len(gpu.log.requests) == len(requests) + 1

    run(face, work)


@every_face
def test_a_failure_is_raised_in_its_turn_or_given(face: Any, gpu: MockGPU) -> None:
    async def work(session: Any, collect: Any) -> None:
        requests = [{"url": f"{gpu.url}/v1/models"}, {"url": "http://127.0.0.1:1/"}, {"url": f"{gpu.url}/v1/models"}]
        got = await collect(netkit.map(session, requests, return_exceptions=True))
        assert [isinstance(one, Exception) for one in got] == [False, True, False]
        assert type(got[1]).__module__.partition(".")[0] == face.stack
        with pytest.raises(type(got[1])):
            await collect(netkit.map(session, requests))

    run(face, work)


@every_face
def test_requests_are_taken_as_there_is_room(face: Any, gpu: MockGPU) -> None:
    taken = 0

    def endless() -> Iterator[Any]:
        nonlocal taken
        while True:
            taken += 1
            yield {"url": f"{gpu.url}/bytes/5"}

    async def work(session: Any, collect: Any) -> None:
        answers = netkit.map(session, endless(), concurrency=3)
        for number in range(1, 11):
            _ = await anext(answers) if face.is_async else next(answers)
            assert taken <= number + 6
        if face.is_async:
            await answers.aclose()
        else:
            answers.close()
        before, seen = taken, len(gpu.log.requests)
        assert seen <= before

    run(face, work)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("netkit-map")] == []


@every_face
def test_overrides_of_the_call_hold(face: Any, gpu: MockGPU) -> None:
    async def work(session: Any, collect: Any) -> None:
        with netkit.overrides(cache=True):
            answers = netkit.map(
                session, [{"url": f"{gpu.url}/v1/embeddings", "json": {"input": "a"}}] * 4, concurrency=1
            )
        await collect(answers)
        assert len(gpu.log.requests) == 1

    run(face, work)


def test_a_source_that_fails_is_told_after_the_answers_before_it(gpu: MockGPU) -> None:
    def source() -> Iterator[Any]:
        yield {"url": f"{gpu.url}/bytes/5"}
        raise LookupError("no more")

    with netkit.Session() as session:
        answers = netkit.map(session, source(), return_exceptions=True)
        assert next(answers).status_code == 200
        with pytest.raises(LookupError):
            next(answers)


async def test_an_asynchronous_source_and_a_list_of_all(gpu: MockGPU) -> None:
    async def source() -> AsyncIterator[Any]:
        for number in range(5):
            await asyncio.sleep(0)
            yield {"url": f"{gpu.url}/bytes/{number}"}

    async with netkit.AsyncClient() as client:
        answers = await netkit.map(client, source())
        assert [len(answer.content) for answer in answers] == [0, 1, 2, 3, 4]
    with netkit.Session() as session, pytest.raises(TypeError):
        netkit.map(session, source())


async def test_leaving_cancels_what_runs(gpu: MockGPU) -> None:
    signal = Signal()

    async def silent(_: Exchange) -> Answer:
        await signal.wait_async()
        return Answer.text("late")

    gpu.route("/silent", silent)
    requests = [{"url": f"{gpu.url}/bytes/1"}, *[{"url": f"{gpu.url}/silent"}] * 3]
    async with netkit.AsyncClient() as client:
        async with netkit.map(client, requests, concurrency=4) as answers:
            async for answer in answers:
                assert answer.content
                await gpu.log.wait_async(lambda log: len(gpu.log.connections) >= 2)
                break
        left = {task for task in asyncio.all_tasks() if task.get_name().startswith("netkit-map")}
        assert left == set()
        signal.set()

        waiting = asyncio.ensure_future(_collect_async(netkit.map(client, requests[1:])))
        signal.clear()
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert {task for task in asyncio.all_tasks() if task.get_name().startswith("netkit-map")} == set()


async def test_a_broken_loop_leaves_nothing(gpu: MockGPU) -> None:
    """Without aclose(): the generator goes with the loop that was left."""
    async with netkit.AsyncClient() as client:
        async for _ in netkit.map(client, [{"url": f"{gpu.url}/bytes/1"}] * 50, concurrency=2):
            break
        for _ in range(50):
            await asyncio.sleep(0)
        assert {task for task in asyncio.all_tasks() if task.get_name().startswith("netkit-map")} == set()
    assert len(gpu.log.requests) < 10


def test_functions_are_mapped_too() -> None:
    assert list(netkit.map(lambda a, b: a * b, [{"a": 1, "b": 2}, {"a": 3, "b": 4}])) == [2, 12]


async def test_coroutine_functions_are_mapped_too() -> None:
    async def twice(a: int) -> int:
        await asyncio.sleep(0)
        return 2 * a

    assert await netkit.map(twice, [{"a": 1}, {"a": 2}, {"a": 3}], concurrency=2) == [2, 4, 6]


def test_an_sdk(gpu: MockGPU) -> None:
    openai = pytest.importorskip("openai")
    with netkit.httpx2.Client() as http:
        sdk = openai.OpenAI(api_key="k", base_url=f"{gpu.url}/v1", http_client=http)
        asked = ({"model": "m", "input": text, "encoding_format": "float"} for text in "abc")
        got = list(netkit.map(sdk.embeddings.create, asked))
    assert [one.data[0].embedding for one in got] == [expected_vector(text) for text in "abc"]


def test_progress_that_fails_changes_nothing(gpu: MockGPU, caplog: pytest.LogCaptureFixture) -> None:
    def broken(done: int, total: int | None) -> None:
        raise RuntimeError("bar")

    with netkit.Session() as session:
        got = list(netkit.map(session, iter([f"{gpu.url}/bytes/1"]), progress=broken))
    assert [one.status_code for one in got] == [200]
    assert "progress callback" in caplog.text


def test_an_interrupt_does_not_wait() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        leave.wait(10)

    def interrupting() -> Iterator[Any]:
        yield {}
        assert entered.wait(10)
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            list(netkit.map(stuck, interrupting()))
        assert not leave.is_set()
    finally:
        leave.set()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        netkit.map(print, [], concurrency=0)
    with pytest.raises(TypeError, match="neither"):
        netkit.map(object(), [])
