"""Identical calls on every face: what the server saw, and what each caller got."""

from __future__ import annotations

import itertools
from typing import Any

import netkit
from netkit.testing.conformance._session import Face, Session
from netkit.testing.mock_gpu import Answer, Exchange, Signal
from netkit.testing.mock_gpu.exchange import Gone
from tests.plugins.coalesce.stage import BODY, Stage, every_face, play, together


@every_face
def test_ten_identical_calls_cost_one(face: Face, http: str) -> None:
    async def scene(stage: Stage, session: Session) -> None:
        async def release() -> None:
            await stage.until_joined(9)
            stage.go.set()

        got = await together(stage, [lambda: stage.post(session)] * 10, release)
        assert [one.status for one in got] == [200] * 10
        assert {one.content for one in got} == {got[0].content}
        assert len(stage.seen) == 1
        assert stage.seen[0].body == BODY
        after = await stage.post(session)
        assert after.json()["counter"] == 2, "an answer was kept"
        figures = netkit.stats(session.native).coalesce
        assert (figures.calls, figures.shared, figures.handed_over) == (11, 9, 0)

    play(face, http, scene)


@every_face
def test_gets_are_shared_and_headers_reach_everybody(face: Face, http: str) -> None:
    async def scene(stage: Stage, session: Session) -> None:
        async def answer(_: Exchange) -> Answer:
            await stage.go.wait_async()
            return Answer(201, [("content-type", "text/plain"), ("x-a", "1"), ("x-a", "2")], b"text")

        stage.bench.gpu.route(stage.path, answer)

        async def release() -> None:
            await stage.until_joined(3)
            stage.go.set()

        got = await together(stage, [lambda: session.request("GET", stage.url)] * 4, release)
        assert [(one.status, one.content) for one in got] == [(201, b"text")] * 4
        assert [", ".join(one.values("x-a")) for one in got] == ["1, 2"] * 4
        assert {one.url for one in got} == {stage.url}
        assert {one.http_version for one in got} == {"HTTP/2" if http == "2" else "HTTP/1.1"}
        assert len(stage.seen) == 1

    play(face, http, scene)


@every_face
def test_a_compressed_answer_is_decoded_for_everybody(face: Face, http: str) -> None:
    import gzip

    async def scene(stage: Stage, session: Session) -> None:
        async def answer(_: Exchange) -> Answer:
            await stage.go.wait_async()
            headers = [("content-type", "application/json"), ("content-encoding", "gzip")]
            return Answer(200, headers, gzip.compress(b'{"a": 1}'))

        stage.bench.gpu.route(stage.path, answer)

        async def release() -> None:
            await stage.until_joined(3)
            stage.go.set()

        got = await together(stage, [lambda: stage.post(session)] * 4, release)
        assert [one.content for one in got] == [b'{"a": 1}'] * 4
        assert len(stage.seen) == 1

    play(face, http, scene)


@every_face
def test_a_failure_is_told_to_each_as_its_own(face: Face, http: str) -> None:
    async def scene(stage: Stage, session: Session) -> None:
        async def answer(exchange: Exchange) -> Answer:
            await stage.go.wait_async()
            exchange.connection.reset()
            raise Gone("cut")

        stage.bench.gpu.route(stage.path, answer)
        async with stage.bench.native() as plain:
            stage.go.set()
            expected = await stage.bench.failure(plain, "POST", stage.url, content=BODY)
        stage.go = Signal()
        stage.bench.gpu.log.clear()

        async def release() -> None:
            await stage.until_joined(4)
            stage.go.set()

        got = await together(stage, [lambda: stage.post(session)] * 5, release)
        assert all(isinstance(one, Exception) for one in got), got
        assert len({id(one) for one in got}) == 5
        for one in got:
            if http == "1.1":
                assert type(one) is type(expected)
                assert str(one).split("(")[0] == str(expected).split("(")[0]
                assert (one.__cause__ is None) == (expected.__cause__ is None)
            assert type(one).__module__.partition(".")[0] == face.stack
        assert len(stage.seen) == 1
        await stage.bench.failure(session, "POST", stage.url, content=BODY)
        assert len(stage.seen) == 2, "a failure was kept"

    play(face, http, scene)


