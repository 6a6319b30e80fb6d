"""Batches on every face, over HTTP/1.1 and HTTP/2: what the server saw, and what each caller got."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import netkit
from netkit.errors import BatchError
from netkit.flow import run_sync
from netkit.testing import MockGPU, conformance, expected_vector, faults
from netkit.testing.conformance._bench import in_threads, run
from netkit.testing.conformance._cases import _own_environment
from netkit.testing.conformance._session import Face, Session
from netkit.testing.mock_gpu import encoded_vector

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
CASES = [(face, http) for face in FACES for http in ("1.1", "2")]
every_face = pytest.mark.parametrize(("face", "http"), CASES, ids=str)
every_async_face = pytest.mark.parametrize(("face", "http"), [case for case in CASES if case[0].is_async], ids=str)
"""Threads are not cancelled from outside."""

PATH = "/v1/embeddings"


def native_error(face: Face) -> tuple[type[Exception], type[Exception]]:
    """(what callers catch, what they catch when an answer does not come in time)"""
    import aiohttp
    import httpx
    import httpx2
    import requests

    return {
        "requests": (requests.RequestException, requests.ReadTimeout),
        "httpx": (httpx.RequestError, httpx.ReadTimeout),
        "httpx2": (httpx2.RequestError, httpx2.ReadTimeout),
        "aiohttp": (aiohttp.ClientError, TimeoutError),
    }[face.name.partition("-")[0]]  # type: ignore[return-value]


class Stage:
    """A server whose first request is held, so that the callers after it meet in the queue."""

    def __init__(self, face: Face, gpu: MockGPU, session: Session, gate: faults.Hold) -> None:
        self.face = face
        self.gpu = gpu
        self.session = session
        self.gate = gate

    async def post(self, body: Any, path: str = PATH, **options: Any) -> Any:
        return await self.session.request("POST", self.gpu.url + path, json=body, **options)

    async def meet(
        self, jobs: Sequence[Callable[[], Coroutine[Any, Any, Any]]], *, path: str = PATH, busy: Any = None
    ) -> list[Any]:
        """Results or exceptions of `jobs`, all of which begin while another call is under way."""

        async def caught(job: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
            try:
                return await job()
            except Exception as error:
                return error

        first = busy or (lambda: self.post({"model": "m", "input": "busy"}, path))
        if self.face.is_async:
            task = asyncio.ensure_future(first())
            await self.gate.arrived.wait_async()
            results = await asyncio.gather(*(caught(job) for job in jobs))
            self.gate.release()
            await task
            return results
        thread = threading.Thread(target=lambda: run_sync(first()))
        thread.start()
        self.gate.arrived.wait()
        results = in_threads([lambda job=job: run_sync(caught(job)) for job in jobs])  # type: ignore[misc]
        self.gate.release()
        thread.join()
        return results

    def bodies(self) -> list[Any]:
        """Of what came after the held request, in the order of arrival."""
        return [record.json() for record in self.gpu.log.requests[1:]]


@contextmanager
def _server(http: str, *more: Any, **options: Any) -> Iterator[tuple[MockGPU, faults.Hold]]:
    gate = faults.Hold(times=1)
    fixed: dict[str, Any] = {"launch_ms": 0.0, "per_item_ms": 0.0, **options}
    with _own_environment(), MockGPU(http="auto" if http == "2" else "1.1", tls=http == "2", **fixed) as gpu:
        gpu.faults.push(gate, *more)
        yield gpu, gate


def play(
    face: Face,
    http: str,
    scenario: Callable[[Stage], Awaitable[None]],
    *more: Any,
    batch: dict[str, Any] | None = None,
    plugins: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Run `scenario` on a session with `batch`, whose queue waits for company as long as it takes."""

    async def main() -> None:
        chosen = {"retry": False, "http2": http == "2", "batch": {"max_wait": 60.0, **(batch or {})}}
        session = face.open({**chosen, **(plugins or {})}, {"verify": gpu.ca_file} if gpu.ca_file else {})
        try:
            await scenario(Stage(face, gpu, session, gate))
            assert {record.protocol for record in gpu.log.requests} == {f"HTTP/{http}"}
            held = netkit.stats(session.native)
            assert (held.requests.in_flight, held.batch.in_flight, held.batch.waiting) == (0, 0, 0)
        finally:
            gate.release()
            await session.close()

    with _server(http, *more, **options) as (gpu, gate):
        run(face, main())


