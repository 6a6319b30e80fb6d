"""What code on aiohttp relies on: one test per fact of ClientSession that a subclass could break (COMPAT 25-30)."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientRequest, ClientResponse, web
from netkit_adapters.aiohttp import MIRROR, attach, detach, edge_of
from netkit_adapters.aiohttp.body import ObservedStreamReader
from netkit_adapters.aiohttp.stream import ExchangeReader
from netkit_adapters.aiohttp.transport import Hop

import netkit
from netkit import Request, Response, Send
from netkit.testing import MockGPU, expected_vector

OpenSession = Callable[..., netkit.ClientSession]
QUIET: dict[str, Any] = {"pool": False, "retry": False}


async def test_embeddings_come_back_as_the_vector_of_the_input(gpu: MockGPU, open_session: OpenSession) -> None:
    async with open_session().post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": "hello"}) as answer:
        body = await answer.json()
    assert body["data"][0]["embedding"] == pytest.approx(expected_vector("hello", dimensions=8))
    assert [request.path for request in gpu.log.requests] == ["/v1/embeddings"]


def test_importing_the_class_warns_of_nothing_and_subclasses_warn_as_aiohttps_own() -> None:
    with pytest.warns(DeprecationWarning, match="Inheritance class Mine from ClientSession is discouraged"):

        class Mine(netkit.ClientSession):
            pass

    code = "import warnings; warnings.simplefilter('error'); import netkit; netkit.ClientSession"
    subprocess.run([sys.executable, "-c", code], check=True)


def fields(headers: Any) -> list[tuple[str, str]]:
    """What the application sent: names in one case, without what belongs to a connection of HTTP/1.1."""
    pairs = [(name.lower(), value) for name, value in headers]
    return sorted(pair for pair in pairs if pair[0] not in ("transfer-encoding", "expect", "host", ":authority"))


async def test_wire_is_the_same_with_and_without(gpu: MockGPU, http: str, open_session: OpenSession) -> None:
    async def calls(session: aiohttp.ClientSession) -> None:
        for arguments in (
            {"json": {"a": [1, "ü"]}},
            {"data": b"raw", "headers": [("X-Two", "1"), ("X-Two", "2")]},
            {"data": {"field": "value"}, "params": {"q": "a b"}},
            {"data": b"compressed" * 20, "compress": "deflate"},
            {"data": b"in chunks", "chunked": True},
            {"data": b"later", "expect100": True},
            {"cookies": {"a": "b"}},
        ):
            async with session.post(f"{gpu.url}/echo", **arguments) as answer:
                await answer.read()

    async with aiohttp.ClientSession() as plain:
        await calls(plain)
    await calls(open_session())
    form = fields if http == "2" else tuple
    seen = [(record.target, form(record.headers), record.body) for record in gpu.log.requests]
    assert len(seen) == 14
    assert seen[:7] == seen[7:]


def test_development_mode_warns_of_no_attribute(gpu: MockGPU) -> None:
    code = f"""
import asyncio, netkit
async def main():
    async with netkit.ClientSession() as session:
        async with session.get("{gpu.url}/echo") as answer:
            assert answer.status == 200, answer
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], check=True)


async def test_unclosed_session_says_so_in_aiohttps_words(open_session: OpenSession) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    session = netkit.ClientSession()
    with pytest.warns(ResourceWarning, match=r"Unclosed client session <aiohttp.client.ClientSession object at 0x"):
        del session
    assert [context["message"] for context in told] == ["Unclosed client session"]


