"""HTTP/2 under aiohttp: what is served by it and what is not, and that answers are aiohttp's in every respect."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp.http import HttpVersion
from netkit_adapters.aiohttp import edge_of
from netkit_adapters.aiohttp import http2 as module
from netkit_adapters.aiohttp.http2 import AiohttpHttp2
from netkit_adapters.aiohttp.stream import ExchangeReader, StreamConnection

import netkit
from netkit.testing import MockGPU, faults

OpenSession = Callable[..., netkit.ClientSession]


@pytest.fixture
def http() -> str:
    return "2"


@pytest.fixture(scope="module")
def negotiating() -> Iterator[MockGPU]:
    with MockGPU(launch_ms=0, per_item_ms=0, token_ms=0, client_certificate="optional") as gpu:
        yield gpu


@pytest.fixture
def alpn(negotiating: MockGPU) -> MockGPU:
    negotiating.script()
    negotiating.close_connections(idle_only=False)
    negotiating.log.clear()
    return negotiating


@pytest.fixture
def trusting(alpn: MockGPU) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=alpn.ca_file)


def protocols(gpu: MockGPU) -> list[str]:
    return [record.protocol for record in gpu.log.requests]


async def test_an_answer_is_aiohttps_in_every_respect(
    alpn: MockGPU, trusting: ssl.SSLContext, open_session: OpenSession
) -> None:
    async with open_session().post(f"{alpn.url}/echo?a=1#part", json={"a": 1}, ssl=trusting) as answer:
        assert type(answer) is aiohttp.ClientResponse
        assert isinstance(answer.content, aiohttp.StreamReader)
        assert (answer.status, answer.reason, answer.version) == (200, "OK", HttpVersion(2, 0))
        assert answer.raw_headers[0] == (b"content-type", b"application/json")
        assert answer.headers["CONTENT-TYPE"] == "application/json"
        assert (answer.history, answer.method, answer.ok) == ((), "POST", True)
        assert answer.request_info.headers["User-Agent"].startswith("Python/")
        assert str(answer.real_url).endswith("#part")
        assert answer.connection is None
        assert answer.closed
        assert (await answer.json())["body"] == '{"a": 1}'
    assert protocols(alpn) == ["HTTP/2"]
    (record,) = alpn.log.requests
    assert record.header("content-length") == "8"
    assert record.header("host") in (None, record.authority)


async def test_cookies_and_redirects_work(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(cookie_jar=aiohttp.CookieJar(unsafe=True))
    async with session.get(f"{gpu.url}/cookies/set?k=v") as answer:
        assert answer.cookies["k"].value == "v"
    async with session.get(f"{gpu.url}/redirect/2") as answer:
        assert [past.status for past in answer.history] == [302, 302]
    assert gpu.log.requests[-1].header("cookie") == "k=v"
    assert set(protocols(gpu)) == {"HTTP/2"}


async def test_a_stream_has_a_connection_until_its_end(gpu: MockGPU, open_session: OpenSession) -> None:
    answer = await open_session().get(f"{gpu.url}/stream/3?interval_ms=5")
    connection = answer.connection
    assert isinstance(connection, StreamConnection)
    assert connection.transport is not None
    assert connection.transport.get_extra_info("peername")[1] == gpu.port
    told: list[str] = []
    connection.add_callback(lambda: told.append("released"))
    answer.content.on_eof(lambda: told.append("eof"))
    assert (await answer.read()).count(b"data:") == 4
    assert answer.connection is None
    assert connection.closed
    assert sorted(told) == ["eof", "released"]


async def test_a_cancelled_read_loses_nothing(gpu: MockGPU, open_session: OpenSession) -> None:
    async with open_session().get(f"{gpu.url}/stream/4?interval_ms=40") as answer:
        got, waits = b"", 0
        while not answer.content.at_eof():
            try:
                got += await asyncio.wait_for(answer.content.readany(), 0.005)
            except TimeoutError:
                waits += 1
        assert waits
        assert got.count(b"data:") == 5
    assert gpu.log.requests[0].outcome == "complete"


async def test_two_readers_at_once_are_refused_as_on_http1(gpu: MockGPU, open_session: OpenSession) -> None:
    async with open_session().get(f"{gpu.url}/stream/inf?interval_ms=10000") as answer:
        await answer.content.readany()
        first = asyncio.ensure_future(answer.content.readany())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already waiting"):
            await answer.content.readany()
        first.cancel()


async def test_a_slow_reader_holds_the_server_back(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"http2": {"stream_window": 65535, "connection_window": 1 << 20}})
    async with session.get(f"{gpu.url}/bytes/{4 << 20}?chunked=1", read_bufsize=16384) as answer:
        await answer.content.read(1)
        async with session.get(f"{gpu.url}/echo") as other:
            await other.read()
        assert gpu.log.requests[0].bytes_sent < 1 << 20
        assert len(answer.content._buffer) * 16384 <= 3 * 65535
        assert len(await answer.read()) == (4 << 20) - 1
    assert gpu.log.requests[0].outcome == "complete"


async def test_an_abandoned_answer_resets_its_stream(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session()
    answer = await session.get(f"{gpu.url}/stream/inf?interval_ms=10")
    gone = weakref.ref(answer)
    del answer
    gc.collect()
    assert gone() is None
    await gpu.log.wait_async(lambda log: log.requests[0].outcome == "client_reset", 5)
    assert netkit.stats(session).requests.in_flight == 0


async def test_what_arrived_and_was_not_read_is_not_kept(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session()
    for _ in range(3):
        async with session.get(f"{gpu.url}/bytes/500000"):
            await gpu.log.wait_async(lambda log: log.requests[-1].bytes_sent == 500000, 5)
    async with session.get(f"{gpu.url}/echo") as answer:
        await answer.read()
    http2 = next(layer for (name, _), layer in netkit_edge(session)._instances.items() if name == "http2")
    assert http2._engine.stats().unread == 0
    assert netkit.stats(session).requests.in_flight == 0


def netkit_edge(session: Any) -> Any:
    from netkit_adapters.aiohttp import edge_of

    return edge_of(session)


async def test_a_compressed_bomb_is_decoded_only_as_it_is_read(gpu: MockGPU, open_session: OpenSession) -> None:
    size = 64 << 20
    async with open_session().get(f"{gpu.url}/bytes/{size}?gzip=1", read_bufsize=65536) as answer:
        total = peak = 0
        while chunk := await answer.content.read(65536):
            total += len(chunk)
            peak = max(peak, answer.content._size)
        assert total == size
        assert peak < 1 << 20
        assert answer.content.total_compressed_bytes


async def test_a_body_that_is_not_what_it_says_is_a_payload_error(gpu: MockGPU, open_session: OpenSession) -> None:
    gpu.script(faults.Edit(change=lambda answer: replace(answer, headers=[("content-encoding", "gzip")])))
    async with open_session().get(f"{gpu.url}/bytes/100") as answer:
        with pytest.raises(aiohttp.ClientPayloadError, match="Can not decode content-encoding: gzip"):
            await answer.read()


def forms() -> list[Any]:
    form = aiohttp.FormData()
    form.add_field("file", io.BytesIO(b"z" * 300_000), filename="f.bin")
    form.add_field("name", "value")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"c" * 40_000

    return [
        {"data": b"x" * 1_000_000},
        {"data": io.BytesIO(b"y" * 2_000_000)},
        {"data": "text"},
        {"data": {"a": "b"}},
        {"data": form},
        {"data": chunks()},
        {"data": b"deflated" * 1000, "compress": "deflate"},
        {"data": io.BytesIO(b"gzipped" * 100_000), "compress": "gzip"},
        {"data": b"small", "chunked": True},
        {"data": b"later", "expect100": True},
        {"data": None},
    ]


@pytest.mark.parametrize("index", range(11))
async def test_every_kind_of_body_arrives_as_on_http1(gpu: MockGPU, open_session: OpenSession, index: int) -> None:
    async with aiohttp.ClientSession() as plain, plain.post(f"{gpu.url}/discard", **forms()[index]):
        pass
    async with open_session().post(f"{gpu.url}/discard", **forms()[index]):
        pass
    native, over = gpu.log.requests
    assert (native.protocol, over.protocol) == ("HTTP/1.1", "HTTP/2")
    assert over.body_complete
    for name in ("content-length", "content-encoding", "user-agent", "accept", "accept-encoding"):
        assert over.header(name) == native.header(name), name
    if index == 4:
        assert over.body_size == native.body_size
    else:
        assert over.body_sha256 == native.body_sha256
        assert over.header("content-type") == native.header("content-type")
    assert over.header("transfer-encoding") is None
    assert over.header("expect") is None


async def test_a_body_that_raises_fails_as_on_http1(gpu: MockGPU, open_session: OpenSession) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 20_000
        raise LookupError("mine")

    async def fails(session: aiohttp.ClientSession) -> BaseException:
        with pytest.raises(aiohttp.ClientError) as raised:
            async with session.post(f"{gpu.url}/echo", data=broken()):
                pass
        return raised.value

    session = open_session()
    error = await fails(session)
    async with aiohttp.ClientSession() as plain:
        native = await fails(plain)
    assert type(error) is type(native)
    assert isinstance(error.__cause__, LookupError)
    async with session.get(f"{gpu.url}/echo") as answer:
        assert answer.status == 200
    assert len({record.connection for record in gpu.log.requests if record.protocol == "HTTP/2"}) == 1


async def test_a_refused_stream_is_sent_again_unseen(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"retry": False})
    for fault, data in ((faults.ResetStream(), b"small"), (faults.GoAway(last_stream=0), io.BytesIO(b"f" * 300_000))):
        gpu.script(fault)
        async with session.post(f"{gpu.url}/echo", data=data) as answer:
            assert answer.status == 200
    complete = [record for record in gpu.log.requests if record.status == 200]
    assert [record.body_size for record in complete] == [5, 300_000]


async def test_traces_are_told_in_aiohttps_order(gpu: MockGPU, open_session: OpenSession) -> None:
    told: list[str] = []
    config = aiohttp.TraceConfig()

    def note(name: str) -> Any:
        async def noted(*_: Any) -> None:
            told.append(name)

        return noted

    for name in (
        "request_start",
        "request_end",
        "connection_create_start",
        "connection_create_end",
        "connection_reuseconn",
        "request_headers_sent",
        "request_chunk_sent",
        "response_chunk_received",
    ):
        getattr(config, f"on_{name}").append(note(name))
    session = open_session(trace_configs=[config])
    for _ in range(2):
        async with session.post(f"{gpu.url}/echo", data=b"x") as answer:
            await answer.read()
    sent = ["request_headers_sent", "request_chunk_sent", "request_end", "response_chunk_received"]
    assert told == [
        "request_start",
        "connection_create_start",
        "connection_create_end",
        *sent,
        "request_start",
        "connection_reuseconn",
        *sent,
    ]


async def test_the_users_context_is_used_and_left_alone(
    alpn: MockGPU, trusting: ssl.SSLContext, open_session: OpenSession
) -> None:
    trusting.load_cert_chain(alpn.client_file)  # type: ignore[arg-type]
    session = open_session()
    async with session.get(f"{alpn.url}/echo", ssl=trusting):
        pass
    assert [record.client_certificate for record in alpn.log.connections] == [True]
    async with aiohttp.ClientSession() as plain, plain.get(f"{alpn.url}/echo", ssl=trusting):
        pass
    assert protocols(alpn) == ["HTTP/2", "HTTP/1.1"]


async def test_settings_of_tls_never_share_a_connection(
    alpn: MockGPU, trusting: ssl.SSLContext, open_session: OpenSession
) -> None:
    session = open_session()
    async with session.get(f"{alpn.url}/echo", ssl=False):
        pass
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await session.get(f"{alpn.url}/echo")
    async with session.get(f"{alpn.url}/echo", ssl=trusting):
        pass
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await session.get(f"{alpn.url}/echo", ssl=trusting, server_hostname="elsewhere.example")
    assert protocols(alpn) == ["HTTP/2", "HTTP/2"]
    assert len({record.connection for record in alpn.log.requests}) == 2


async def test_a_server_of_http1_is_asked_once(
    tls_gpu: MockGPU, context: ssl.SSLContext, open_session: OpenSession
) -> None:
    session = open_session()

    async def call(**arguments: Any) -> None:
        async with session.get(f"{tls_gpu.url}/echo", **arguments) as answer:
            assert (await answer.json())["method"] == "GET"

    await asyncio.gather(*(call(ssl=context) for _ in range(8)))
    await call(ssl=False)
    assert set(protocols(tls_gpu)) == {"HTTP/1.1"}
    assert [record.requests for record in tls_gpu.log.connections if not record.requests] == []
    assert netkit.stats(session).requests.attempts == 9


async def test_a_one_shot_body_survives_the_question_for_the_protocol(
    tls_gpu: MockGPU, context: ssl.SSLContext, open_session: OpenSession
) -> None:
    async def once() -> AsyncIterator[bytes]:
        yield b"on"
        yield b"ce"

    async with open_session().post(f"{tls_gpu.url}/echo", data=once(), ssl=context) as answer:
        assert (await answer.json())["body"] == "once"


class Special(aiohttp.TCPConnector):
    pass


class Resolver(aiohttp.ThreadedResolver):
    pass


def patched() -> aiohttp.TCPConnector:
    connector = aiohttp.TCPConnector()
    connector.connect = connector.connect  # type: ignore[method-assign]
    return connector


@pytest.mark.parametrize(
    ("make", "protocol"),
    [
        (aiohttp.TCPConnector, "HTTP/2"),
        (lambda: aiohttp.TCPConnector(limit=0), "HTTP/2"),
        (Special, "HTTP/1.1"),
        (patched, "HTTP/1.1"),
        (lambda: aiohttp.TCPConnector(limit=5), "HTTP/1.1"),
        (lambda: aiohttp.TCPConnector(limit_per_host=5), "HTTP/1.1"),
        (lambda: aiohttp.TCPConnector(force_close=True), "HTTP/1.1"),
        (lambda: aiohttp.TCPConnector(resolver=Resolver()), "HTTP/1.1"),
        (lambda: aiohttp.TCPConnector(local_addr=("127.0.0.1", 0)), "HTTP/1.1"),
    ],
)
async def test_only_an_ordinary_connector_is_replaced(
    gpu: MockGPU, open_session: OpenSession, make: Any, protocol: str
) -> None:
    async with open_session(connector=make()).get(f"{gpu.url}/echo") as answer:
        assert answer.status == 200
    assert protocols(gpu) == [protocol]


async def test_an_aiohttp_that_cannot_carry_it_is_told_and_keeps_http1(
    alpn: MockGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "HTTP/2 under aiohttp needs another one"
    monkeypatch.setattr(AiohttpHttp2, "missing", why)
    monkeypatch.setattr(module, "SUPPORTED", False)
    context = ssl.create_default_context(cafile=alpn.ca_file)
    async with netkit.ClientSession() as session:
        assert edge_of(session).describe()["http2"] == {"enabled": why}
        async with session.get(f"{alpn.url}/echo", ssl=context) as answer:
            assert answer.version == (1, 1)
    with pytest.raises(netkit.ConfigError, match=f"prior-knowledge.*{why}"):
        netkit.ClientSession(plugins={"http2": {"enabled": "prior-knowledge"}})


async def test_settings_that_only_http1_has_are_aiohttps(
    gpu: MockGPU, alpn: MockGPU, open_session: OpenSession
) -> None:
    session = open_session()
    async with session.get(f"{gpu.url}/echo", max_field_size=4000):
        pass
    watched = (
        {"upload_tracker": aiohttp.UploadTracker()} if hasattr(aiohttp, "UploadTracker") else {"max_headers": 99}
    )
    async with session.post(f"{gpu.url}/echo", data=b"x", **watched):
        pass
    async with session.post(f"{gpu.url}/echo", data=b"xyz", headers={"Content-Length": "2"}):
        pass
    async with open_session(version=aiohttp.HttpVersion10).get(f"{gpu.url}/echo"):
        pass
    assert [record.protocol for record in gpu.log.requests] == ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]
    with pytest.raises(aiohttp.ServerFingerprintMismatch):
        await session.get(f"{alpn.url}/echo", ssl=aiohttp.Fingerprint(b"\0" * 32))


async def test_patched_machinery_is_called(
    gpu: MockGPU, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise OSError("patched")

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", refuse)
    with pytest.raises(aiohttp.ClientOSError, match="patched"):
        await open_session().get(f"{gpu.url}/echo")
    assert gpu.log.connections == []


async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heads: list[bytes], port: int) -> None:
    heads.append(await reader.readuntil(b"\r\n\r\n"))
    upstream, downstream = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()
        with contextlib.suppress(OSError):
            await sink.wait_closed()

    await asyncio.gather(copy(reader, downstream), copy(upstream, writer))


async def test_a_tunnel_of_a_proxy_carries_http2(
    alpn: MockGPU, trusting: ssl.SSLContext, open_session: OpenSession
) -> None:
    heads: list[bytes] = []
    tunnels: list[asyncio.Task[None]] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels.append(asyncio.ensure_future(tunnel(reader, writer, heads, alpn.port)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = f"http://user:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    session = open_session()
    async with session.get(f"{alpn.url}/echo", ssl=trusting, proxy=proxy, proxy_headers={"X-Via": "1"}) as answer:
        assert answer.version == HttpVersion(2, 0)
    await session.close()
    server.close()
    await asyncio.gather(*tunnels)
    assert protocols(alpn) == ["HTTP/2"]
    assert len(heads) == 1
    assert b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in heads[0]
    assert b"X-Via: 1" in heads[0]


async def test_an_attached_session_closes_its_connections(gpu: MockGPU) -> None:
    session = netkit.attach(aiohttp.ClientSession())
    async with session.get(f"{gpu.url}/echo") as answer:
        assert isinstance(answer.content, ExchangeReader)
    await session.close()
    await gpu.log.wait_async(lambda log: all(record.closed for record in log.connections), 5)


async def test_a_total_timeout_ends_a_stream_in_the_middle(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session()
    answer = await session.get(f"{gpu.url}/stream/inf?interval_ms=5", timeout=aiohttp.ClientTimeout(total=0.6))
    with pytest.raises(TimeoutError):
        await answer.read()
    await gpu.log.wait_async(lambda log: log.requests[0].outcome == "client_reset", 5)
    assert netkit.stats(session).requests.errors == 1