def vectors_of(answer: Any) -> list[list[float]]:
    assert not isinstance(answer, Exception), answer
    assert answer.status == 200, answer.content
    assert answer.values("content-length") == [str(len(answer.content))]
    data = answer.json()["data"]
    assert [part["index"] for part in data] == list(range(len(data)))
    return [part["embedding"] for part in data]


def proofs(given: Any) -> list[list[float]]:
    alone = isinstance(given, str) or isinstance(given[0], int)
    return [expected_vector(item) for item in ([given] if alone else given)]


@every_face
def test_every_caller_gets_its_own_vectors_in_its_own_order(face: Face, http: str) -> None:
    calls: list[Any] = ["one", ["two", "three", "two"], "vier €", ["x" * 500, ""], "one"]

    async def scenario(stage: Stage) -> None:
        jobs = [lambda given=given: stage.post({"model": "m", "input": given}) for given in calls]
        answers = await stage.meet(jobs)
        for given, answer in zip(calls, answers, strict=True):
            assert vectors_of(answer) == proofs(given)
        assert [len(body["input"]) for body in stage.bodies()] == [8]
        assert sum(answer.json()["usage"]["total_tokens"] for answer in answers) == 8

    play(face, http, scenario, batch={"max_items": 8}, data_order="shuffled")


@every_face
def test_token_arrays_are_merged_with_each_other(face: Face, http: str) -> None:
    calls: list[Any] = [[1, 2, 3], [[4], [5, 6]], [7]]

    async def scenario(stage: Stage) -> None:
        jobs = [lambda given=given: stage.post({"model": "m", "input": given}) for given in calls]
        busy = lambda: stage.post({"model": "m", "input": [9]})  # noqa: E731
        for given, answer in zip(calls, await stage.meet(jobs, busy=busy), strict=True):
            assert vectors_of(answer) == proofs(given)
        (body,) = stage.bodies()
        assert sorted(body["input"]) == [[1, 2, 3], [4], [5, 6], [7]]

    play(face, http, scenario, batch={"max_items": 4})


@every_face
@pytest.mark.parametrize(
    "fault",
    [
        {"drop": (0,)},
        {"duplicate": (0,)},
        {"extra": 1},
        {"without_index": True},
        {"drop": (1,), "duplicate": (0,)},
    ],
    ids=str,
)
def test_a_malformed_answer_is_every_callers_own_error(face: Face, http: str, fault: dict[str, Any]) -> None:
    async def scenario(stage: Stage) -> None:
        jobs = [lambda text=text: stage.post({"model": "m", "input": text}) for text in "abcd"]
        errors = await stage.meet(jobs)
        assert all(isinstance(error, BatchError) for error in errors), errors
        assert all(isinstance(error, native_error(face)[0]) for error in errors)
        assert len({id(error) for error in errors}) == 4
        assert len(stage.bodies()) == 1

    play(face, http, scenario, faults.Data(**fault), batch={"max_items": 4})


@every_face
def test_one_poisoned_input_of_32(face: Face, http: str) -> None:
    texts = [f"text {number}" for number in range(32)]
    texts[17] = "POISON pill"

    async def scenario(stage: Stage) -> None:
        jobs = [lambda text=text: stage.post({"model": "m", "input": text}) for text in texts]
        answers = await stage.meet(jobs)
        for text, answer in zip(texts, answers, strict=True):
            if "POISON" not in text:
                assert vectors_of(answer) == proofs(text)
        refused = answers[17]
        assert refused.status == 422
        # The server's words about the caller's own request: its only input is number 0.
        assert "input 0 " in refused.json()["error"]["message"]
        assert len(stage.bodies()) <= 12
        assert netkit.stats(stage.session.native).batch.bisected == 5

    play(face, http, scenario, poison="POISON")


@every_face
def test_a_status_of_the_batch_is_every_callers_own(face: Face, http: str) -> None:
    async def scenario(stage: Stage) -> None:
        jobs = [lambda text=text: stage.post({"model": "m", "input": text}) for text in "abcd"]
        answers = await stage.meet(jobs)
        assert [answer.status for answer in answers] == [429] * 4
        assert [answer.values("x-ratelimit-remaining") for answer in answers] == [["0"]] * 4
        assert len({answer.content for answer in answers}) == 1
        assert len(stage.bodies()) == 1

    limit = faults.Status(429, headers={"retry-after": "1", "x-ratelimit-remaining": "0"})
    play(face, http, scenario, limit, batch={"max_items": 4})


