"""On every stack against two replicas, over HTTP/1.1 and HTTP/2: what the servers saw, and what the caller got."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import netkit
from netkit import DeadlineExceeded
from netkit.flow import run_sync
from netkit.testing import MockGPU, conformance
from netkit.testing.conformance._bench import in_threads, run
from netkit.testing.mock_gpu import Answer, Exchange, Signal

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
CASES = [(face, http) for face in FACES for http in ("1.1", "2")]
every_face = pytest.mark.parametrize(("face", "http"), CASES, ids=str)
every_async_face = pytest.mark.parametrize(("face", "http"), [each for each in CASES if each[0].is_async], ids=str)
BODY = b'{"model":"m","input":"x"}'
JSON = {"content-type": "application/json"}
LEFT = {"client_left", "client_reset"}


class Pair:
    """Two replicas, of which the first call goes to the first one. `stuck(replica, number)` says whether a request is
    never answered; `number` counts the replica's."""

    def __init__(self, http: str, gpus: list[MockGPU]) -> None:
        self.http = http
        self.gpus = gpus
        self.stuck: Callable[[int, int], bool] = lambda replica, number: False
        self.statuses = [200, 200]
        self.after_first = False
        """The second replica answers once the first one has been asked."""
        self.arrived = [Signal(), Signal()]
        self.end = Signal()
        for replica, gpu in enumerate(gpus):
            for path in ("/v1/embeddings", "/v1/chat/completions"):
                gpu.route(path, self.answerer(replica))

    def answerer(self, replica: int) -> Any:
        numbers = itertools.count(1)

        async def answer(exchange: Exchange) -> Answer:
            number = next(numbers)
            self.arrived[replica].set()
            if replica == 1 and self.after_first:
                await self.arrived[0].wait_async()
            if self.stuck(replica, number):
                await self.end.wait_async()
            content = {"replica": replica, "number": number, "body": exchange.content.decode()}
            return Answer.json(content, self.statuses[replica])

        return answer

    def opened(self, face: Any, *, gpus: list[MockGPU] | None = None, **plugins: Any) -> Any:
        endpoints = [gpu.url for gpu in gpus or self.gpus]
        balance = {"endpoints": endpoints, "url": "http://service.test", "policy": "round-robin"}
        http2 = {"enabled": "prior-knowledge"} if self.http == "2" else False
        defaults = {"balance": balance, "http2": http2, "pool": True, "retry": False}
        hedge = {"delay": 0.05, "max_extra_load": 1.0}
        return face.open({**defaults, "hedge": hedge, **plugins}, {})

    @property
    def seen(self) -> list[Any]:
        return [record for gpu in self.gpus for record in gpu.log.requests]

    async def until_left(self, face: Any, count: int | None = None) -> None:
        """Until the servers saw everybody leave who was not answered: `count` callers, where it is given."""
        for gpu in self.gpus:
            wanted = sum(record.outcome in {*LEFT, "open"} for record in gpu.log.requests)

            def have_left(log: Any, wanted: int = wanted) -> bool:
                return sum(record.outcome in LEFT for record in log.requests) >= wanted

            if face.is_async:
                await gpu.log.wait_async(have_left)
            else:
                gpu.log.wait(have_left)
        assert count in (None, sum(record.outcome in LEFT for record in self.seen))

    async def until(self, face: Any, is_so: Callable[[], bool]) -> None:
        """What was given up ends a moment after its caller has gone on."""
        until = time.monotonic() + 10
        while not is_so():
            assert time.monotonic() < until
            if face.is_async:
                await asyncio.sleep(0)
            else:
                time.sleep(0)

    async def until_nothing_is_held(self, face: Any, session: Any) -> None:
        def is_so() -> bool:
            found = netkit.stats(session.native)
            held = [found.pool.in_use, found.pool.queued]
            if "limit" in found.plugins:
                held += [found.limit.in_use, found.limit.queued]
            return not any(held)

        await self.until(face, is_so)

    async def post(self, session: Any, path: str = "/v1/embeddings", **options: Any) -> Any:
        options = {"content": BODY, "headers": JSON, **options}
        return await session.request("POST", "http://service.test" + path, **options)


@contextmanager
def pair(http: str) -> Iterator[Pair]:
    with MockGPU(tls=False, http=http) as first, MockGPU(tls=False, http=http) as second:
        both = Pair(http, [first, second])
        try:
            yield both
        finally:
            both.end.set()


def play(face: Any, http: str, scene: Any, **plugins: Any) -> None:
    with pair(http) as both:

        async def scenario() -> None:
            session = both.opened(face, **plugins)
            try:
                await scene(both, session)
                await both.until_nothing_is_held(face, session)
            finally:
                both.end.set()
                await session.close()

        run(face, scenario())


def stats(session: Any) -> tuple[int, int, int, int]:
    hedge = netkit.stats(session.native).hedge
    return hedge.calls, hedge.sent, hedge.won, hedge.denied