async def test_calls_are_awaitable_and_context_managers(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session()
    for verb in ("get", "options", "head", "post", "put", "patch", "delete"):
        call = getattr(session, verb)(f"{gpu.url}/echo")
        assert type(call) is aiohttp.client._RequestContextManager.__origin__  # type: ignore[attr-defined]
        response = await call
        await response.read()
        async with getattr(session, verb)(f"{gpu.url}/echo") as response:
            assert response.status == 200
    call = session.get(f"{gpu.url}/echo")
    tasks_before = len(asyncio.all_tasks())
    task = asyncio.get_running_loop().create_task(call)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= tasks_before + 1
    (await task).close()


async def test_what_a_mocking_library_put_in_place_is_called_with_the_callers_arguments(
    monkeypatch: pytest.MonkeyPatch, open_session: OpenSession
) -> None:
    seen: list[Any] = []

    async def fake(session: aiohttp.ClientSession, method: str, url: Any, **kwargs: Any) -> Any:
        seen.append((type(session), method, session._build_url(url), kwargs))
        return "answer"

    monkeypatch.setattr("aiohttp.client.ClientSession._request", fake)
    session = open_session()
    assert await session._request("GET", "http://nowhere.invalid/", timeout=3) == "answer"
    assert seen == [(netkit.ClientSession, "GET", aiohttp.client.URL("http://nowhere.invalid/"), {"timeout": 3})]


async def test_per_request_middlewares_replace_the_sessions_and_netkit_stays_innermost(
    gpu: MockGPU, open_session: OpenSession
) -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        async def middleware(req: ClientRequest, handler: Any) -> ClientResponse:
            order.append(name)
            return await handler(req)

        return middleware

    async def layer(request: Request, send: Send) -> Response:
        order.append("netkit")
        return await send(request)

    mine = [named("session")]
    session = open_session(layer, middlewares=mine)
    assert session._middlewares is mine
    for arguments in (
        {},
        {"middlewares": (named("call"),)},
        {"middlewares": ()},
        {"timeout": aiohttp.ClientTimeout(9)},
    ):
        async with session.get(f"{gpu.url}/echo", **arguments):
            pass
    mine.append(named("added later"))
    async with session.get(f"{gpu.url}/echo"):
        pass
    assert order[:7] == ["session", "netkit", "call", "netkit", "netkit", "session", "netkit"]
    assert order[7:] == ["session", "added later", "netkit"]


async def test_a_middleware_that_sends_twice_passes_the_chain_twice(gpu: MockGPU, open_session: OpenSession) -> None:
    passed = 0

    async def layer(request: Request, send: Send) -> Response:
        nonlocal passed
        passed += 1
        return await send(request)

    async def twice(req: ClientRequest, handler: Any) -> ClientResponse:
        first = await handler(req)
        first.release()
        return await handler(req)

    async with open_session(layer, middlewares=(twice,)).post(f"{gpu.url}/echo", data=b"x" * 50) as answer:
        assert answer.status == 200
    assert passed == 2
    assert len({record.body_sha256 for record in gpu.log.requests}) == 1


async def test_websockets_do_not_pass_the_chain(open_session: OpenSession) -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data.upper())
        return socket

    async def layer(request: Request, send: Send) -> Response:
        raise AssertionError("a websocket passed the chain")

    app = web.Application()
    app.router.add_get("/", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        async with open_session(layer).ws_connect(f"http://127.0.0.1:{port}/") as socket:
            await socket.send_str("hello")
            assert (await socket.receive()).data == "HELLO"
    finally:
        await runner.cleanup()


async def test_trace_callbacks_get_the_users_session(gpu: MockGPU, open_session: OpenSession) -> None:
    seen: list[tuple[str, Any]] = []
    config = aiohttp.TraceConfig()
    for signal in ("on_request_start", "on_request_end", "on_response_chunk_received", "on_connection_create_start"):

        async def note(session: Any, context: Any, params: Any, signal: str = signal) -> None:
            seen.append((signal, session))

        getattr(config, signal).append(note)
    session = open_session(trace_configs=[config])
    async with session.get(f"{gpu.url}/echo") as answer:
        await answer.read()
    assert [signal for signal, _ in seen] == [
        "on_request_start",
        "on_connection_create_start",
        "on_request_end",
        "on_response_chunk_received",
    ]
    assert all(each is session for _, each in seen)


async def test_native_options_keep_their_meaning(gpu: MockGPU, open_session: OpenSession) -> None:
    async def forbid(response: ClientResponse) -> None:
        raise LookupError(response.status)

    session = open_session(
        base_url=gpu.url + "/",
        headers={"X-Default": "1"},
        cookies={"c": "1"},
        cookie_jar=aiohttp.CookieJar(unsafe=True),
        raise_for_status=True,
        json_serialize=lambda value: "[7]",
    )
    with pytest.raises(aiohttp.ClientResponseError, match="404"):
        await session.get("status/404")
    with pytest.raises(LookupError):
        await session.get("echo", raise_for_status=forbid)
    async with session.get("status/404", raise_for_status=False) as answer:
        assert answer.status == 404
    async with session.post("echo", json={"ignored": 1}) as answer:
        body = await answer.json()
    assert body["body"] == "[7]"
    assert ("x-default", "1") in fields(body["headers"])
    async with session.get("bytes/5000?gzip=1", auto_decompress=False) as answer:
        assert (await answer.read())[:2] == b"\x1f\x8b"
    async with session.get("bytes/5000?gzip=1") as answer:
        assert len(await answer.read()) == 5000
    async with session.get("cookies/set?k=v&redirect=1") as answer:
        assert (await answer.json())["cookies"] == {"c": "1", "k": "v"} or answer.history
    async with session.get("redirect/3") as answer:
        assert [past.status for past in answer.history] == [302, 302, 302]
    async with session.get("redirect/1", allow_redirects=False) as answer:
        assert answer.status == 302
    with pytest.raises(aiohttp.TooManyRedirects):
        await session.get("redirect/9", max_redirects=3)
    with pytest.raises(aiohttp.InvalidURL):
        await session.get("http://:80/")
    async with session.head("bytes/10") as answer:
        assert answer.content_length == 10
        assert await answer.read() == b""
    async with session.get("status/204") as answer:
        assert await answer.read() == b""


async def test_a_callers_connector_stays_untouched(gpu: MockGPU) -> None:
    connector = aiohttp.TCPConnector(limit=7)
    async with netkit.ClientSession(connector=connector, connector_owner=False) as session:
        async with session.get(f"{gpu.url}/echo") as answer:
            await answer.read()
        assert type(connector) is aiohttp.TCPConnector
        assert connector.limit == 7
        assert session.connector is connector
        assert netkit.stats(session).pool.idle == 1
    assert not connector.closed
    await connector.close()


async def test_attach_and_detach_restore_everything(gpu: MockGPU, http: str) -> None:
    async with aiohttp.ClientSession() as session:
        before = dict(session.__dict__)
        assert netkit.attach(session, plugins=QUIET) is session
        first = edge_of(session)
        assert netkit.attach(session, plugins=QUIET) is session
        assert edge_of(session) is first
        attach(session, plugins={"retry": True})
        assert edge_of(session) is not first
        async with session.get(f"{gpu.url}/echo") as answer:
            assert isinstance(answer.content, ObservedStreamReader if http == "1.1" else ExchangeReader)
        async with session.get(f"{gpu.url}/echo", middlewares=(), timeout=aiohttp.ClientTimeout(5)) as answer:
            assert isinstance(answer.content, ObservedStreamReader if http == "1.1" else ExchangeReader)
        assert netkit.stats(session).requests.total == 2
        netkit.detach(session)
        assert session.__dict__ == before
        with pytest.raises(TypeError):
            edge_of(session)
        async with session.get(f"{gpu.url}/echo") as answer:
            assert type(answer.content) is aiohttp.StreamReader
        detach(session)


async def test_an_attached_session_goes_when_it_is_dropped() -> None:
    session = netkit.attach(aiohttp.ClientSession(), plugins=QUIET)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="Unclosed client session <aiohttp.client.ClientSession"):
            del session
    finally:
        gc.enable()