@every_face
def test_a_reset_of_the_batch_is_every_callers_own_native_error(face: Face, http: str) -> None:
    async def scenario(stage: Stage) -> None:
        jobs = [lambda text=text: stage.post({"model": "m", "input": f"{text} secret"}) for text in "abcd"]
        errors = await stage.meet(jobs)
        assert all(isinstance(error, native_error(face)[0]) for error in errors), errors
        assert len({id(error) for error in errors}) == 4
        assert len(stage.bodies()) == 1
        for text, error in zip("abcd", errors, strict=True):
            sent = getattr(error, "request", None)
            body = getattr(sent, "body", None) or getattr(sent, "content", None)
            if body:
                # What an error shows of its request is the caller's own, not the other callers' inputs.
                assert json.loads(body)["input"] == f"{text} secret"

    broken = faults.ResetBeforeHeaders() if http == "1.1" else faults.ResetStream(code=2)
    play(face, http, scenario, broken, batch={"max_items": 4})


@every_face
def test_a_batch_is_retried_as_one(face: Face, http: str) -> None:
    async def scenario(stage: Stage) -> None:
        jobs = [lambda text=text: stage.post({"model": "m", "input": text}) for text in "abcd"]
        for text, answer in zip("abcd", await stage.meet(jobs), strict=True):
            assert vectors_of(answer) == proofs(text)
        bodies = stage.bodies()
        assert bodies == [bodies[0]] * 3
        assert netkit.stats(stage.session.native).requests.retries == 2

    retry = {"retry": {"backoff_initial": 0.001, "backoff_max": 0.001}}
    play(
        face,
        http,
        scenario,
        faults.Status(503),
        faults.Status(503),
        batch={"max_items": 4},
        plugins=retry,
    )


@every_face
def test_only_equal_calls_are_merged_and_each_keeps_its_format(face: Face, http: str) -> None:
    kinds: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"encoding_format": "base64"}, {}),
        ({"dimensions": 16}, {}),
        ({"model": "other"}, {}),
        ({"x_foo": {"deep": [1, 2]}}, {}),
        ({}, {"Authorization": "Bearer second"}),
        ({}, {"X-Tenant": "b"}),
    ]

    async def scenario(stage: Stage) -> None:
        jobs, asked = [], []
        for number, (fields, headers) in enumerate(kinds):
            for text in (f"a{number}", f"b{number}"):
                body = {"model": "m", "input": text, **fields}
                headers = {"Authorization": "Bearer first", **headers}
                asked.append((text, fields, headers))
                jobs.append(lambda body=body, headers=headers: stage.post(body, headers=headers))
        answers = await stage.meet(jobs)
        for (text, fields, _), answer in zip(asked, answers, strict=True):
            dimensions = fields.get("dimensions", 8)
            (got,) = vectors_of(answer)
            if fields.get("encoding_format") == "base64":
                assert got == encoded_vector(text, dimensions=dimensions)
            else:
                assert got == expected_vector(text, dimensions=dimensions)
        seen = stage.gpu.log.requests[1:]
        for record in seen:
            inputs = record.json()["input"]
            for text in [inputs] if isinstance(inputs, str) else inputs:
                _, fields, headers = next(each for each in asked if each[0] == text)
                assert {**record.json(), "input": None} == {"model": "m", "input": None, **fields}
                assert record.header("authorization") == headers["Authorization"]
                assert record.header("x-tenant") == headers.get("X-Tenant")
        assert sum(len(proofs(record.json()["input"])) for record in seen) == 2 * len(kinds)

    play(face, http, scenario, batch={"max_items": 2})


@every_face
def test_no_batch_exceeds_what_the_server_takes(face: Face, http: str) -> None:
    calls: list[Any] = [f"short {number}" for number in range(40)]
    calls += [f"{number}" + "ä" * 30_000 for number in range(6)]
    calls += [[f"list {number}" for number in range(33)]]

    async def scenario(stage: Stage) -> None:
        jobs = [lambda given=given: stage.post({"model": "m", "input": given}) for given in calls]
        answers = await stage.meet(jobs)
        for given, answer in zip(calls, answers, strict=True):
            assert vectors_of(answer) == proofs(given)
        refused = await stage.post({"model": "m", "input": "x" * 250_000})
        assert refused.status == 413
        records = stage.gpu.log.requests[1:]
        assert [record.status for record in records[:-1]] == [200] * (len(records) - 1)
        assert all(len(proofs(record.json()["input"])) <= 32 for record in records[:-1])
        assert all(record.body_size <= 200_000 for record in records[:-1])

    play(
        face, http, scenario, batch={"max_items": 32, "max_bytes": 200_000, "max_wait": 0.05}, max_body=200_000,
        keep_body=1 << 20,
    )  # fmt: skip


