"""Small bodies that go out at once: the bytes, the failures and the hooks stay aiohttp's own."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import ClientRequest
from netkit_adapters.aiohttp.direct import MOST, SUPPORTED, DirectRequest

import netkit

BARE: dict[str, Any] = {"pool": False, "retry": False, "http2": False}


class RawServer:
    """Keeps what each request was, byte for byte, and answers 200."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                if b"transfer-encoding" in fields:
                    body = await reader.readuntil(b"0\r\n\r\n")
                else:
                    body = await reader.readexactly(int(fields.get(b"content-length", 0)))
                self.requests.append(head + body)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RawServer]:
    raw = RawServer()
    listening = await asyncio.start_server(raw.serve, "127.0.0.1", 0, limit=2**20)
    raw.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        listening.close()
        await listening.wait_closed()


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The class of every request that reached a connection, in order."""
    seen: list[type] = []
    connect = aiohttp.TCPConnector.connect

    async def watched(self: Any, req: ClientRequest, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(req))
        return await connect(self, req, *args, **kwargs)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", watched)
    return seen


BODIES: list[dict[str, Any]] = [
    {"json": {"input": "ä", "model": "m"}},
    {"data": b"\x00\xff" * 40},
    {"data": "text ä"},
    {"data": {"a": "1", "b": "2"}},
    {"data": b""},
    {"data": b"x" * MOST},
    {"data": b"x" * (MOST + 1)},
    {"data": bytearray(b"abc")},
    {"data": io.BytesIO(b"abc")},
    {"data": b"abc", "headers": {"Content-Type": "application/x-own", "X-Own": "1"}},
    {"data": b"abc", "chunked": True},
    {"data": b"abc" * 100, "compress": "deflate"},
    {"data": b"abcdef", "headers": {"Content-Length": "3"}},
    {"data": b"abc", "skip_auto_headers": ["Content-Type", "User-Agent"]},
    {"data": b"abc", "cookies": {"a": "1"}},
    {},
]


@pytest.mark.parametrize("plugins", [BARE, {**BARE, "retry": True}], ids=["bare", "retry"])
@pytest.mark.parametrize("body", BODIES, ids=[str(number) for number in range(len(BODIES))])
async def test_the_wire_is_that_of_aiohttp(server: RawServer, body: dict[str, Any], plugins: dict[str, Any]) -> None:
    for kind, extra in ((aiohttp.ClientSession, {}), (netkit.ClientSession, {"plugins": plugins})):
        async with kind(**extra) as session, session.post(f"{server.url}/v1/é?q=a b", **_fresh(body)) as answer:
            assert (await answer.read(), answer.request_info.method) == (b"ok", "POST")
    assert len(server.requests) == 2
    assert server.requests[0] == server.requests[1]


def _fresh(body: dict[str, Any]) -> dict[str, Any]:
    data = body.get("data")
    return {**body, "data": io.BytesIO(data.getvalue())} if isinstance(data, io.BytesIO) else body


@pytest.mark.skipif(not SUPPORTED, reason="another layout of aiohttp: bodies go its own way")
async def test_no_task_is_made_for_a_small_body(server: RawServer, classes: list[type]) -> None:
    made: list[str] = []
    loop = asyncio.get_running_loop()
    async with netkit.ClientSession(plugins=BARE) as session:
        async with session.post(server.url, json=1) as answer:
            await answer.read()

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
            made.append(coroutine.__qualname__)
            return asyncio.Task(coroutine, loop=loop, **kwargs)

        loop.set_task_factory(factory)
        try:
            async with session.post(server.url, json=1) as answer:
                await answer.read()
        finally:
            loop.set_task_factory(None)
    assert classes == [DirectRequest, DirectRequest]
    assert [name for name in made if "write" in name] == []


@pytest.mark.filterwarnings("ignore:ClientResponse.output_size:DeprecationWarning")
async def test_output_size_is_told(server: RawServer) -> None:
    async with netkit.ClientSession(plugins=BARE) as session, session.post(server.url, json={"a": 1}) as answer:
        await answer.read()
        assert answer.output_size == len(server.requests[0])


async def test_a_patched_send_is_called(
    server: RawServer, classes: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    original = ClientRequest.send

    async def send(self: ClientRequest, conn: Any) -> Any:
        sent.append(self.method)
        return await original(self, conn)

    monkeypatch.setattr(ClientRequest, "send", send)
    async with netkit.ClientSession(plugins=BARE) as session, session.post(server.url, json=1) as answer:
        await answer.read()
    assert (sent, classes) == (["POST"], [ClientRequest])


async def test_a_request_class_of_the_users_own_stays(server: RawServer, classes: list[type]) -> None:
    class Own(ClientRequest):
        pass

    async with netkit.ClientSession(plugins=BARE, request_class=Own) as session:
        async with session.post(server.url, json=1) as answer:
            await answer.read()
    assert classes == [Own]


async def test_traces_and_trackers_see_the_body(server: RawServer) -> None:
    chunks: list[bytes] = []

    async def chunk_sent(session: Any, context: Any, params: Any) -> None:
        chunks.append(params.chunk)

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(chunk_sent)
    async with netkit.ClientSession(plugins=BARE, trace_configs=[trace]) as session:
        async with session.post(server.url, data=b"abc") as answer:
            await answer.read()
    assert chunks == [b"abc"]


@pytest.mark.parametrize("fault", [OSError(9, "gone"), RuntimeError("odd transport")])
async def test_a_transport_that_fails_is_a_native_error(
    server: RawServer, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with netkit.ClientSession(plugins=BARE) as session:
        async with session.post(server.url, json=1) as answer:
            await answer.read()
        connector = session.connector
        assert connector is not None
        ((protocol, _),) = next(iter(connector._conns.values()))
        assert protocol.transport is not None

        class Failing:
            def __init__(self, transport: Any) -> None:
                self._transport = transport

            def write(self, data: bytes) -> None:
                raise fault

            def __getattr__(self, name: str) -> Any:
                return getattr(self._transport, name)

        protocol.transport = Failing(protocol.transport)  # type: ignore[assignment]
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.post(server.url, json=2)
        assert sum(map(len, connector._conns.values())) == 0
        async with session.post(server.url, json=3) as answer:
            assert await answer.read() == b"ok"
    assert [request[-1:] for request in server.requests] == [b"1", b"3"]