@every_face
def test_the_other_replica_answers_and_the_first_sees_its_caller_leave(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        both.stuck, both.after_first = (lambda replica, number: replica == 0), True
        answer = await both.post(session)
        assert (answer.status, answer.json()["replica"]) == (200, 1)
        await both.until_left(face, 1)
        assert [len(gpu.log.requests) for gpu in both.gpus] == [1, 1]
        assert stats(session) == (1, 1, 1, 0)
        assert {(record.method, record.path, record.body) for record in both.seen} == {
            ("POST", "/v1/embeddings", BODY)
        }
        await both.until(face, lambda: netkit.stats(session.native).requests.attempts == 2)
        assert (await both.post(session)).status == 200

    play(face, http, scene)


@every_face
def test_a_fast_503_of_the_second_does_not_beat_the_first(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        both.stuck, both.statuses = (lambda replica, number: replica == 0), [200, 503]

        def release() -> None:
            both.gpus[1].log.wait(lambda log: any(record.ended for record in log.requests))
            both.end.set()

        thread = threading.Thread(target=release)
        thread.start()
        answer = await both.post(session)
        thread.join()
        assert (answer.status, answer.json()["replica"]) == (200, 0)
        assert stats(session) == (1, 1, 0, 0)

    play(face, http, scene)


@every_face
def test_calls_that_are_billed_twice_and_one_shot_bodies_are_sent_once(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        hedge = {"delay": 0.0, "max_extra_load": 1.0}
        with netkit.overrides(hedge=hedge):
            assert (await both.post(session, "/v1/chat/completions")).status == 200
            assert (await both.post(session, content=lambda: iter([BODY]))).status == 200
        assert len(both.seen) == 2

    play(face, http, scene)


@every_face
def test_a_deadline_ends_both(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        both.stuck = lambda replica, number: True
        with pytest.raises(DeadlineExceeded):
            await both.post(session)
        await both.until_left(face, 2)

    play(face, http, scene, deadline={"total": 0.4})


@every_face
def test_the_callers_own_time_limit_holds(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        both.stuck = lambda replica, number: True
        with pytest.raises(Exception) as caught:  # of each stack's own class
            await both.post(session, timeout=0.3)
        assert "imeout" in type(caught.value).__name__ or "imed out" in str(caught.value)
        await both.until_left(face, 2)

    play(face, http, scene)


@every_async_face
def test_cancelling_the_caller_ends_both(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        both.stuck = lambda replica, number: True
        task = asyncio.ensure_future(both.post(session))
        await both.arrived[1].wait_async()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await both.until_left(face, 2)
        both.stuck = lambda replica, number: False
        assert (await both.post(session)).status == 200

    play(face, http, scene)


@every_face
def test_nothing_is_sent_once_a_stream_has_begun(face: Any, http: str) -> None:
    with pair(http) as both:
        slowly = Signal()

        async def pieces() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            await slowly.wait_async()
            yield b"data: 2\n\n"

        async def answer(exchange: Exchange) -> Answer:
            return Answer(200, [("content-type", "text/event-stream")], pieces())

        for gpu in both.gpus:
            gpu.route("/v1/rerank", answer)

        async def scenario() -> None:
            session = both.opened(face, hedge={"delay": 1.0, "max_extra_load": 1.0})
            try:
                stream = await session.open_stream(
                    "POST", "http://service.test/v1/rerank", content=BODY, headers=JSON
                )
                assert await stream.event() == b"data: 1"
                slowly.set()
                assert await stream.event() == b"data: 2"
                assert await stream.event() == b""
                await stream.close()
                assert len(both.seen) == 1
            finally:
                slowly.set()
                await session.close()

        run(face, scenario())


@every_face
def test_a_limiter_gets_both_places_back(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        both.stuck = lambda replica, number: replica == 0
        for _ in range(2):
            assert (await both.post(session)).status == 200
        await both.until_left(face, 2)
        await both.until_nothing_is_held(face, session)
        assert stats(session)[2] == 2

    play(face, http, scene, limit={"concurrency": 2})


@every_face
def test_with_one_place_in_the_limit_the_second_waits_and_never_goes(face: Any, http: str) -> None:
    async def scene(both: Pair, session: Any) -> None:
        both.stuck = lambda replica, number: replica == 0

        def release() -> None:
            while not netkit.stats(session.native).limit.queued:
                time.sleep(0)
            both.end.set()

        thread = threading.Thread(target=release)
        thread.start()
        answer = await both.post(session)
        thread.join()
        assert answer.json()["replica"] == 0
        assert len(both.seen) == 1
        assert stats(session) == (1, 0, 0, 0)

    play(face, http, scene, limit={"concurrency": 1})


@every_face
def test_one_replica_alone(face: Any, http: str) -> None:
    with pair(http) as both:
        both.stuck = lambda replica, number: number == 1

        async def scenario() -> None:
            session = both.opened(face, gpus=both.gpus[:1])
            try:
                assert (await both.post(session)).json()["number"] == 2
                await both.until_left(face, 1)
                assert [len(gpu.log.requests) for gpu in both.gpus] == [2, 0]
                connections = {record.connection for record in both.seen}
                assert len(connections) == (2 if http == "1.1" else 1)
            finally:
                await session.close()

        run(face, scenario())


@every_face
def test_a_storm_crosses_no_answers_and_keeps_to_its_budget(face: Any, http: str) -> None:
    calls, at_once = 200, 20

    async def scene(both: Pair, session: Any) -> None:
        # What a second copy is for: the other replica always answers.
        both.stuck = lambda replica, number: replica == 0 and number % 5 == 0

        async def call(number: int) -> Any:
            body = b'{"model":"m","input":"%d"}' % number
            answer = await both.post(session, content=body)
            assert answer.status == 200, answer.content
            assert answer.json()["body"].encode() == body
            return answer.status

        async def some(start: int) -> list[Any]:
            return [await call(number) for number in range(start, calls, at_once)]

        if face.is_async:
            parts = await asyncio.gather(*(some(start) for start in range(at_once)))
        else:
            parts = in_threads([lambda start=start: run_sync(some(start)) for start in range(at_once)])
        found = [each for part in parts for each in part]
        made, sent, won, _ = stats(session)
        assert made == calls
        assert calls < len(both.seen) <= calls + sent
        assert found == [200] * calls
        assert 0 < won <= sent <= calls
        await both.until_left(face)

    play(face, http, scene)