@every_async_face
def test_who_leaves_harms_no_other_and_when_all_left_the_server_is_told(face: Face, http: str) -> None:
    second = faults.Hold(times=1)

    async def scenario(stage: Stage) -> None:
        busy = asyncio.ensure_future(stage.post({"model": "m", "input": "busy"}))
        await stage.gate.arrived.wait_async()
        tasks = [asyncio.ensure_future(stage.post({"model": "m", "input": text})) for text in "abcd"]
        await second.arrived.wait_async()
        tasks[0].cancel()
        tasks[2].cancel()
        second.release()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False, True, False]
        assert vectors_of(results[1]) == proofs("b")
        assert vectors_of(results[3]) == proofs("d")
        third = faults.Hold(times=1)
        stage.gpu.faults.push(third)
        tasks = [asyncio.ensure_future(stage.post({"model": "m", "input": text})) for text in "efgh"]
        await third.arrived.wait_async()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stage.gpu.log.wait_async(lambda log: log.requests[-1].outcome in ("client_left", "client_reset"))
        third.release()
        stage.gate.release()
        await busy
        assert vectors_of(await stage.post({"model": "m", "input": "after"})) == proofs("after")

    play(face, http, scenario, second, batch={"max_items": 4})


@every_face
def test_each_caller_keeps_its_own_time_limit(face: Face, http: str) -> None:
    second = faults.Hold(times=1)

    async def scenario(stage: Stage) -> None:
        async def hasty() -> Any:
            try:
                return await stage.post({"model": "m", "input": "hasty"}, timeout=0.05)
            finally:
                second.release()

        jobs = [lambda text=text: stage.post({"model": "m", "input": text}, timeout=30.0) for text in "abc"]
        answers = await stage.meet([*jobs, hasty])
        for text, answer in zip("abc", answers, strict=False):
            assert vectors_of(answer) == proofs(text)
        assert isinstance(answers[3], native_error(face)[1]), answers[3]
        assert len(stage.bodies()) == 1

    play(face, http, scenario, second, batch={"max_items": 4})


@every_face
def test_tei_and_gme(face: Face, http: str) -> None:
    async def scenario(stage: Stage) -> None:
        jobs = [
            lambda text=text: stage.post({"inputs": text, "truncate": True}, "/embed") for text in ("a", ["b", "c"])
        ]
        busy = lambda: stage.post({"inputs": "busy", "truncate": True}, "/embed")  # noqa: E731
        one, two = await stage.meet(jobs, busy=busy)
        assert one.json() == proofs("a")
        assert two.json() == proofs(["b", "c"])
        assert one.values("x-compute-type") == ["gpu+mock"]
        assert [sorted(body["inputs"]) for body in stage.bodies()] == [["a", "b", "c"]]

        stage.gpu.reset()
        stage.gate = faults.Hold(times=1)
        stage.gpu.faults.push(stage.gate)
        shapes: list[dict[str, Any]] = [{"image": "aW1n"}, {"inputs": ["text", {"image": "eA=="}]}]
        jobs = [lambda shape=shape: stage.post({"model": "m", "task": "t", **shape}, "/gme") for shape in shapes]
        busy = lambda: stage.post({"model": "m", "task": "t", "text": "busy"}, "/gme")  # noqa: E731
        one, two = await stage.meet(jobs, busy=busy)
        assert vectors_of(one) == [expected_vector("aW1n")]
        assert vectors_of(two) == [expected_vector("text"), expected_vector("eA==")]
        (body,) = stage.bodies()
        assert (body["task"], len(body["inputs"])) == ("t", 3)

    play(face, http, scenario, batch={"max_items": 3})


@every_face
def test_calls_that_start_together_make_full_batches(face: Face, http: str) -> None:
    """100 singles, no call before them: four batches where all start in one loop; threads come one by one."""

    async def scenario(stage: Stage) -> None:
        stage.gate.release()
        texts = [f"text {number}" for number in range(100)]
        jobs = [lambda text=text: stage.post({"model": "m", "input": text}) for text in texts]
        if face.is_async:
            answers = list(await asyncio.gather(*(job() for job in jobs)))
        else:
            answers = in_threads([lambda job=job: run_sync(job()) for job in jobs])  # type: ignore[misc]
        for text, answer in zip(texts, answers, strict=True):
            assert vectors_of(answer) == proofs(text)
        if face.is_async:
            assert len(stage.gpu.log.requests) == math.ceil(100 / 32)
        assert netkit.stats(stage.session.native).batch.largest <= 32
        assert netkit.stats(stage.session.native).batch.batches == len(stage.gpu.log.requests)

    play(face, http, scenario, batch={"max_wait": 0.01})
