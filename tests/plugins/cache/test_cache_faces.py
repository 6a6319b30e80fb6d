"""Remembered answers on every face: what the server saw, and what each caller got."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import netkit
from netkit.testing import conformance, expected_vector
from netkit.testing.conformance._bench import Bench, run
from netkit.testing.conformance._cases import _own_environment
from netkit.testing.conformance._servers import Servers
from netkit.testing.conformance._session import Face, Session, Upload
from netkit.testing.mock_gpu import Answer, Exchange
from netkit.testing.mock_gpu.exchange import Gone

_FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
every_face = pytest.mark.parametrize(
    ("face", "http"), [(face, http) for face in _FACES for http in ("1.1", "2")], ids=str
)
JSON = {"content-type": "application/json"}


def play(
    face: Face, http: str, scene: Callable[[Bench, Session, str], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """`scene(bench, session, url)`, with a pure route of its own that counts, and the cache on."""
    with _own_environment():
        bench = Bench(conformance.Subject("cache", options), face, http, Servers.shared())
        bench.gpu.log.clear()
        path = f"/{bench.servers.number()}/v1/embeddings"
        counter = itertools.count(1)
        bench.gpu.route(path, lambda exchange: Answer.json({"data": [{"index": 0, "embedding": [next(counter)]}]}))

        async def whole() -> None:
            async with bench.session() as session:
                await scene(bench, session, bench.gpu.url + path)
                assert bench.held(session) == {}

        run(face, whole())


@every_face
def test_a_b_a(face: Face, http: str) -> None:
    async def scene(bench: Bench, session: Session, url: str) -> None:
        bodies = [b'{"input":"a","model":"m"}', b'{"input":"b","model":"m"}', b'{"model":"m","input":"a"}']
        got = [await session.request("POST", url, content=body, headers=JSON) for body in bodies]
        assert len(bench.seen(url)) == 2
        assert got[2].content == got[0].content != got[1].content
        assert got[2].values("content-length") == [str(len(got[0].content))]
        assert got[2].values("age") == ["0"]
        assert got[2].status == 200
        # Read to the end like any other, and the session's own counters say so.
        assert netkit.stats(session.native).requests.in_flight == 0
        assert netkit.stats(session.native).requests.attempts == 2

    play(face, http, scene)


@every_face
def test_lists_of_a_real_api(face: Face, http: str) -> None:
    async def scene(bench: Bench, session: Session, _: str) -> None:
        async def ask(*texts: str, **more: Any) -> None:
            got = (
                await session.request("POST", f"{bench.url}/v1/embeddings", json={"input": list(texts), **more})
            ).json()
            assert [one["index"] for one in got["data"]] == list(range(len(texts)))
            if "encoding_format" not in more:
                assert [one["embedding"] for one in got["data"]] == [expected_vector(text) for text in texts]
            else:
                assert all(isinstance(one["embedding"], str) for one in got["data"])

        def inputs() -> list[Any]:
            return [record.json()["input"] for record in bench.gpu.log.requests]

        await ask("a")
        await ask("b", "a", "c")
        await ask("c", "a")
        await ask("c", "a", encoding_format="base64")
        assert inputs() == [["a"], ["b", "c"], ["c", "a"]]
        got = await session.request("POST", f"{bench.url}/embed", json={"inputs": ["x", "y"]})
        again = await session.request("POST", f"{bench.url}/embed", json={"inputs": ["y", "z", "x"]})
        assert again.json() == [expected_vector(text) for text in ("y", "z", "x")]
        assert got.json() == [expected_vector(text) for text in ("x", "y")]
        assert bench.gpu.log.requests[-1].json() == {"inputs": ["z"]}

    play(face, http, scene)


@every_face
def test_errors_are_asked_for_again(face: Face, http: str) -> None:
    good = b'{"data": [{"index": 0, "embedding": [1]}]}'

    def short(exchange: Exchange) -> Answer:
        async def pieces() -> Any:
            yield good[:10]
            exchange.connection.close()
            raise Gone("cut")

        return Answer(200, [("content-type", "application/json")], pieces(), len(good))

    async def scene(bench: Bench, session: Session, url: str) -> None:
        statuses = [502, 503, 429, 401, 500, 404]
        outcomes: list[Any] = [lambda _, status=status: Answer.error(status, "bad") for status in statuses]
        outcomes += [
            lambda _: Answer(200, [("content-type", "text/html")], b"<html>"),
            lambda _: Answer(200, [("content-type", "application/json")], b'{"error": {"message": "overloaded"}}'),
            short,
        ]
        turns = iter(outcomes)
        bench.gpu.route(
            url.removeprefix(bench.gpu.url),
            lambda exchange: next(turns, lambda _: Answer(200, [("content-type", "application/json")], good))(
                exchange
            ),
        )
        for number in range(len(outcomes)):
            call = session.request("POST", url, content=b'{"input":"a"}', headers=JSON)
            if outcomes[number] is short:
                with pytest.raises(Exception) as caught:
                    await call
                assert caught.type.__module__.partition(".")[0] == face.stack
            else:
                assert (await call).content != good
            assert netkit.stats(session.native).cache.entries == 0
        for _ in range(3):
            assert (await session.request("POST", url, content=b'{"input":"a"}', headers=JSON)).content == good
        assert len(bench.seen(url)) == len(outcomes) + 1

    play(face, http, scene)


@every_face
def test_every_caller_has_its_own(face: Face, http: str) -> None:
    async def scene(bench: Bench, session: Session, url: str) -> None:
        def echo(exchange: Exchange) -> Answer:
            asked = f"{exchange.header('authorization')} {exchange.header('x-tenant')} {exchange.query}"
            return Answer.json({"data": [{"index": 0, "embedding": asked}]})

        bench.gpu.route(url.removeprefix(bench.gpu.url), echo)
        asks = list(itertools.product(("Bearer A", "Bearer B", "Basic QTpi"), ("t1", "t2"), ("v=1", "v=2")))
        for who, tenant, query in asks * 2:
            headers = {**JSON, "authorization": who, "x-tenant": tenant}
            got = await session.request("POST", f"{url}?{query}", content=b'{"input":"a"}', headers=headers)
            assert got.json()["data"][0]["embedding"] == f"{who} {tenant} {query}"
        assert len(bench.seen(url)) == len(asks)

    play(face, http, scene)


@every_face
def test_a_compressed_answer_with_a_cookie(face: Face, http: str) -> None:
    content = b'{"data": [{"index": 0, "embedding": [0.50]}, {"index": 1, "embedding": [1]}]}'
    headers = [("content-type", "application/json"), ("content-encoding", "gzip"), ("set-cookie", "id=first; Path=/")]

    async def scene(bench: Bench, session: Session, url: str) -> None:
        bench.gpu.route(url.removeprefix(bench.gpu.url), lambda _: Answer(200, headers, gzip.compress(content)))
        options: dict[str, Any] = {"content": b'{"input":["a","b"]}', "headers": JSON}
        first = await session.request("POST", url, **options)
        assert first.content == content
        again = await session.request("POST", url, headers={**JSON, "cookie": "id=first"}, content=options["content"])
        assert again.json() == first.json()
        single = await session.request("POST", url, headers={**JSON, "cookie": "id=first"}, content=b'{"input":"b"}')
        assert single.content == b'{"data":[{"index":0,"embedding":[1]}]}'
        assert single.values("set-cookie") == single.values("content-encoding") == []

    play(face, http, scene, per_credential=False)


@every_face
def test_bodies_that_cannot_be_compared_pass_whole(face: Face, http: str) -> None:
    async def scene(bench: Bench, session: Session, url: str) -> None:
        bench.gpu.route(
            url.removeprefix(bench.gpu.url), lambda exchange: Answer.json({"size": len(exchange.content)})
        )
        for _ in range(2):
            got = await session.request("POST", url, content=lambda: iter([b"one", b"two"]), headers=JSON)
            assert got.json() == {"size": 6}
        assert len(bench.seen(url)) == 2
        upload = Upload("a.bin", b"x" * 100, "application/octet-stream")
        for _ in range(2):
            assert (await session.request("POST", url, files={"image": upload})).json()["size"] > 100
        bodies = {record.body for record in bench.seen(url)[2:]}
        # A boundary drawn anew makes another body: a miss, never a wrong answer.
        assert len(bench.seen(url)) == 2 + len(bodies)

    play(face, http, scene, items=[])


@every_face
def test_what_one_call_was_told_to_trust_answers_no_other(face: Face, http: str) -> None:
    """An answer got without verification is none for a call that verifies."""

    async def scene(bench: Bench, session: Session, url: str) -> None:
        gpu = bench.secure
        secure = bench.route(lambda _: Answer.json({"ok": True}), gpu=gpu, name="x/embeddings")
        secure = secure.replace("/x/embeddings/", "/") + "/embeddings"
        gpu.route(secure.removeprefix(gpu.url), lambda _: Answer.json({"ok": True}))
        assert (await bench.call(session, "POST", secure, content=b"{}", verify=False)).json() == {"ok": True}
        if "verify" in face.per_call:
            assert (await bench.call(session, "POST", secure, content=b"{}", verify=False)).json() == {"ok": True}
            assert len(bench.seen(secure, gpu=gpu)) == 1
            await bench.failure(session, "POST", secure, content=b"{}", verify=True)
        assert (await bench.call(session, "POST", secure, content=b"{}", verify=gpu.ca_file)).json() == {"ok": True}
        assert len(bench.seen(secure, gpu=gpu)) == 2

    play(face, http, scene)
