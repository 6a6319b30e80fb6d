"""What an engine keeps, tells and bounds beside its requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl as tls
from typing import Any

import httpx
import pytest

import netkit
from netkit.errors import FailureKind, TransportError
from netkit.events import ConnectionClosed, GoAwayReceived
from netkit.facade import edge_of
from netkit.http2 import Engine, Http2Options, reactor
from netkit.http2.protocol import MachineError
from netkit.testing import MockGPU, faults
from netkit.testing.mock_gpu import Answer, Exchange, Signal
from tests.http2.scripted import Conn, Script, Server, request_to
from tests.http2.test_exchanges import echo


class Held(Script):
    def complete(self, conn: Conn, stream_id: int) -> None: ...


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch, serve: Any, certificates: Any) -> None:
    monkeypatch.setattr(reactor, "MAX_KEYS", 8)
    server: Server = serve(context=certificates.server("http/1.1"))
    engine = Engine(Http2Options(connect_timeout=20.0))
    share = engine.reactor(asyncio.get_running_loop())
    share._sweep_at = 8
    for number in range(40):
        await engine.send(request_to(server.port, key=number, context=certificates.client()))
        assert engine.speaks_http1(number)
    assert len(engine._http1) <= 8
    assert len(share.pools) <= 8
    await engine.aclose()


async def test_a_pool_in_use_is_kept(monkeypatch: pytest.MonkeyPatch, serve: Any) -> None:
    monkeypatch.setattr(reactor, "MAX_KEYS", 2)
    server: Server = serve()
    engine = Engine(Http2Options(connect_timeout=20.0))
    share = engine.reactor(asyncio.get_running_loop())
    share._sweep_at = 2
    for number in (*range(6), *range(6)):
        await echo(engine, request_to(server.port, key=number))
    assert len(server.connections) == 6
    await engine.aclose()


async def test_a_callback_that_raises_is_logged_and_harms_nobody(
    serve: Any, engine_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server, engine = serve(Held()), engine_for(max_connections=1)
    first = asyncio.ensure_future(engine.send(request_to(server.port, "/1")))
    second = asyncio.ensure_future(engine.send(request_to(server.port, "/2")))
    await server.until(lambda: len(server.entries("headers")) == 2)
    server.call(lambda: [server.connections[0].head(sid) for sid in (1, 3)])
    ends: list[BaseException | None] = []

    def wrong(_: BaseException | None) -> None:
        raise RuntimeError("a caller's mistake")

    one, other = await first, await second
    one.on_end(wrong)
    one.on_end(ends.append)
    with caplog.at_level(logging.ERROR, "netkit"):
        server.call(lambda: [server.connections[0].send(sid, b"body", True) for sid in (1, 3)])
        assert (await one.read(), await other.read()) == (b"body", b"body")
    assert ends == [None]
    assert "a caller's mistake" in caplog.text
    assert len(engine.connections()) == 1


async def test_a_request_that_cannot_be_started_waits_with_its_clock(serve: Any, engine_for: Any) -> None:
    """The machine does not take its body: another connection serves it, and the server does not wait for it."""
    server, engine = serve(), engine_for()
    await echo(engine, request_to(server.port, "/1"))
    connection = engine.connections()[0]
    machine = connection.machine

    class Refusing:
        def send(self, stream_id: int, data: bytes, end: bool) -> None:
            raise MachineError("no")

        def __getattr__(self, name: str) -> Any:
            return getattr(machine, name)

    connection.machine = Refusing()
    answer = await echo(engine, request_to(server.port, "/2", "POST", b"body", pool_timeout=20.0))
    assert (answer["path"], answer["size"], answer["connection"]) == ("/2", 4, 2)
    assert connection.open == 0
    assert not connection.streams


@pytest.mark.parametrize("own_first", [True, False])
async def test_each_waits_for_the_connect_as_long_as_it_says(own_first: bool, engine_for: Any) -> None:
    """A dial that gets nowhere: the patient are not told when the hasty one's time is up, nor the other way round."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    engine, port = engine_for(connect_timeout=20.0), listener.getsockname()[1]
    ends: list[str] = []

    async def call(name: str, limit: float, ssl: Any) -> None:
        with pytest.raises(TransportError) as caught:
            await engine.send(request_to(port, key="k", context=ssl, connect_timeout=limit))
        assert caught.value.kind is FailureKind.CONNECT_TIMEOUT
        ends.append(name)

    context = tls.create_default_context()
    context.set_alpn_protocols(["h2"])
    calls = [call("hasty", 0.05, context), call("patient", 0.6, context)]
    await asyncio.gather(*(calls if own_first else reversed(calls)))
    assert ends == ["hasty", "patient"]
    listener.close()