@every_face
def test_another_credential_tenant_or_body_is_another_call(face: Face, http: str) -> None:
    async def scene(stage: Stage, session: Session) -> None:
        async def answer(exchange: Exchange) -> Answer:
            await stage.go.wait_async()
            asked = [exchange.header(name) or "" for name in ("authorization", "x-tenant", "accept")]
            return Answer.json([*asked, exchange.content.decode(), exchange.query])

        stage.bench.gpu.route(stage.path, answer)
        asks = list(
            itertools.product(
                ("Bearer A", "Bearer B"), ("t1", "t2"), (b'{"input":"1"}', b'{"input":"2"}'), ("a=1", "a=2")
            )
        )

        async def ask(who: str, tenant: str, body: bytes, query: str) -> Any:
            headers = {"authorization": who, "x-tenant": tenant, "accept": "application/json"}
            headers |= {"traceparent": f"00-{next(stage.counter)}", "x-request-id": str(next(stage.counter))}
            return (await session.request("POST", f"{stage.url}?{query}", content=body, headers=headers)).json()

        async def release() -> None:
            await stage.until_joined(len(asks))
            stage.go.set()

        jobs = [lambda one=one: ask(*one) for one in asks * 2]  # type: ignore[misc]
        got = await together(stage, jobs, release)
        for (who, tenant, body, query), answer_ in zip(asks * 2, got, strict=True):
            assert answer_ == [who, tenant, "application/json", body.decode(), query]
        assert len(stage.seen) == len(asks)

    play(face, http, scene)


@every_face
def test_what_is_not_pure_or_drawn_or_streamed_is_not_shared(face: Face, http: str) -> None:
    chat = b'{"messages":[{"role":"user","content":"hi"}],"temperature":1}'

    async def scene(stage: Stage, session: Session) -> None:
        stage.go.set()

        async def answer(_: Exchange) -> Answer:
            return Answer.json({"counter": next(stage.counter)})

        number = stage.bench.servers.number()
        chats = f"/{number}/v1/chat/completions"
        other = f"/{number}/v1/jobs"
        for path in (chats, other):
            stage.bench.gpu.route(path, answer)
        base = stage.bench.gpu.url
        asks: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", base + chats, {"content": chat}),
            ("POST", base + other, {"content": b"{}"}),
            ("PUT", base + other, {"content": b"{}"}),
            ("POST", stage.url, {"content": b'{"stream": true}'}),
            ("POST", stage.url, {"content": b"{}", "headers": {"accept": "text/event-stream"}}),
            ("POST", stage.url, {"content": b"{}", "headers": {"cache-control": "no-cache"}}),
            ("POST", stage.url, {"content": lambda: iter([b"{", b"}"])}),
        ]

        async def nothing() -> None:
            pass

        for method, url, options in asks:
            stage.bench.gpu.log.clear()
            jobs = [lambda method=method, url=url, options=options: session.request(method, url, **options)] * 4  # type: ignore[misc]
            got = await together(stage, jobs, nothing)
            assert [one.status for one in got] == [200] * 4
            assert len(stage.bench.seen(url)) == 4, (method, url, options)
        assert netkit.stats(session.native).coalesce.calls == 0

    play(face, http, scene, {"routes": ["*/embeddings", "*/chat/completions"]})


@every_face
def test_a_long_answer_is_its_first_callers_alone(face: Face, http: str) -> None:
    async def scene(stage: Stage, session: Session) -> None:
        async def answer(_: Exchange) -> Answer:
            await stage.go.wait_async()
            return Answer(200, [("content-type", "application/octet-stream")], b"x" * 2000)

        stage.bench.gpu.route(stage.path, answer)

        async def release() -> None:
            await stage.until_joined(3)
            stage.go.set()

        got = await together(stage, [lambda: stage.post(session)] * 4, release)
        assert [one.content for one in got] == [b"x" * 2000] * 4
        assert len(stage.seen) == 4

    play(face, http, scene, {"max_answer_bytes": 1000})
