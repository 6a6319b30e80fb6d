"""What a caller gets from one connection, and what the server saw of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import struct
import time
from typing import Any

import pytest

from netkit.errors import BodyClosed, FailureKind, TransportError, Verdict
from netkit.http2 import Http1Only
from tests.http2.scripted import CONTINUATION, HEADERS, PING, Conn, Script, frame, request_to


async def echo(engine: Any, request: Any) -> dict[str, Any]:
    exchange = await engine.send(request)
    assert exchange.status == 200
    result: dict[str, Any] = json.loads(await exchange.read())
    return result


async def fetch(engine: Any, request: Any) -> bytes:
    data: bytes = await (await engine.send(request)).read()
    return data


async def test_get_and_post_over_tls(serve: Any, engine_for: Any, certificates: Any) -> None:
    server = serve(context=certificates.server())
    engine = engine_for()
    context = certificates.client()
    assert (await echo(engine, request_to(server.port, "/a?b=c", context=context)))["path"] == "/a?b=c"
    body = os.urandom(300_000)
    answer = await echo(engine, request_to(server.port, "/", "POST", body, context=context))
    assert answer["sha256"] == hashlib.sha256(body).hexdigest()
    assert len(server.connections) == 1


async def test_fields_are_made_fit_for_http2(serve: Any, engine_for: Any) -> None:
    server = serve()
    headers = [
        (b"Host", b"other.example"),
        (b"X-Mixed", b" value\t"),
        (b"Connection", b"keep-alive, X-Private"),
        (b"X-Private", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Transfer-Encoding", b"chunked"),
        (b"TE", b"gzip, trailers"),
        (b"Cookie", b"a=1"),
        (b"cookie", b"b=2"),
    ]
    await echo(engine_for(), request_to(server.port, headers=headers))
    seen = server.connections[0].field_lists[1]
    assert seen[:4] == [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":authority", b"other.example"),
        (b":path", b"/"),
    ]
    assert seen[4:] == [(b"x-mixed", b"value"), (b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"te", b"trailers")]


@pytest.mark.parametrize(
    "headers",
    [[(b"x", b"a\r\nb: c")], [(b"x y", b"1")], [(b"x", b"\x00")], [(b"", b"1")], [(b"content-length", b"x")]],
)
async def test_invalid_headers_raise_before_anything_is_sent(
    serve: Any, engine_for: Any, headers: list[tuple[bytes, bytes]]
) -> None:
    server = serve()
    with pytest.raises(TransportError) as caught:
        await engine_for().send(request_to(server.port, headers=headers))
    assert caught.value.verdict is Verdict.NOT_SENT
    assert not server.connections


async def test_trailers_and_informational_answers(serve: Any, engine_for: Any) -> None:
    class Trailing(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            conn.machine.send_informational_response(stream_id, [(b":status", b"103"), (b"link", b"</a>")])
            conn.head(stream_id)
            conn.machine.send_data(stream_id, b"body")
            conn.machine.send_trailers(stream_id, [(b"x-checksum", b"1")])

    exchange = await engine_for().send(request_to(serve(Trailing()).port))
    assert await exchange.read() == b"body"
    assert exchange.trailers == [(b"x-checksum", b"1")]
    assert exchange.informational == [(103, [(b"link", b"</a>")])]
    assert exchange.status == 200


async def test_head_204_and_empty_answers(serve: Any, engine_for: Any) -> None:
    class Empty(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            path = conn.requests[stream_id][b":path"]
            status, headers = (b"200", [(b"content-length", b"99")]) if path == b"/head" else (b"204", [])
            conn.head(stream_id, status, headers, end=True)

    engine, server = engine_for(), serve(Empty())
    for method, path, status in (("HEAD", "/head", 200), ("GET", "/none", 204)):
        exchange = await engine.send(request_to(server.port, path, method))
        assert (exchange.status, await exchange.read()) == (status, b"")


async def test_chunks_arrive_as_they_are_sent_and_end_is_told_once(serve: Any, engine_for: Any) -> None:
    class Dripping(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            conn.head(stream_id)

    server = serve(Dripping())
    exchange = await engine_for().send(request_to(server.port))
    ends: list[BaseException | None] = []
    exchange.on_end(ends.append)
    for index in range(5):
        server.call(server.connections[0].send, 1, b"event %d" % index, index == 4)
        assert await exchange.read_chunk() == b"event %d" % index
    assert await exchange.read_chunk() == b""
    assert ends == [None]
    exchange.close()
    assert ends == [None]


@pytest.mark.parametrize("size", [5, 3])
async def test_wrong_content_length_fails_its_own_stream_only(serve: Any, engine_for: Any, size: int) -> None:
    class Lying(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            if conn.requests[stream_id][b":path"] == b"/lie":
                conn.answer(stream_id, body=b"x" * size, headers=[(b"content-length", b"4")])
            else:
                super().complete(conn, stream_id)

    engine, server = engine_for(), serve(Lying())
    with pytest.raises(TransportError) as caught:
        await fetch(engine, request_to(server.port, "/lie"))
    assert (caught.value.kind, caught.value.verdict) == (FailureKind.BODY, Verdict.PROCESSED)
    assert (await echo(engine, request_to(server.port)))["connection"] == 1


class Endless(Script):
    """Streams one DATA frame every 5 ms on /stream, until reset; with a limit of 4 streams."""

    settings = {3: 4, 4: 65535}

    def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
        if headers[b":path"] == b"/stream":
            conn.head(stream_id)
            self.tick(conn, stream_id)
        elif headers[b":path"] == b"/silent":
            pass
        elif end:
            self.complete(conn, stream_id)

    def tick(self, conn: Conn, stream_id: int) -> None:
        if stream_id in conn.open:
            conn.send(stream_id, b"token ")
            conn.later(0.005, self.tick, conn, stream_id)


@pytest.mark.parametrize("way", ["close", "cancel", "read timeout", "cancel waiting for the head", "cancel upload"])
async def test_c12_leaving_resets_the_stream_and_spares_the_connection(serve: Any, engine_for: Any, way: str) -> None:
    server = serve(NoWindow() if way == "cancel upload" else Endless())
    engine = engine_for(max_connections=1)
    if way in ("close", "cancel"):
        exchange = await engine.send(request_to(server.port, "/stream"))
        assert (await exchange.read_chunk()).startswith(b"token")
        ends: list[BaseException | None] = []
        exchange.on_end(ends.append)
        if way == "close":
            exchange.close()
            exchange.close()
        else:

            async def read() -> None:
                while True:
                    await exchange.read_chunk()

            task = asyncio.create_task(read())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert [type(end) for end in ends] == [BodyClosed]
    elif way == "read timeout":
        with pytest.raises(TransportError) as caught:
            await engine.send(request_to(server.port, "/silent", read_timeout=0.05))
        assert (caught.value.kind, caught.value.verdict) == (FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS)
    else:
        body = b"x" * 3_000_000 if way == "cancel upload" else None
        task = asyncio.create_task(engine.send(request_to(server.port, "/silent", "POST", body)))
        await server.until(lambda: server.entries("headers"))
        if body:
            await server.until(lambda: server.connections[0].sizes[1] == 65535)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (entry,) = await server.until(lambda: server.entries("reset"))
    assert entry[2:4] == (1, 8)
    for _ in range(50):
        answers = await asyncio.gather(*(echo(engine, request_to(server.port)) for _ in range(4)))
        assert {answer["connection"] for answer in answers} == {1}
    assert server.connections[0].peak <= 4
    assert engine.stats().streams == 0


class NoWindow(Endless):
    """Never gives upload credit on /silent."""

    auto_window = False

    def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
        if headers[b":path"] == b"/silent":
            # What it swallows of the connection's window is given back, so that only the stream is stuck.
            conn.machine.set_local_window_size(200_000)
        super().headers(conn, stream_id, headers, end)


async def test_cancel_at_every_turn_of_the_loop_leaks_nothing(serve: Any, engine_for: Any, certificates: Any) -> None:
    server = serve(Endless(), context=certificates.server())
    engine = engine_for(max_connections=2)
    context = certificates.client()
    for turns in range(40):
        task = asyncio.create_task(engine.send(request_to(server.port, context=context)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            exchange = await task
        except asyncio.CancelledError:
            pass
        else:
            exchange.close()
    answers = await asyncio.gather(*(echo(engine, request_to(server.port, context=context)) for _ in range(20)))
    assert len(answers) == 20
    while engine.stats().dialing:
        await asyncio.sleep(0.001)
    stats = engine.stats()
    assert (stats.streams, stats.queued) == (0, 0)
    assert stats.connections <= 2


async def test_c17_early_413_is_delivered_and_the_connection_stays(serve: Any, engine_for: Any) -> None:
    class TooLarge(Script):
        auto_window = False

        def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
            if headers[b":method"] == b"POST":
                conn.answer(stream_id, b"413", b"big")
                conn.later(0, conn.refuse, stream_id, 0)
            else:
                self.complete(conn, stream_id)

    server, engine = serve(TooLarge()), engine_for(max_connections=1)

    async def slow() -> Any:
        for _ in range(30):
            yield b"x" * 100_000

    for body in (b"x" * 3_000_000, [b"x" * 100_000] * 30, slow()):
        exchange = await engine.send(request_to(server.port, "/", "POST", body))
        assert (exchange.status, await exchange.read()) == (413, b"big")
    assert (await echo(engine, request_to(server.port)))["connection"] == 1
    assert len(server.entries("headers")) == 4


async def test_complete_answer_followed_by_no_error_reset_is_success(serve: Any, engine_for: Any) -> None:
    class Curt(Script):
        def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
            conn.answer(stream_id, body=b"fine")
            conn.later(0, conn.refuse, stream_id, 0)

        def data(self, conn: Conn, stream_id: int, data: bytes, end: bool) -> None: ...

    server, engine = serve(Curt()), engine_for()
    for _ in range(5):
        exchange = await engine.send(request_to(server.port, "/", "POST", b"{}"))
        assert (exchange.status, await exchange.read()) == (200, b"fine")


@pytest.mark.parametrize("kind", ["bytes", "list", "generator", "async generator", "tiny async chunks"])
async def test_uploads_through_small_windows(serve: Any, engine_for: Any, kind: str) -> None:
    server, engine = serve(), engine_for()
    size = 200_000 if kind == "tiny async chunks" else 30 << 20
    data = os.urandom(1 << 16) * (size >> 16) + b"tail"

    async def chunks(step: int) -> Any:
        for start in range(0, len(data), step):
            yield data[start : start + step]
            if step < 1000:
                await asyncio.sleep(0)

    step = 70_001
    body: Any = {
        "bytes": lambda: data,
        "list": lambda: [data[i : i + step] for i in range(0, len(data), step)],
        "generator": lambda: (data[i : i + step] for i in range(0, len(data), step)),
        "async generator": lambda: chunks(step),
        "tiny async chunks": lambda: chunks(97),
    }[kind]()
    answer = await echo(engine, request_to(server.port, "/", "POST", body))
    assert (answer["size"], answer["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    small = [entry for entry in server.entries("data") if 0 < entry[3] < 256]
    assert len(small) <= 40, "small chunks must be joined"


async def test_body_that_raises_fails_its_request_alone(serve: Any, engine_for: Any) -> None:
    server, engine = serve(), engine_for()

    async def broken() -> Any:
        yield b"x" * 100
        await server.until(lambda: server.entries("headers"))
        raise RuntimeError("disk gone")

    with pytest.raises(TransportError) as caught:
        await engine.send(request_to(server.port, "/", "POST", broken()))
    assert isinstance(caught.value.native, RuntimeError)
    await server.until(lambda: server.entries("reset"))
    with pytest.raises(TransportError) as caught:
        await engine.send(request_to(server.port, "/", "POST", [b"abc"], [(b"content-length", b"5")]))
    assert caught.value.kind is FailureKind.BODY
    assert (await echo(engine, request_to(server.port)))["connection"] == 1


async def test_write_timeout_when_the_window_stays_shut(serve: Any, engine_for: Any) -> None:
    class Shut(Script):
        auto_window = False

    server, engine = serve(Shut()), engine_for()
    with pytest.raises(TransportError) as caught:
        await engine.send(request_to(server.port, "/", "POST", b"x" * 1_000_000, write_timeout=0.1))
    assert caught.value.kind is FailureKind.WRITE_TIMEOUT
    await server.until(lambda: server.entries("reset"))
    assert engine.stats().window_stalls == 1


class Big(Script):
    def complete(self, conn: Conn, stream_id: int) -> None:
        path = conn.requests[stream_id][b":path"]
        conn.answer(stream_id, body=bytes(int(path[1:])) if path[1:].isdigit() else b"ok")


async def test_slow_reader_holds_back_only_itself(serve: Any, engine_for: Any) -> None:
    server, engine = serve(Big()), engine_for(max_connections=1, stream_window=100_000, connection_window=150_000)
    slow = await engine.send(request_to(server.port, "/3000000"))
    queued = server.connections[0].machine.queued_body_size
    await server.until(lambda: queued(1) == 3_000_000 - 100_000)
    for _ in range(20):
        exchange = await engine.send(request_to(server.port, "/90000"))
        assert len(await exchange.read()) == 90_000
    # Not a byte more than the window left for the stream that nobody reads.
    assert queued(1) == 3_000_000 - 100_000
    assert len(await slow.read()) == 3_000_000


async def test_closing_large_answers_early_does_not_stall(serve: Any, engine_for: Any) -> None:
    server, engine = serve(Big()), engine_for(max_connections=1, connection_window=2 << 20)
    for _ in range(40):
        exchange = await engine.send(request_to(server.port, "/1000000"))
        await exchange.read_chunk()
        exchange.close()
    for _ in range(20):
        exchange = await engine.send(request_to(server.port, "/200000"))
        assert len(await exchange.read()) == 200_000
    assert len(server.connections) == 1
    (connection,) = engine.connections()
    assert connection.machine.connection_credit() >= (2 << 20) // 2
    assert engine.stats().unread == 0


async def test_buffer_budget_holds_connections_back(serve: Any, engine_for: Any) -> None:
    engine = engine_for(max_connections=1, buffer_budget=1 << 20, connection_window=1 << 20, stream_window=1 << 20)
    server = serve(Big())
    exchanges = [await engine.send(request_to(server.port, "/1000000")) for _ in range(6)]
    connection = server.connections[0]
    await server.until(lambda: connection.machine.remote_window_size == 0)
    assert engine.stats().unread <= 3 << 20
    for exchange in exchanges:
        assert len(await exchange.read()) == 1_000_000
    assert engine.stats().unread == 0


async def test_memory_is_flat_over_a_long_stream(serve: Any, engine_for: Any) -> None:
    class Long(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            conn.head(stream_id)
            self.more(conn, stream_id, 200)

        def more(self, conn: Conn, stream_id: int, left: int) -> None:
            if conn.machine.queued_body_size(stream_id) < 1 << 20:
                conn.send(stream_id, bytes(1 << 19), end=left == 1)
                left -= 1
            if left:
                conn.later(0, self.more, conn, stream_id, left)

    server, engine = serve(Long()), engine_for(stream_window=1 << 20)
    exchange = await engine.send(request_to(server.port))
    total = most = 0
    while chunk := await exchange.read_chunk():
        total += len(chunk)
        most = max(most, exchange.unread, len(chunk))
    assert total == 200 << 19
    assert most <= 1 << 20


async def test_alpn_http1_is_told_to_the_whole_burst_and_remembered(
    serve: Any, engine_for: Any, certificates: Any
) -> None:
    server = serve(context=certificates.server("http/1.1"))
    engine, context = engine_for(), certificates.client()
    outcomes = await asyncio.gather(*(engine.send(request_to(server.port, context=context)) for _ in range(50)))
    outcomes.append(await engine.send(request_to(server.port, context=context)))
    assert all(isinstance(outcome, Http1Only) and outcome.reason == "alpn" for outcome in outcomes)
    await server.until(lambda: server.entries("lost"))
    assert len(server.connections) == 1


async def test_http_1_1_required_falls_back_and_is_remembered(serve: Any, engine_for: Any) -> None:
    class Old(Script):
        def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
            conn.refuse(stream_id, 13)

    server, engine = serve(Old()), engine_for()
    for _ in range(2):
        outcome = await engine.send(request_to(server.port, "/", "POST", b"{}"))
        assert isinstance(outcome, Http1Only)
        assert outcome.reason in ("http_1_1_required", "alpn")
    assert len(server.entries("headers")) == 1


@pytest.mark.parametrize("attack", ["ping", "settings", "headers", "continuation", "garbage"])
async def test_abuse_closes_the_connection_with_a_clear_error(serve: Any, engine_for: Any, attack: str) -> None:
    class Hostile(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            if len(conn.server.connections) > 1:
                super().complete(conn, stream_id)
            elif attack == "ping":
                conn.raw(*[frame(PING, 0, 0, bytes(8))] * 3000)
            elif attack == "settings":
                conn.raw(*[frame(4, 0, 0, struct.pack(">HI", 3, 100))] * 3000)
            elif attack == "headers":
                conn.head(stream_id, headers=[(b"x-%d" % i, b"y" * 4000) for i in range(8)])
            elif attack == "continuation":
                conn.raw(frame(HEADERS, 0, stream_id, b"\x88"), *[frame(CONTINUATION, 0, stream_id, b"\x90")] * 5000)
            else:
                conn.raw(frame(HEADERS, 4, stream_id + 1, b"\xff" * 40))

    server, engine = serve(Hostile()), engine_for(max_header_list=16384)
    with pytest.raises(TransportError) as caught:
        await fetch(engine, request_to(server.port))
    assert caught.value.kind in (FailureKind.PROTOCOL, FailureKind.RESET)
    await server.until(lambda: server.entries("lost", 1))
    assert (await echo(engine, request_to(server.port)))["connection"] == 2


async def test_flow_of_many_streams_is_not_crossed(serve: Any, engine_for: Any) -> None:
    server, engine = serve(), engine_for(max_connections=2)
    started = time.monotonic()
    bodies = [os.urandom(1000) for _ in range(300)]
    answers = await asyncio.gather(
        *(echo(engine, request_to(server.port, f"/{i}", "POST", body)) for i, body in enumerate(bodies))
    )
    for index, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        assert (answer["path"], answer["sha256"]) == (f"/{index}", hashlib.sha256(body).hexdigest())
    for connection in server.connections:
        assert sorted(connection.requests) == list(connection.requests)
    assert time.monotonic() - started < 60
