"""What layers may change, answer and resend, and what then goes over the wire."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import netkit
from netkit import Body, Request, Response, Send, Timeout
from netkit.errors import BodyClosed, FailureKind, PluginError, TransportError
from netkit.testing import MockGPU, faults

OpenSession = Callable[..., netkit.ClientSession]


def changing(**changes: Any) -> Any:
    async def layer(request: Request, send: Send) -> Response:
        return await send(request.replace(**changes))

    return layer


async def test_an_unchanged_request_is_the_native_object(gpu: MockGPU, open_session: OpenSession) -> None:
    seen: list[Any] = []

    async def layer(request: Request, send: Send) -> Response:
        seen.append((request.native.req, request.headers["Host"], request.url, request.method, request.body.content))
        response = await send(request.extend(note=1))
        assert request.native.sent is request.native.req
        return response

    async with open_session(layer).post(f"{gpu.url}/echo?a=%20b#fragment", data=b"x") as answer:
        assert (await answer.json())["query"] == "a=%20b"
    ((_, host, url, method, content),) = seen
    assert (f"http://{host}/echo?a=%20b", "POST", b"x") == (url, method, content)


async def test_headers_body_url_and_method_of_a_layer_reach_the_server(
    gpu: MockGPU, open_session: OpenSession
) -> None:
    async def layer(request: Request, send: Send) -> Response:
        assert request.body.content == b'{"a": 1}'
        headers = request.headers.set("X-New", "1").remove("User-Agent").add("X-Two", "a").add("X-Two", "b")
        return await send(
            request.replace(
                headers=headers, body=Body.of(b"longer than before"), url=f"{gpu.url}/echo/there?q=1", method="PUT"
            )
        )

    async with open_session(layer).post(f"{gpu.url}/echo", json={"a": 1}) as answer:
        assert (await answer.json())["body"] == "longer than before"
        assert answer.method == "PUT"
        assert answer.url.path == "/echo/there"
    (record,) = gpu.log.requests
    assert (record.method, record.target) == ("PUT", "/echo/there?q=1")
    assert record.header("content-length") == "18"
    assert record.header("content-type") == "application/json"
    assert [value for name, value in record.headers if name.lower() == "x-two"] == ["a", "b"]
    assert record.header("user-agent") is None or "aiohttp" not in str(record.header("user-agent"))


@pytest.mark.parametrize(
    "arguments",
    [{"data": b"abc"}, {"data": io.BytesIO(b"abc")}, {"json": {}}, {}],
    ids=["bytes", "file", "json", "none"],
)
@pytest.mark.parametrize("made", ["bytes", "large", "empty", "chunks", "async chunks"])
async def test_any_body_can_replace_any_other(
    gpu: MockGPU, http: str, open_session: OpenSession, arguments: dict[str, Any], made: str
) -> None:
    large = b"0123456789" * 150_000

    async def pieces() -> AsyncIterator[bytes]:
        yield b"on"
        yield b"e"

    body, expected = {
        "bytes": (Body.of(b"one"), b"one"),
        "large": (Body.of(large), large),
        "empty": (Body.of(b""), b""),
        "chunks": (Body.reopenable(lambda: [b"on", b"e"]), b"one"),
        "async chunks": (Body.one_shot(pieces()), b"one"),
    }[made]
    async with open_session(changing(body=body)).post(f"{gpu.url}/echo", **arguments) as answer:
        await answer.read()
    (record,) = gpu.log.requests
    assert record.body_complete
    assert record.body_sha256 == hashlib.sha256(expected).hexdigest()
    assert (record.header("transfer-encoding") == "chunked") == ("chunks" in made and http == "1.1")


async def test_a_compressed_body_is_compressed_anew(gpu: MockGPU, open_session: OpenSession) -> None:
    import zlib

    async with open_session(changing(body=Body.of(b"new" * 99))).post(
        f"{gpu.url}/echo", data=b"old" * 99, compress="deflate"
    ):
        pass
    (record,) = gpu.log.requests
    assert record.body is not None
    assert zlib.decompress(record.body) == b"new" * 99
    assert record.header("content-encoding") == "deflate"


async def test_another_host_gets_its_own_host_header(gpu: MockGPU, open_session: OpenSession) -> None:
    url = gpu.url.replace("127.0.0.1", "localhost")
    async with open_session(changing(url=f"{url}/echo")).get(f"{gpu.url}/echo") as answer:
        assert answer.url.host == "localhost"
    assert gpu.log.requests[0].authority.startswith("localhost:")
    async with open_session(changing(url=f"{url}/echo")).get(f"{gpu.url}/echo", headers={"Host": "mine"}):
        pass
    assert gpu.log.requests[1].authority == "mine"


async def test_an_answer_of_a_layer_is_a_real_response(gpu: MockGPU, open_session: OpenSession) -> None:
    ended: list[Any] = []
    chunks: list[bytes] = []

    async def layer(request: Request, send: Send) -> Response:
        headers = [("Content-Type", "application/json"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X-Ü", "ä")]
        answer = Response.of(201, headers, b'{"made": true}')
        answer.observe(lambda chunk: chunks.append(chunk) or chunk, ended.append)  # type: ignore[func-returns-value]
        return answer

    session = open_session(layer, cookie_jar=aiohttp.CookieJar(unsafe=True))
    async with session.get(f"{gpu.url}/any?q=1") as answer:
        assert ended == []
        assert (answer.status, answer.reason, answer.version) == (201, "Created", aiohttp.HttpVersion11)
        assert answer.headers.getall("set-cookie") == ["a=1", "b=2"]
        assert {cookie.key: cookie.value for cookie in session.cookie_jar} == {"a": "1", "b": "2"}
        assert answer.cookies["b"].value == "2"
        assert await answer.json() == {"made": True}
        assert answer.url.path_qs == "/any?q=1"
        assert answer.request_info.method == "GET"
    assert (chunks, ended) == ([b'{"made": true}'], [None])
    async with session.get(f"{gpu.url}/any"):
        pass
    assert isinstance(ended[1], BodyClosed)
    response = await session.get(f"{gpu.url}/any")
    del response
    assert isinstance(ended[2], BodyClosed)
    async with session.get(f"{gpu.url}/any") as answer:
        assert [line async for line in answer.content] == [b'{"made": true}']
    assert gpu.log.requests == []
    assert netkit.stats(session).requests.in_flight == 0


async def test_a_redirect_made_by_a_layer_is_followed(gpu: MockGPU, open_session: OpenSession) -> None:
    async def layer(request: Request, send: Send) -> Response:
        if request.url.endswith("/from"):
            return Response.of(307, [("Location", "/echo")])
        return await send(request)

    async with open_session(layer).post(f"{gpu.url}/from", data=io.BytesIO(b"kept")) as answer:
        assert (await answer.json())["body"] == "kept"
        assert [past.status for past in answer.history] == [307]


@pytest.mark.parametrize("way", ["read", "content", "lines", "json", "chunks"])
async def test_a_body_that_a_layer_read_is_still_there_for_the_caller(
    gpu: MockGPU, open_session: OpenSession, way: str
) -> None:
    async def layer(request: Request, send: Send) -> Response:
        response = await send(request)
        first, second = await response.read(), await response.read()
        assert first == second
        assert response.body.ended
        assert response.body.released
        return response

    async with open_session(layer).post(f"{gpu.url}/echo", data=b"x" * 3000) as answer:
        if way == "read":
            content = await answer.read()
        elif way == "content":
            content = await answer.content.read()
        elif way == "lines":
            content = b"".join([line async for line in answer.content])
        elif way == "chunks":
            content = b"".join([chunk async for chunk, _ in answer.content.iter_chunks()])
        else:
            assert (await answer.json())["body_size"] == 3000
            return
    assert b'"body_size":3000' in content


def bodies(path: Path) -> dict[str, Callable[[], Any]]:
    path.write_bytes(b"0123456789" * 30_000)

    def file(offset: int) -> Any:
        opened = path.open("rb")
        opened.seek(offset)
        return opened

    def offset(value: io.BytesIO) -> io.BytesIO:
        value.seek(100)
        return value

    def form() -> aiohttp.FormData:
        made = aiohttp.FormData()
        made.add_field("name", "välue")
        made.add_field("upload", file(100), filename="a.bin", content_type="application/octet-stream")
        made.add_field("more", io.BytesIO(b"in memory"), filename="b.bin")
        return made

    return {
        "bytes": lambda: b"some bytes",
        "text": lambda: "täxt",
        "file at 100": lambda: file(100),
        "text file": lambda: path.open(encoding="utf-8"),
        "BytesIO at 100": lambda: offset(io.BytesIO(b"x" * 70_000)),
        "StringIO": lambda: io.StringIO("written"),
        "fields": lambda: {"a": "1", "b": "2"},
        "FormData": form,
    }


REPLAYABLE = ["bytes", "text", "file at 100", "text file", "BytesIO at 100", "StringIO", "fields", "FormData"]


@pytest.mark.parametrize("kind", REPLAYABLE)
@pytest.mark.parametrize("extra", [{}, {"compress": "deflate"}, {"chunked": True}, {"expect100": True}], ids=str)
async def test_attempt_two_sends_the_bytes_of_attempt_one(
    gpu: MockGPU, open_session: OpenSession, tmp_path: Path, kind: str, extra: dict[str, Any]
) -> None:
    async def layer(request: Request, send: Send) -> Response:
        assert request.body.replayable
        for _ in range(2):
            response = await send(request.replace(headers=request.headers.set("X-Once", "1")))
            await response.discard()
        return await send(request)

    gpu.script(*faults.statuses(503, 503))
    data = bodies(tmp_path / "upload.bin")[kind]()
    async with open_session(layer).post(f"{gpu.url}/echo", data=data, **extra) as answer:
        assert answer.status == 200
    first, second, third = gpu.log.requests
    assert first.body_size > 0
    assert first.body_complete
    assert (
        len({(each.body_sha256, each.body_size, each.header("content-length")) for each in (first, second, third)})
        == 1
    )
    assert len({each.header("content-type") for each in (first, second, third)}) == 1
    assert (first.header("x-once"), third.header("x-once")) == ("1", None)
    if kind == "file at 100" and "compress" not in extra:
        assert first.body_size == 299_900


async def test_a_layer_can_look_into_any_body(gpu: MockGPU, open_session: OpenSession, tmp_path: Path) -> None:
    looked: list[bytes] = []

    async def layer(request: Request, send: Send) -> Response:
        opened: Any = request.body.open()
        looked.append(opened if isinstance(opened, bytes) else b"".join([chunk async for chunk in opened]))
        return await send(request)

    session = open_session(layer)
    for kind in REPLAYABLE:
        async with session.post(f"{gpu.url}/echo", data=bodies(tmp_path / "upload.bin")[kind]()) as answer:
            assert answer.status == 200, kind
    assert [hashlib.sha256(each).hexdigest() for each in looked] == [each.body_sha256 for each in gpu.log.requests]


async def one_shot() -> AsyncIterator[bytes]:
    yield b"only"
    yield b"once"


class TellWithoutSeek(io.RawIOBase):
    """What a pipe or a decompressor looks like: it knows where it stands, and cannot go back."""

    def __init__(self) -> None:
        self._inner = io.BytesIO(b"only once")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._inner.readinto(buffer)

    def tell(self) -> int:
        return self._inner.tell()


@pytest.mark.parametrize("make", [one_shot, TellWithoutSeek], ids=lambda make: make.__name__)
async def test_a_one_shot_body_is_not_sent_twice(gpu: MockGPU, open_session: OpenSession, make: Any) -> None:
    async def layer(request: Request, send: Send) -> Response:
        assert not request.body.replayable
        await (await send(request)).discard()
        with pytest.raises(TransportError) as caught:
            await send(request)
        assert caught.value.kind is FailureKind.BODY
        raise caught.value

    with pytest.raises(aiohttp.ClientPayloadError, match="one-shot"):
        await open_session(layer).post(f"{gpu.url}/echo", data=make())
    assert len(gpu.log.requests) == 1


async def test_two_copies_at_once_do_not_disturb_each_other(gpu: MockGPU, open_session: OpenSession) -> None:
    async def hedge(request: Request, send: Send) -> Response:
        first, second = await asyncio.gather(send(request), send(request))
        await second.discard()
        return first

    session = open_session(hedge)
    async with session.post(f"{gpu.url}/echo", data=b"copy" * 100) as answer:
        assert (await answer.json())["body"] == "copy" * 100
    assert len({record.body_sha256 for record in gpu.log.requests}) == 1
    assert netkit.stats(session).requests.attempts == 2
    with pytest.raises(PluginError, match="twice at once"):
        await session.post(f"{gpu.url}/echo", data=io.BytesIO(b"file"))


async def test_limits_that_a_layer_shortens_hold_for_the_attempt(gpu: MockGPU, open_session: OpenSession) -> None:
    seen: list[Timeout] = []

    def limited(**limits: float) -> Any:
        async def layer(request: Request, send: Send) -> Response:
            seen.append(request.timeout)
            return await send(request.replace(timeout=Timeout(**limits)))

        return layer

    timeout = aiohttp.ClientTimeout(total=60, sock_read=50, sock_connect=40, connect=45)
    with pytest.raises(aiohttp.ServerTimeoutError):
        await open_session(limited(total=0.05)).get(f"{gpu.url}/delay/30000", timeout=timeout)
    with pytest.raises(aiohttp.SocketTimeoutError):
        await open_session(limited(read=0.05)).get(f"{gpu.url}/delay/30000")
    assert seen[0] == Timeout(connect=40, read=50, pool=45, total=60)
    assert seen[1] == Timeout(connect=30, total=300)
    session = open_session(limited(total=0.2))
    async with session.get(f"{gpu.url}/stream/inf?interval_ms=20") as answer:
        with pytest.raises(aiohttp.SocketTimeoutError):
            await answer.read()
    assert netkit.stats(session).requests.errors == 1
    async with open_session(limited(total=30.0, read=20.0, connect=10.0)).post(
        f"{gpu.url}/echo", data=b"1"
    ) as answer:
        assert await answer.read()
