"""Callers who leave, or whose time is up, before the shared answer is there: nobody else notices."""

from __future__ import annotations

import asyncio
from typing import Any

from netkit.testing.conformance._session import Face, Session
from netkit.testing.mock_gpu import Answer, Exchange
from tests.plugins.coalesce.stage import every_async_face, every_face, play, together


@every_async_face
def test_the_first_one_leaves_and_the_others_stay(face: Face, http: str) -> None:
    async def scene(stage: Any, session: Session) -> None:
        leader = asyncio.ensure_future(stage.post(session))
        await stage.until_arrived(1)
        followers = [asyncio.ensure_future(stage.post(session)) for _ in range(9)]
        await stage.until_joined(9)
        leader.cancel()
        await asyncio.wait([leader], timeout=10)
        assert leader.cancelled()
        assert not stage.go.is_set()
        stage.go.set()
        got = await asyncio.gather(*followers)
        assert [one.json()["counter"] for one in got] == [1] * 9
        assert len(stage.seen) == 1
        assert (await stage.post(session)).json()["counter"] == 2

    play(face, http, scene)


@every_async_face
def test_a_follower_leaves_and_the_others_stay(face: Face, http: str) -> None:
    async def scene(stage: Any, session: Session) -> None:
        tasks = [asyncio.ensure_future(stage.post(session)) for _ in range(10)]
        await stage.until_joined(9)
        await stage.until_arrived(1)
        tasks[4].cancel()
        await asyncio.wait([tasks[4]], timeout=10)
        assert tasks[4].cancelled()
        stage.go.set()
        got = await asyncio.gather(*tasks[:4], *tasks[5:])
        assert [one.json()["counter"] for one in got] == [1] * 9
        assert len(stage.seen) == 1

    play(face, http, scene)


@every_async_face
def test_the_last_one_to_leave_ends_the_call(face: Face, http: str) -> None:
    async def scene(stage: Any, session: Session) -> None:
        tasks = [asyncio.ensure_future(stage.post(session)) for _ in range(10)]
        await stage.until_joined(9)
        await stage.until_arrived(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=10)
        assert all(task.cancelled() for task in tasks)
        await stage.bench.until(lambda _: [one.outcome for one in stage.seen] in (["client_left"], ["client_reset"]))
        stage.go.set()
        assert (await stage.post(session)).json()["counter"] == 2, (
            "somebody got the answer of a call that was given up"
        )

    play(face, http, scene)


@every_async_face
def test_everybody_leaves_at_any_step(face: Face, http: str) -> None:
    """Two callers, cancelled after every number of steps: a third gets a whole answer, and nothing is left."""

    async def scene(stage: Any, session: Session) -> None:
        stage.go.set()
        for steps in range(30):
            tasks = [asyncio.ensure_future(stage.post(session)) for _ in range(2)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in tasks[: 1 + steps % 2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                assert isinstance(result, asyncio.CancelledError) or result.status == 200, result
            if steps % 2 == 0:
                assert results[1].status == 200
            assert (await stage.post(session)).status == 200

    play(face, http, scene)


@every_face
def test_the_first_ones_timeout_is_its_own(face: Face, http: str) -> None:
    async def scene(stage: Any, session: Session) -> None:
        async def hurried() -> Any:
            try:
                # Long enough for the others to have asked, on a busy machine too.
                return await stage.post(session, timeout=1.0)
            except Exception as error:
                return error
            finally:
                stage.go.set()

        async def patient() -> Any:
            await stage.until_arrived(1)
            return await stage.post(session, timeout=30)

        async def nothing() -> None:
            pass

        got = await together(stage, [hurried, patient, patient, patient], nothing)
        async with stage.bench.native() as plain:
            # Connected first: a connect that is cut short is not what is asked about.
            await plain.request("POST", stage.url, content=b"{}")
            stage.go.clear()
            expected = await stage.bench.failure(plain, "POST", stage.url, content=b"{}", timeout=0.05)
        assert type(got[0]) is type(expected), got[0]
        assert [one.status for one in got[1:]] == [200] * 3
        assert len({one.json()["counter"] for one in got[1:]}) == 1
        assert len(stage.seen) <= 4, "the first, one for the others, and two plain ones"

    play(face, http, scene)


@every_face
def test_a_hurried_follower_waits_no_longer_than_it_said(face: Face, http: str) -> None:
    async def scene(stage: Any, session: Session) -> None:
        async def hurried() -> Any:
            await stage.until_arrived(1)
            try:
                return await stage.post(session, timeout=0.1)
            except Exception as error:
                return error
            finally:
                stage.go.set()

        async def patient() -> Any:
            return await stage.post(session, timeout=30)

        async def nothing() -> None:
            pass

        got = await together(stage, [patient, hurried], nothing)
        assert got[0].status == 200
        assert isinstance(got[1], Exception)
        assert "imeout" in type(got[1]).__name__
        assert len(stage.seen) == 1

    play(face, http, scene)


@every_async_face
def test_a_stream_that_its_first_caller_leaves_is_ended(face: Face, http: str) -> None:
    """A long answer is not shared: whoever leaves it before its body is read leaves nothing open."""

    async def scene(stage: Any, session: Session) -> None:
        async def pieces() -> Any:
            while True:
                yield b"x" * 1000
                await asyncio.sleep(0.001)

        def answer(_: Exchange) -> Answer:
            return Answer(200, [("content-type", "application/octet-stream")], pieces())

        stage.bench.gpu.route(stage.path, answer)
        for steps in range(0, 40, 3):
            task = asyncio.ensure_future(stage.post(session))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
        await stage.bench.until(lambda _: all("client" in (one.outcome or "") for one in stage.seen))

    play(face, http, scene)