async def test_a_closed_connection_says_why(serve: Any, machine: str) -> None:
    class Leaving(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            super().complete(conn, stream_id)
            if conn.requests[stream_id][b":path"] == b"/goaway":
                conn.flush()
                conn.goaway(stream_id, 11)
            elif conn.requests[stream_id][b":path"] == b"/close":
                conn.later(0, conn.close)

    async def reason_of(path: str, **options: Any) -> list[tuple[str, dict[str, Any]]]:
        events: list[tuple[str, dict[str, Any]]] = []
        closed = asyncio.Event()

        def listen(name: str, details: dict[str, Any]) -> None:
            events.append((name, details))
            if name == "connection_closed":
                closed.set()

        engine = Engine(Http2Options(machine=machine, connect_timeout=20.0, **options), on_event=listen)
        await echo(engine, request_to(server.port, path))
        if path == "/end":
            await engine.aclose()
        await asyncio.wait_for(closed.wait(), 20)
        await engine.aclose()
        return events

    server = serve(Leaving())
    assert (await reason_of("/end"))[-1][1]["reason"] == "closed"
    assert (await reason_of("/idle", idle_timeout=0.02))[-1][1]["reason"] == "idle"
    assert (await reason_of("/used", max_requests=1))[-1][1]["reason"] == "max_requests"
    assert (await reason_of("/close"))[-1][1]["reason"] == "the server closed the connection"
    events = await reason_of("/goaway")
    assert events[-1][1]["reason"] == "goaway"
    (told,) = [details for name, details in events if name == "goaway"]
    assert (told["code"], told["reason"]) == (11, "ENHANCE_YOUR_CALM (11)")


def client_of(gpu: MockGPU, machine: str, **plugins: Any) -> httpx.Client:
    made: httpx.Client = netkit.Client(
        verify=tls.create_default_context(cafile=gpu.ca_file),
        plugins={"http2": {"machine": machine}, **plugins},
        trust_env=False,
    )
    return made


@pytest.mark.parametrize("retry", [True, False])
def test_a_refusal_is_answered_by_one_resend_and_counted(machine: str, retry: bool) -> None:
    with MockGPU() as gpu, client_of(gpu, machine, retry={"attempts": 1} if retry else False) as client:
        gpu.script(faults.ResetStream(code=7, times=1))
        assert client.post(f"{gpu.url}/echo", content=b"once").json()["body"] == "once"
        seen = len(gpu.log.requests)
        assert (seen, netkit.stats(client).requests.attempts) == (2, 2)
        gpu.script(faults.ResetStream(code=7, times=None))
        with pytest.raises(httpx.RemoteProtocolError):
            client.post(f"{gpu.url}/echo", content=b"never")
        assert len(gpu.log.requests) - seen == 2
        assert netkit.stats(client).requests.attempts == 4


def test_keepalive_of_the_pool_reaches_connections_of_http2(machine: str) -> None:
    if not hasattr(socket, "TCP_KEEPIDLE"):
        pytest.skip("this platform does not say how long a connection idles before it is probed")

    def of_dialled(option: Any) -> tuple[int, int]:
        with MockGPU(tls=False) as gpu:
            plugins = {"http2": {"enabled": "prior-knowledge", "machine": machine}, "pool": {"tcp_keepalive": option}}
            with netkit.Client(plugins=plugins, trust_env=False) as client:
                client.get(f"{gpu.url}/echo")
                ((_, layer),) = [pair for pair in edge_of(client)._instances.items() if pair[0][0] == "http2"]
                sock = layer.engine().connections()[0].transport.get_extra_info("socket")
                return (
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                )

    assert of_dialled([33, 5, 2]) == (1, 33)
    assert of_dialled(False)[0] == 0


def test_listeners_hear_of_goaways_and_closes(machine: str) -> None:
    heard: list[Any] = []
    with MockGPU() as gpu, client_of(gpu, machine) as client:
        netkit.listen(client, heard.append)
        gpu.script(faults.GoAway(times=1))
        client.get(f"{gpu.url}/echo")
        client.get(f"{gpu.url}/echo")
    (goaway,) = [event for event in heard if isinstance(event, GoAwayReceived)]
    assert goaway.code == 0
    assert goaway.reason.startswith("NO_ERROR (0)")
    reasons = [event.reason for event in heard if isinstance(event, ConnectionClosed)]
    assert "goaway" in reasons
    assert all(reasons)


def test_the_mock_server_survives_resets_of_held_uploads(machine: str) -> None:
    """And its connection's window is whole afterwards."""

    async def main() -> None:
        async with netkit.AsyncClient(
            verify=tls.create_default_context(cafile=gpu.ca_file),
            plugins={"http2": {"machine": machine, "max_connections": 1}},
            trust_env=False,
        ) as client:
            for _ in range(40):
                limit = httpx.Timeout(20, read=0.05)
                with pytest.raises(httpx.ReadTimeout):
                    await client.post(f"{gpu.url}/hold", content=b"x" * 60_000, timeout=limit)
            answer = await client.post(f"{gpu.url}/upload", content=b"x" * 1_000_000, timeout=20)
            assert answer.json()["size"] == 1_000_000

    released = Signal()

    async def hold(exchange: Exchange) -> Answer:
        await released.wait_async()
        return Answer(200, [], b"")

    with MockGPU() as gpu:
        gpu.route("/hold", hold)
        asyncio.run(main())
        released.set()
        assert len(gpu.log.connections) == 1
