"""Several connections, and what happens to requests when connections come and go."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import random
import select
import socket
from typing import Any

import pytest

from netkit.errors import FailureKind, PoolTimeout, QueueFull, TransportError, Verdict
from netkit.http2 import ConnectSpec, ProxySpec
from tests.http2.scripted import Conn, Script, request_to
from tests.http2.test_exchanges import Big, Endless, echo


class Held(Script):
    """Answers when told to."""

    def complete(self, conn: Conn, stream_id: int) -> None: ...


async def test_c07_rolling_goaway_sends_every_post_exactly_once(serve: Any, engine_for: Any) -> None:
    class Rolling(Script):
        """Ten requests a connection; the rest of what is in flight is never processed."""

        def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
            if stream_id > 19 and not hasattr(conn, "gone"):
                conn.gone = True  # type: ignore[attr-defined]
                conn.goaway(19)

        def complete(self, conn: Conn, stream_id: int) -> None:
            if stream_id > 19:
                return
            conn.server.note(conn.number, "processed", conn.requests[stream_id][b":path"])
            super().complete(conn, stream_id)
            done = sum(entry[0] == conn.number for entry in conn.server.entries("processed"))
            if done == 10:
                conn.later(0, conn.goaway, 19)
                conn.later(0.01, conn.close)

    server, engine = serve(Rolling()), engine_for(max_connections=1)
    bodies = [os.urandom(200 << 10) for _ in range(100)]
    gate = asyncio.Semaphore(8)

    async def post(index: int) -> None:
        data = bodies[index]
        file = io.BytesIO(data)

        def reopen() -> Any:
            file.seek(0)
            return iter(lambda: file.read(65536), b"")

        async with gate:
            body, again = (data, None) if index % 2 else (reopen(), reopen)
            answer = await echo(engine, request_to(server.port, f"/{index}", "POST", body, reopen=again))
        assert answer["sha256"] == hashlib.sha256(data).hexdigest()
        assert answer["path"] == f"/{index}"

    await asyncio.gather(*map(post, range(100)))
    processed = [entry[2] for entry in server.entries("processed")]
    assert sorted(processed) == sorted(b"/%d" % i for i in range(100))
    assert 10 <= len(server.connections) <= 13


async def test_one_shot_body_is_not_resent(serve: Any, engine_for: Any) -> None:
    class Going(Script):
        def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
            conn.goaway(0)

    server, engine = serve(Going()), engine_for()
    with pytest.raises(TransportError) as caught:
        await engine.send(request_to(server.port, "/", "POST", iter([b"x"] * 10)))
    assert caught.value.verdict is Verdict.REFUSED
    assert len(server.entries("headers")) == 1


async def test_goaway_with_last_stream_id_zero_moves_everything(serve: Any, engine_for: Any) -> None:
    class First(Held):
        def complete(self, conn: Conn, stream_id: int) -> None:
            if conn.number > 1:
                conn.answer(stream_id, body=conn.echo(stream_id))
            elif len(conn.open) == 5 and not conn.server.entries("goaway_sent"):
                conn.goaway(0)

    server, engine = serve(First()), engine_for()
    answers = await asyncio.gather(*(echo(engine, request_to(server.port, "/", "POST", b"x")) for _ in range(5)))
    assert {answer["connection"] for answer in answers} == {2}
    assert (engine.stats().goaways, engine.stats().resends) == (1, 5)


async def test_two_step_goaway_finishes_the_old_and_starts_the_new(serve: Any, engine_for: Any) -> None:
    server, engine = serve(Held()), engine_for()
    old = asyncio.create_task(echo(engine, request_to(server.port, "/old")))
    await server.until(lambda: server.entries("headers"))
    server.call(server.connections[0].goaway, 0x7FFFFFFF)
    await server.until(lambda: server.entries("goaway_sent"))
    while engine.stats().goaways == 0:
        await asyncio.sleep(0.001)
    new = asyncio.create_task(echo(engine, request_to(server.port, "/new")))
    await server.until(lambda: len(server.entries("headers")) == 2)
    server.call(server.connections[0].goaway, 1)
    for conn in server.connections:
        server.call(lambda conn=conn: conn.answer(1, body=conn.echo(1)))
    assert (await old)["connection"] == 1
    assert (await new)["connection"] == 2
    await server.until(lambda: server.entries("lost", 1))


@pytest.mark.parametrize("code", [7, 8, 2, 11])
async def test_c09_refused_is_resent_other_codes_are_not(serve: Any, engine_for: Any, code: int) -> None:
    class Resetting(Script):
        seen = 0

        def complete(self, conn: Conn, stream_id: int) -> None:
            self.seen += 1
            if self.seen == 1:
                conn.refuse(stream_id, code)
            else:
                super().complete(conn, stream_id)

    server, engine = serve(Resetting()), engine_for()
    request = request_to(server.port, "/", "POST", b"body")
    if code == 7:
        assert (await echo(engine, request))["size"] == 4
        assert len(server.entries("headers")) == 2
        return
    with pytest.raises(TransportError) as caught:
        await engine.send(request)
    assert (caught.value.verdict, caught.value.kind) == (Verdict.AMBIGUOUS, FailureKind.RESET)
    assert caught.value.details["code"] == code
    assert len(server.entries("headers")) == 1


async def test_c09_always_refused_is_bounded(serve: Any, engine_for: Any) -> None:
    class Refusing(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            conn.refuse(stream_id, 7)

    server, engine = serve(Refusing()), engine_for()
    with pytest.raises(TransportError) as caught:
        await engine.send(request_to(server.port, "/", "POST", b"body"))
    assert (caught.value.verdict, caught.value.attempts) == (Verdict.REFUSED, 2)
    assert len(server.entries("headers")) == 2


@pytest.mark.parametrize("limit", [1, 0])
async def test_c10_settings_lowered_in_flight(serve: Any, engine_for: Any, limit: int) -> None:
    server, engine = serve(Held()), engine_for(max_connections=1)
    tasks = [asyncio.create_task(echo(engine, request_to(server.port, f"/{i}"))) for i in range(2)]
    await server.until(lambda: len(server.entries("headers")) == 2)
    conn = server.connections[0]
    acks = len(server.entries("settings_ack"))
    server.call(lambda: conn.set(max_streams=limit))
    await server.until(lambda: len(server.entries("settings_ack")) > acks)
    tasks += [asyncio.create_task(echo(engine, request_to(server.port, f"/{i}"))) for i in (2, 3)]
    while engine.stats().queued < 2:
        await asyncio.sleep(0.001)
    server.call(lambda: [conn.answer(sid, body=conn.echo(sid)) for sid in (1, 3)])
    await asyncio.gather(*tasks[:2])
    if limit == 0:
        assert engine.stats().queued == 2
        assert len(server.entries("headers")) == 2
        server.call(lambda: conn.set(max_streams=5))
        await server.until(lambda: len(server.entries("headers")) == 4)
        server.call(lambda: [conn.answer(sid, body=conn.echo(sid)) for sid in (5, 7)])
    else:
        for sid in (5, 7):
            await server.until(lambda sid=sid: sid in conn.requests)
            assert len(conn.open) == 1
            server.call(lambda sid=sid: conn.answer(sid, body=conn.echo(sid)))
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("connections", [1, 2])
async def test_c11_cold_burst_respects_limit_and_connections(serve: Any, engine_for: Any, connections: int) -> None:
    class Slow(Script):
        settings = {3: 4}
        settings_delay = 0.1

        def complete(self, conn: Conn, stream_id: int) -> None:
            conn.later(0.05, lambda: conn.answer(stream_id, body=conn.echo(stream_id)))

    server, engine = serve(Slow()), engine_for(max_connections=connections)
    answers = await asyncio.gather(*(echo(engine, request_to(server.port, f"/{i}")) for i in range(24)))
    assert [answer["path"] for answer in answers] == [f"/{i}" for i in range(24)]
    assert len(server.connections) == connections
    assert [conn.peak for conn in server.connections] == [4] * connections
    assert len(server.entries("headers")) == 24


async def test_c15_dead_connection_fails_all_streams_and_is_not_used_again(serve: Any, engine_for: Any) -> None:
    class Hole(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            if conn.number == 1 and stream_id > 1:
                self.read = False
            else:
                super().complete(conn, stream_id)

    script = Hole()
    server = serve(script)
    engine = engine_for(ping_interval=0.1, ping_timeout=0.1)
    await echo(engine, request_to(server.port))
    tasks = [
        asyncio.create_task(engine.send(request_to(server.port, "/", "POST", b"x", read_timeout=None)))
        for _ in range(5)
    ]
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(error) for error in errors} == {TransportError}
    assert {error.kind for error in errors} == {FailureKind.DISCONNECTED}  # type: ignore[union-attr]
    assert len({id(error) for error in errors}) == 5
    script.read = True
    assert (await echo(engine, request_to(server.port)))["connection"] == 2


async def test_c15_slow_but_alive_stream_is_not_killed(serve: Any, engine_for: Any) -> None:
    server, engine = serve(Held()), engine_for(ping_interval=0.02, ping_timeout=0.5)
    task = asyncio.create_task(echo(engine, request_to(server.port, read_timeout=None)))
    await server.until(lambda: len(server.entries("ping")) >= 5)
    conn = server.connections[0]
    server.call(lambda: conn.answer(1, body=conn.echo(1)))
    assert (await task)["connection"] == 1
    assert engine.stats().ping_rtt > 0
    pings = len(server.entries("ping"))
    await asyncio.sleep(0.1)
    assert len(server.entries("ping")) <= pings + 1, "idle connections are not pinged"


async def test_enhance_your_calm_doubles_the_ping_interval(serve: Any, engine_for: Any) -> None:
    class Calm(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            conn.refuse(stream_id, 11)

    server, engine = serve(Calm()), engine_for(ping_interval=3.0)
    with pytest.raises(TransportError):
        await engine.send(request_to(server.port))
    assert [connection.pool.ping_interval for connection in engine.connections()] == [6.0]


async def test_c01_closed_idle_connection_is_noticed_before_the_request(serve: Any, engine_for: Any) -> None:
    class Once(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            super().complete(conn, stream_id)
            conn.later(0.02, conn.close)

    server, engine = serve(Once()), engine_for()
    await echo(engine, request_to(server.port))
    # Block the loop, so that nobody has read the FIN when the next request is made.
    server.wait(lambda: server.entries("lost"))
    [connection] = engine.connections()
    assert select.select([connection.transport.get_extra_info("socket")], [], [], 20.0)[0]
    connection.last_read -= 1.0  # one that was read from a moment ago is not looked at
    answer = await echo(engine, request_to(server.port, "/", "POST", b"once"))
    assert answer["connection"] == 2
    assert len(server.entries("headers")) == 2
    assert engine.stats().discarded_stale == 1


async def test_connection_lost_gives_each_stream_its_own_verdict(serve: Any, engine_for: Any) -> None:
    class Dying(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            if conn.requests[stream_id][b":path"] == b"/started":
                conn.head(stream_id)

    server, engine = serve(Dying()), engine_for()
    started = await engine.send(request_to(server.port, "/started"))
    pending = asyncio.create_task(engine.send(request_to(server.port, "/pending", "POST", b"x")))
    await server.until(lambda: len(server.entries("headers")) == 2)
    server.call(server.connections[0].abort)
    with pytest.raises(TransportError) as caught:
        await pending
    assert caught.value.verdict is Verdict.AMBIGUOUS
    assert caught.value.kind in (FailureKind.DISCONNECTED, FailureKind.RESET)
    with pytest.raises(TransportError) as caught:
        await started.read()
    assert caught.value.verdict is Verdict.PROCESSED


async def test_pool_timeout_queue_full_and_fifo(serve: Any, engine_for: Any) -> None:
    class One(Held):
        settings = {3: 1}

    server, engine = serve(One()), engine_for(max_connections=1, max_queue=3)
    first = asyncio.create_task(echo(engine, request_to(server.port, "/first")))
    await server.until(lambda: server.entries("headers"))
    queued = [asyncio.create_task(echo(engine, request_to(server.port, f"/{i}"))) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await engine.send(request_to(server.port))
    queued[0].cancel()
    await asyncio.sleep(0)
    with pytest.raises(PoolTimeout) as caught:
        await engine.send(request_to(server.port, pool_timeout=0.05))
    assert caught.value.verdict is Verdict.NOT_SENT
    assert not isinstance(caught.value, QueueFull)
    conn = server.connections[0]
    for index, sid in enumerate((1, 3, 5)):
        await server.until(lambda sid=sid: sid in conn.requests)
        server.call(lambda sid=sid: conn.answer(sid, body=conn.echo(sid)))
        assert (await [first, queued[1], queued[2]][index])["path"] == ["/first", "/1", "/2"][index]
    assert conn.peak == 1


async def test_waiting_for_the_connect_is_not_waiting_for_a_stream(serve: Any, engine_for: Any) -> None:
    class SlowStart(Held):
        settings = {3: 1}
        settings_delay = 0.3

    server, engine = serve(SlowStart()), engine_for(max_connections=1, acquire_timeout=0.1)
    first, second = (asyncio.create_task(engine.send(request_to(server.port))) for _ in range(2))
    with pytest.raises(PoolTimeout):
        await second
    assert server.entries("settings")
    conn = server.connections[0]
    await server.until(lambda: 1 in conn.requests)
    server.call(lambda: conn.answer(1))
    assert (await first).status == 200


async def test_connect_failures_have_names(engine_for: Any, serve: Any, certificates: Any) -> None:
    engine = engine_for(connect_timeout=0.2)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        await _fails(engine, request_to(port), FailureKind.CONNECT)
    # A listener that never accepts TLS: the connect limit covers the handshake.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        request = request_to(silent.getsockname()[1], context=certificates.client())
        await _fails(engine, request, FailureKind.CONNECT_TIMEOUT)
    async with asyncio.timeout(20):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            patient = engine_for(connect_timeout=None)
            request = request_to(silent.getsockname()[1], context=certificates.client(), connect_timeout=0.1)
            await _fails(patient, request, FailureKind.CONNECT_TIMEOUT)
    import ssl

    stranger = ssl.create_default_context()
    stranger.set_alpn_protocols(["h2"])
    server = serve(context=certificates.server())
    await _fails(engine, request_to(server.port, context=stranger), FailureKind.CERTIFICATE)
    spec = ConnectSpec("name.invalid", 443)
    await _fails(engine, request_to(1, connect=spec, key="invalid"), FailureKind.DNS)
    assert engine.stats().dialing == 0


async def _fails(engine: Any, request: Any, kind: FailureKind) -> None:
    outcomes = await asyncio.gather(*(engine.send(request) for _ in range(3)), return_exceptions=True)
    for error in outcomes:
        assert isinstance(error, TransportError)
        assert (error.kind, error.verdict) == (kind, Verdict.NOT_SENT)
        assert error.__cause__ is not None


async def test_server_without_settings_is_not_waited_for_for_ever(serve: Any, engine_for: Any) -> None:
    class Mute(Script):
        settings_delay = 1000.0

    server, engine = serve(Mute()), engine_for(connect_timeout=0.1)
    outcomes = await asyncio.gather(*(engine.send(request_to(server.port)) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, TransportError) for error in outcomes)
    assert engine.stats().dialing == 0


async def test_lifetime_requests_and_idle_end_connections(serve: Any, engine_for: Any) -> None:
    server = serve()
    engine = engine_for(max_requests=2)
    numbers = [(await echo(engine, request_to(server.port)))["connection"] for _ in range(4)]
    assert numbers == [1, 1, 2, 2]
    engine = engine_for(idle_timeout=0.05)
    await echo(engine, request_to(server.port))
    await server.until(lambda: server.entries("lost", 3))
    assert engine.stats().connections == 0
    engine = engine_for(max_lifetime=0.0001)
    for number in (4, 5):
        await asyncio.sleep(0.001)
        assert (await echo(engine, request_to(server.port)))["connection"] == number


async def test_upload_lane(serve: Any, engine_for: Any) -> None:
    server, engine = serve(Endless()), engine_for()
    stream = await engine.send(request_to(server.port, "/stream"))
    await stream.read_chunk()
    answer = await echo(engine, request_to(server.port, "/up", "POST", bytes(1 << 20)))
    assert answer["connection"] == 2
    assert (await echo(engine, request_to(server.port, "/small", "POST", b"x")))["connection"] == 1
    stream.close()


async def test_keys_do_not_share_connections(serve: Any, engine_for: Any) -> None:
    server, engine = serve(), engine_for()
    first = await echo(engine, request_to(server.port, key="a"))
    second = await echo(engine, request_to(server.port, key="b"))
    assert (first["connection"], second["connection"]) == (1, 2)


async def test_connect_proxy(serve: Any, engine_for: Any, certificates: Any) -> None:
    server = serve(context=certificates.server())
    heads: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        if b"Proxy-Authorization: Basic eA==" not in head:
            writer.write(b"HTTP/1.1 407 Who are you\r\n\r\n")
            writer.close()
            return
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, upstream), copy(upstream_reader, writer), return_exceptions=True)

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    engine, context = engine_for(), certificates.client()
    spec = ConnectSpec(
        "127.0.0.1", server.port, ssl=context, proxy=ProxySpec("127.0.0.1", port, authorization="Basic eA==")
    )
    answer = await echo(engine, request_to(server.port, "/through", connect=spec, key="proxy", context=context))
    assert answer["path"] == "/through"
    assert heads[0].startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n".encode())
    denied = ConnectSpec("127.0.0.1", server.port, ssl=context, proxy=ProxySpec("127.0.0.1", port))
    with pytest.raises(TransportError) as caught:
        await engine.send(request_to(server.port, connect=denied, key="denied", context=context))
    assert (caught.value.kind, caught.value.details["status"]) == (FailureKind.PROXY, 407)
    await engine.aclose()
    proxy.close()


async def test_unix_socket(engine_for: Any, serve: Any, tmp_path: Any) -> None:
    server = serve()
    path = str(tmp_path / "s")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", server.port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, upstream), copy(upstream_reader, writer), return_exceptions=True)

    listener = await asyncio.start_unix_server(relay, path)
    engine = engine_for()
    spec = ConnectSpec("localhost", 80, unix_path=path)
    assert (await echo(engine, request_to(1, "/unix", connect=spec, key="unix")))["path"] == "/unix"
    await engine.aclose()
    listener.close()


async def test_a_cold_burst_opens_what_it_needs_before_any_settings(serve: Any, engine_for: Any) -> None:
    """As many connections as 250 requests need, one request on each until its server has told its limit."""

    class Silent(Script):
        settings_delay = 1000.0

    server, engine = serve(Silent()), engine_for()
    burst = [asyncio.ensure_future(echo(engine, request_to(server.port, f"/{n}"))) for n in range(250)]
    await server.until(lambda: len(server.entries("open")) == 3)
    assert not server.entries("headers")
    server.call(lambda: [conn.begin() for conn in server.connections])
    answers = await asyncio.gather(*burst)
    assert [answer["path"] for answer in answers] == [f"/{n}" for n in range(250)]
    assert len(server.connections) == 3
    assert max(conn.peak for conn in server.connections) <= 100


@pytest.mark.parametrize(("burst", "writes"), [(1, 1), (15, 1), (40, 1)])
async def test_a_burst_leaves_in_one_write(serve: Any, engine_for: Any, burst: int, writes: int) -> None:
    server, engine = serve(Held()), engine_for(max_connections=1)
    first = asyncio.ensure_future(echo(engine, request_to(server.port, "/0")))
    await server.until(lambda: server.entries("headers") and server.entries("settings_ack"))
    while not engine.connections()[0].settled:
        await asyncio.sleep(0)
    transport = engine.connections()[0].transport
    write, sizes = transport.write, list[int]()
    transport.write = lambda data: (sizes.append(len(data)), write(data))[1]
    calls = [asyncio.ensure_future(echo(engine, request_to(server.port, f"/{i + 1}"))) for i in range(burst)]
    await server.until(lambda: len(server.entries("headers")) == 1 + burst)
    assert len(sizes) == writes
    conn = server.connections[0]
    server.call(lambda: [conn.answer(sid, body=conn.echo(sid)) for sid in list(conn.open)])
    assert [answer["path"] for answer in await asyncio.gather(first, *calls)] == [f"/{i}" for i in range(burst + 1)]


async def test_events_are_told(serve: Any, machine: str) -> None:
    from netkit.http2 import Engine, Http2Options

    events: list[tuple[str, dict[str, Any]]] = []
    engine = Engine(Http2Options(machine=machine), on_event=lambda name, details: events.append((name, details)))
    server = serve()
    await echo(engine, request_to(server.port, key="k"))
    await engine.aclose()
    assert [name for name, _ in events] == ["connection_opened", "connection_closed"]
    assert all(details["key"] == "k" for _, details in events)


@pytest.mark.storm
@pytest.mark.parametrize("seed", [1, 2])
async def test_storm_of_tasks(serve: Any, engine_for: Any, seed: int, certificates: Any) -> None:
    """Random cancels, timeouts, resets, GOAWAYs and stalls: each answer is its caller's, nothing is left behind."""
    rng = random.Random(seed)

    class Stormy(Big):
        settings = {3: 8}

        def complete(self, conn: Conn, stream_id: int) -> None:
            path = conn.requests[stream_id][b":path"]
            dice = rng.random()
            if dice < 0.05:
                conn.refuse(stream_id, rng.choice([2, 7, 8]))
            elif dice < 0.06:
                conn.goaway(rng.choice([0, stream_id]))
                conn.later(0.05, conn.close)
            elif dice < 0.065:
                conn.abort()
            elif dice < 0.25:
                conn.later(rng.random() * 0.05, self.reply, conn, stream_id, path)
            else:
                self.reply(conn, stream_id, path)

        def reply(self, conn: Conn, stream_id: int, path: bytes) -> None:
            size = int(path.rpartition(b"/")[2])
            conn.answer(stream_id, body=(path + b"|") * (size // (len(path) + 1) + 1))

    server = serve(Stormy(), certificates.server())
    engine = engine_for(max_connections=4, stream_window=60_000, connection_window=200_000)
    context = certificates.client()
    deadline = asyncio.get_running_loop().time() + 2.5
    counts = {"ok": 0, "failed": 0, "left": 0}

    async def caller(number: int) -> None:
        mine = random.Random(seed * 1000 + number)
        turn = 0
        while asyncio.get_running_loop().time() < deadline:
            turn += 1
            path = f"/{number}/{turn}/{mine.choice([10, 2000, 90_000])}"
            body = bytes(mine.choice([0, 10, 50_000])) or None
            request = request_to(
                server.port, path, "POST", body, context=context, read_timeout=mine.choice([0.01, 20])
            )
            try:
                async with asyncio.timeout(mine.choice([0.005, 0.03, 30])):
                    exchange = await engine.send(request)
                    if mine.random() < 0.2:
                        exchange.close()
                        counts["left"] += 1
                        continue
                    data = await exchange.read()
                assert data.startswith(f"{path}|".encode())
                assert set(data.split(b"|")[:-1]) == {path.encode()}
                counts["ok"] += 1
            except (TransportError, TimeoutError):
                counts["failed"] += 1

    await asyncio.gather(*map(caller, range(64)))
    assert counts["ok"] > 50, counts
    while engine.stats().dialing:
        await asyncio.sleep(0.001)
    stats = engine.stats()
    assert (stats.streams, stats.queued, stats.unread) == (0, 0, 0), stats
    for connection in engine.connections():
        assert connection.machine.connection_credit() >= 100_000
        assert (connection.open, connection.uploads, len(connection.uploading)) == (0, 0, 0)
    await engine.aclose()
    await server.until(lambda: len(server.entries("lost")) == len(server.connections))


async def test_json_of_ten_thousand_calls_one_connection(serve: Any, engine_for: Any) -> None:
    server, engine = serve(), engine_for(max_connections=1)
    for start in range(0, 2000, 100):
        answers = await asyncio.gather(*(engine.send(request_to(server.port, f"/{start + i}")) for i in range(100)))
        bodies = [json.loads(await exchange.read())["path"] for exchange in answers]
        assert bodies == [f"/{start + i}" for i in range(100)]
    (connection,) = engine.connections()
    assert not connection.streams
    assert len(connection.pool.wheel) <= 2, "the connection's own, and one for the silence of all its streams"