async def test_netkits_own_session_can_be_set_anew_but_not_detached(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins=QUIET)
    attach(session, plugins={"retry": {"attempts": 4}, "pool": False})
    async with session.get(f"{gpu.url}/echo"):
        pass
    assert netkit.stats(session).requests.total == 1
    assert sum(isinstance(each, Hop) for each in session._middlewares) == 1
    with pytest.raises(TypeError, match="cannot be detached"):
        detach(session)


async def test_wrong_settings_are_refused_and_leave_nothing_open() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(netkit.ConfigError, match="attempts"):
            netkit.ClientSession(plugins={"retry": {"atempts": 3}})
        gc.collect()


async def test_mirror_and_request_function(gpu: MockGPU) -> None:
    from netkit import aiohttp as mirrored

    assert mirrored.ClientSession is netkit.ClientSession
    assert mirrored.ClientTimeout is aiohttp.ClientTimeout
    assert issubclass(netkit.ClientSession, aiohttp.ClientSession)
    assert set(inspect.signature(MIRROR["request"]).parameters) == set(inspect.signature(aiohttp.request).parameters)
    async with mirrored.request("POST", f"{gpu.url}/echo", json=1, timeout=aiohttp.ClientTimeout(5)) as answer:
        assert isinstance(answer.content, ObservedStreamReader)
        assert (await answer.json())["body"] == "1"


async def test_closing_is_idempotent_and_use_after_it_an_error(gpu: MockGPU) -> None:
    session = netkit.ClientSession()
    async with session.get(f"{gpu.url}/echo") as answer:
        await answer.read()
    await session.close()
    await session.close()
    assert session.closed
    with pytest.raises(RuntimeError, match="Session is closed"):
        await session.get(f"{gpu.url}/echo")
    await gpu.log.wait_async(lambda log: all(record.closed for record in log.connections))


async def test_stand_ins_of_tests_pass_through(open_session: OpenSession) -> None:
    async def layer(request: Request, send: Send) -> Response:
        response = await send(request)
        assert response.status == 299
        return response

    stand_in = SimpleNamespace(status=299)
    hop = edge_of(open_session(layer))

    async def handler(_: ClientRequest) -> Any:
        return stand_in

    req = ClientRequest("GET", aiohttp.client.URL("http://127.0.0.1/"), loop=asyncio.get_running_loop())
    assert await Hop(hop)(req, handler) is stand_in
