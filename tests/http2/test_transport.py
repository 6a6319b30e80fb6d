"""The engine's own transport: last words, TLS in its variants, and nothing left when a dial is cut short."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from netkit.errors import FailureKind, TransportError
from netkit.http2 import ConnectSpec, Engine, Http2Options, ProxySpec, transport
from tests.http2.scripted import Conn, Script, Server, request_to
from tests.http2.test_exchanges import Big, echo


def run_on(loop: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    factory: Any = asyncio.new_event_loop
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


class Leaving(Script):
    """The first connection is held, until it is killed."""

    def complete(self, conn: Conn, stream_id: int) -> None:
        if conn.number > 1:
            super().complete(conn, stream_id)


def kill(conn: Conn) -> None:
    """GOAWAY for all, and a reset right behind it."""
    conn.goaway(0)
    conn.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.abort()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("secure", [True, False], ids=["tls", "h2c"])
@pytest.mark.parametrize("taken", [False, True], ids=["dialled", "taken-over"])
def test_a_goaway_is_read_before_the_close_behind_it_is_believed(
    loop: str, secure: bool, taken: bool, machine: str, serve: Any, certificates: Any
) -> None:
    if taken and not secure:
        pytest.skip("only TLS connections are taken over")
    server: Server = serve(Leaving(), certificates.server() if secure else None)
    context = certificates.client() if secure else None

    async def main() -> None:
        engine = Engine(Http2Options(machine=machine, max_connections=1, connect_timeout=20.0))
        requests = [request_to(server.port, f"/{n}", "POST", b"x" * 50_000, context=context) for n in range(2)]
        if taken:
            running = asyncio.get_running_loop()
            opened, _ = await running.create_connection(
                asyncio.Protocol, "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
            )
            engine.reactor(running).pool(requests[0]).dialer.take_over(opened, b"")
        first = asyncio.ensure_future(echo(engine, requests[0]))
        await server.until(lambda: server.entries("data"))
        second = asyncio.ensure_future(echo(engine, requests[1]))
        await asyncio.sleep(0)
        # The second request's first write is due; the server is gone when it happens.
        server.call(kill, server.connections[0])
        server.wait(lambda: server.entries("lost"))
        answers = [await first, await second]
        assert [answer["path"] for answer in answers] == ["/0", "/1"]
        assert {(answer["connection"], answer["size"]) for answer in answers} == {(2, 50_000)}
        await engine.aclose()

    run_on(loop, main)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("secure", [True, False], ids=["tls", "h2c"])
def test_large_bodies_pass_both_ways(loop: str, secure: bool, machine: str, serve: Any, certificates: Any) -> None:
    server: Server = serve(Big(), certificates.server() if secure else None)
    context = certificates.client() if secure else None

    async def main() -> None:
        engine = Engine(Http2Options(machine=machine, max_connections=1, connect_timeout=20.0))

        async def one() -> None:
            exchange = await engine.send(
                request_to(server.port, "/3000000", "POST", b"u" * 3_000_000, context=context)
            )
            assert len(await exchange.read()) == 3_000_000

        await asyncio.gather(*(one() for _ in range(4)))
        assert set(server.connections[0].sizes.values()) == {3_000_000}
        await engine.aclose()

    run_on(loop, main)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_dial_that_is_cancelled_in_its_handshake_leaves_no_socket(loop: str, certificates: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    greeted, ended = threading.Event(), threading.Event()

    def silent() -> None:
        peer, _ = listener.accept()
        with peer:
            while peer.recv(65536):
                greeted.set()
        ended.set()

    thread = threading.Thread(target=silent, daemon=True)
    thread.start()

    async def main() -> None:
        engine = Engine(Http2Options(connect_timeout=20.0))
        port = listener.getsockname()[1]
        sending = asyncio.ensure_future(engine.send(request_to(port, context=certificates.client())))
        assert await asyncio.to_thread(greeted.wait, 20)
        await engine.aclose()
        with pytest.raises(TransportError):
            await sending
        assert await asyncio.to_thread(ended.wait, 20)

    run_on(loop, main)
    thread.join()
    listener.close()


async def test_a_certificate_that_is_not_trusted_is_named_and_the_server_is_told(
    serve: Any, certificates: Any
) -> None:
    server: Server = serve(context=certificates.server())
    stranger = ssl.create_default_context()
    stranger.set_alpn_protocols(["h2"])
    engine = Engine(Http2Options(connect_timeout=20.0))
    with pytest.raises(TransportError) as caught:
        await engine.send(request_to(server.port, context=stranger))
    assert caught.value.kind is FailureKind.CERTIFICATE
    await engine.aclose()


async def test_tls_inside_tls(serve: Any, certificates: Any, engine_for: Any) -> None:
    """An https:// proxy, whose answer to CONNECT arrives in two pieces."""
    server: Server = serve(Big(), certificates.server())

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"HTTP/1.1 200")
        await writer.drain()
        writer.write(b" OK\r\n\r\n")

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
            except OSError:
                pass
            target.close()

        await asyncio.gather(copy(reader, upstream), copy(upstream_reader, writer), return_exceptions=True)

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0, ssl=certificates.server("http/1.1"))
    engine, context = engine_for(), certificates.client()
    onward = ProxySpec("127.0.0.1", proxy.sockets[0].getsockname()[1], ssl=certificates.client())
    spec = ConnectSpec("127.0.0.1", server.port, ssl=context, proxy=onward)
    request = request_to(
        server.port, "/1000000", "POST", b"u" * 1_000_000, connect=spec, key="nested", context=context
    )
    exchange = await engine.send(request)
    assert len(await exchange.read()) == 1_000_000
    assert server.connections[0].sizes == {1: 1_000_000}
    await engine.aclose()
    proxy.close()
    await proxy.wait_closed()


async def test_what_comes_right_behind_a_proxys_answer_is_not_lost(serve: Any, engine_for: Any) -> None:
    """A server that speaks first (its SETTINGS), through a proxy that sends both in one piece."""
    server: Server = serve()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", server.port)
        settings = await upstream_reader.read(65536)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + settings)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, upstream), copy(upstream_reader, writer), return_exceptions=True)

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    engine = engine_for()
    spec = ConnectSpec("127.0.0.1", server.port, proxy=ProxySpec("127.0.0.1", proxy.sockets[0].getsockname()[1]))
    answers = await asyncio.gather(
        *(echo(engine, request_to(server.port, f"/{n}", connect=spec, key="early")) for n in range(20))
    )
    assert {answer["connection"] for answer in answers} == {1}
    await engine.aclose()
    proxy.close()


async def test_a_peer_that_reads_nothing_does_not_keep_a_closed_connection(
    monkeypatch: pytest.MonkeyPatch, certificates: Any
) -> None:
    monkeypatch.setattr(transport, "_LINGER", 0.02)
    lost = asyncio.get_running_loop().create_future()

    class Protocol:
        def connection_made(self, _: Any) -> None: ...
        def pause_writing(self) -> None: ...
        def resume_writing(self) -> None: ...
        def connection_lost(self, error: BaseException | None) -> None:
            lost.set_result(error)

    ours, theirs = socket.socketpair()
    with theirs:
        protocol: Any = Protocol()
        made = transport.SocketTransport(asyncio.get_running_loop(), ours, protocol)
        made.write(b"x" * 5_000_000)
        assert made.get_write_buffer_size()
        made.close()
        assert await asyncio.wait_for(lost, 20) is None
        assert ours.fileno() == -1
