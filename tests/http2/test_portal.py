"""Threads, loops and processes on one engine."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from netkit.errors import BodyClosed, FailureKind, TransportError, Verdict
from netkit.http2 import Engine, Http1Only, Http2Options, SyncEngine
from netkit.http2.portal import portal
from netkit.http2.protocol import Code
from netkit.runtime import Threads
from tests.http2.scripted import Conn, Script, request_to
from tests.http2.test_exchanges import Big, Endless, echo
from tests.http2.test_pool import Held


def call(engine: Any, request: Any) -> dict[str, Any]:
    exchange = engine.send(request)
    assert exchange.status == 200
    result: dict[str, Any] = json.loads(exchange.read())
    return result


def in_threads(count: int, work: Any) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_get_post_and_stream(serve: Any, sync_engine_for: Any, certificates: Any) -> None:
    server, engine, context = serve(context=certificates.server()), sync_engine_for(), certificates.client()
    body = os.urandom(500_000)
    answer = call(engine, request_to(server.port, "/x", "POST", body, context=context))
    assert answer["sha256"] == hashlib.sha256(body).hexdigest()
    chunks = [body[i : i + 997] for i in range(0, len(body), 997)]
    for stream in (chunks, iter(chunks), (chunk for chunk in chunks)):
        answer = call(engine, request_to(server.port, "/x", "POST", stream, context=context))
        assert (answer["size"], answer["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert len(server.connections) == 1


def test_streamed_upload_of_30_mb_with_bounded_memory(serve: Any, sync_engine_for: Any) -> None:
    server, engine = serve(), sync_engine_for()
    digest = hashlib.sha256()

    def chunks() -> Any:
        for _ in range(480):
            chunk = os.urandom(1 << 16)
            digest.update(chunk)
            yield chunk

    answer = call(engine, request_to(server.port, "/", "POST", chunks()))
    assert (answer["size"], answer["sha256"]) == (480 << 16, digest.hexdigest())


def test_streamed_body_is_reopened_when_the_server_goes_away(serve: Any, sync_engine_for: Any) -> None:
    class Going(Script):
        def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
            if conn.number == 1:
                conn.goaway(0)

        def complete(self, conn: Conn, stream_id: int) -> None:
            if conn.number > 1:
                super().complete(conn, stream_id)

    server, engine = serve(Going()), sync_engine_for()
    body = [os.urandom(10_000) for _ in range(100)]
    answer = call(engine, request_to(server.port, "/", "POST", iter(body), reopen=lambda: iter(body)))
    assert answer["sha256"] == hashlib.sha256(b"".join(body)).hexdigest()
    once = request_to(serve(Going()).port, "/", "POST", iter(body))
    with pytest.raises(TransportError) as caught:
        sync_engine_for().send(once)
    assert caught.value.verdict is Verdict.REFUSED


def test_body_that_raises_reaches_its_caller(serve: Any, sync_engine_for: Any) -> None:
    def broken() -> Any:
        yield b"x"
        raise RuntimeError("disk gone")

    server, engine = serve(), sync_engine_for()
    with pytest.raises(RuntimeError, match="disk gone"):
        engine.send(request_to(server.port, "/", "POST", broken()))
    assert call(engine, request_to(server.port))["connection"] == 1


def test_early_413_of_a_streamed_upload(serve: Any, sync_engine_for: Any) -> None:
    class TooLarge(Script):
        auto_window = False

        def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
            conn.answer(stream_id, b"413", b"big")
            conn.later(0, conn.refuse, stream_id, 0)

    server, engine = serve(TooLarge()), sync_engine_for()
    exchange = engine.send(request_to(server.port, "/", "POST", (b"x" * 65536 for _ in range(480))))
    assert (exchange.status, exchange.read()) == (413, b"big")


def test_leaving_and_timeouts(serve: Any, sync_engine_for: Any) -> None:
    server, engine = serve(Endless()), sync_engine_for()
    exchange = engine.send(request_to(server.port, "/stream"))
    assert exchange.read_chunk().startswith(b"token")
    ends: list[BaseException | None] = []
    exchange.on_end(ends.append)
    exchange.close()
    exchange.close()
    server.wait(lambda: server.entries("reset"))
    assert [type(end) for end in ends] == [BodyClosed]
    with pytest.raises(TransportError) as caught:
        engine.send(request_to(server.port, "/silent", read_timeout=0.05))
    assert (caught.value.kind, caught.value.verdict) == (FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS)
    # h2 also answers what was on its way to a stream that was left, with STREAM_CLOSED.
    server.wait(lambda: [entry[2] for entry in server.entries("reset") if entry[3] == Code.CANCEL] == [1, 3])
    assert call(engine, request_to(server.port))["connection"] == 1
    assert engine.stats().streams == 0


def test_work_that_is_cancelled_before_it_waits_leaves_no_stream(serve: Any, sync_engine_for: Any) -> None:
    server, engine = serve(Endless()), sync_engine_for()
    assert call(engine, request_to(server.port))["connection"] == 1
    started, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        cancelled.wait(10)
        engine.send(request_to(server.port, "/silent"))

    job = Threads().spawn(work(), name="cancelled-early")
    assert started.wait(10)
    job.cancel()
    cancelled.set()
    job._thread.join(10)
    assert job.done()
    # What was handed over before this call has been done when it is answered.
    assert call(engine, request_to(server.port))["connection"] == 1
    assert engine.stats().streams == 0


def test_read_timeout_in_mid_body(serve: Any, sync_engine_for: Any) -> None:
    class Half(Script):
        def complete(self, conn: Conn, stream_id: int) -> None:
            conn.head(stream_id)
            conn.send(stream_id, b"half")

    server, engine = serve(Half()), sync_engine_for()
    exchange = engine.send(request_to(server.port))
    assert exchange.read_chunk() == b"half"
    with pytest.raises(TransportError) as caught:
        exchange.read_chunk(0.05)
    assert caught.value.kind is FailureKind.READ_TIMEOUT
    server.wait(lambda: server.entries("reset"))


def test_large_answers_flow(serve: Any, sync_engine_for: Any) -> None:
    server, engine = serve(Big()), sync_engine_for(stream_window=1 << 17, connection_window=1 << 18)

    def work(number: int) -> None:
        for _ in range(3):
            assert len(engine.send(request_to(server.port, "/1000000")).read()) == 1_000_000

    in_threads(8, work)
    server.wait(lambda: engine.stats().unread == 0)


def test_http1_is_remembered(serve: Any, sync_engine_for: Any, certificates: Any) -> None:
    server = serve(context=certificates.server("http/1.1"))
    engine, context = sync_engine_for(), certificates.client()
    outcomes: list[Any] = []
    in_threads(8, lambda _: outcomes.append(engine.send(request_to(server.port, context=context))))
    assert all(isinstance(outcome, Http1Only) for outcome in outcomes)
    server.wait(lambda: server.entries("lost"))
    assert len(server.connections) == 1


def test_connect_refused_is_named(sync_engine_for: Any) -> None:
    with pytest.raises(TransportError) as caught:
        sync_engine_for().send(request_to(1))
    assert (caught.value.kind, caught.value.verdict) == (FailureKind.CONNECT, Verdict.NOT_SENT)


@pytest.mark.storm
@pytest.mark.parametrize("seed", [1, 2])
def test_storm_of_threads(serve: Any, sync_engine_for: Any, seed: int) -> None:
    rng = random.Random(seed)

    class Stormy(Script):
        settings = {3: 6}

        def complete(self, conn: Conn, stream_id: int) -> None:
            dice = rng.random()
            if dice < 0.05:
                conn.refuse(stream_id, rng.choice([2, 7]))
            elif dice < 0.06:
                conn.goaway(0)
                conn.later(0.02, conn.close)
            elif dice < 0.2:
                conn.later(rng.random() * 0.03, lambda: conn.answer(stream_id, body=conn.echo(stream_id)))
            else:
                super().complete(conn, stream_id)

    server, engine = serve(Stormy()), sync_engine_for(max_connections=3)
    deadline = time.monotonic() + 2
    counts = [0, 0]

    def work(number: int) -> None:
        mine = random.Random(seed * 100 + number)
        turn = 0
        while time.monotonic() < deadline:
            turn += 1
            body: Any = os.urandom(mine.choice([1, 5000, 100_000]))
            digest = hashlib.sha256(body).hexdigest()
            if mine.random() < 0.3:
                body = iter([body[:100], body[100:]])
            path = f"/{number}/{turn}"
            try:
                request = request_to(server.port, path, "POST", body, read_timeout=mine.choice([0.02, 20]))
                exchange = engine.send(request)
                if mine.random() < 0.2:
                    exchange.close()
                    continue
                answer = json.loads(exchange.read())
                assert (answer["path"], answer["sha256"]) == (path, digest)
                counts[0] += 1
            except TransportError:
                counts[1] += 1

    in_threads(16, work)
    assert counts[0] > 50, counts
    server.wait(lambda: engine.stats().dialing == 0)
    server.wait(lambda: (engine.stats().streams, engine.stats().queued) == (0, 0))
    engine.close()
    server.wait(lambda: len(server.entries("lost")) == len(server.connections))


def test_c75_several_runs_in_turn_and_loops_at_once(serve: Any, machine: str) -> None:
    server = serve()
    engine = Engine(Http2Options(machine=machine, acquire_timeout=20.0))
    numbers = [asyncio.run(echo(engine, request_to(server.port)))["connection"] for _ in range(5)]
    assert numbers == [1, 2, 3, 4, 5]
    server.wait(lambda: len(server.entries("lost")) == 5)

    # A loop that is closed without asyncio.run's good manners.
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(echo(engine, request_to(server.port)))["connection"] == 6
    loop.close()

    async def fifty() -> None:
        answers = await asyncio.gather(*(echo(engine, request_to(server.port, f"/{i}")) for i in range(50)))
        assert [answer["path"] for answer in answers] == [f"/{i}" for i in range(50)]

    in_threads(4, lambda _: asyncio.run(fifty()))
    server.wait(lambda: len(server.entries("lost")) == len(server.connections))
    assert len(server.connections) == 10
    engine.close()
    gc.collect()


def test_c76_forked_children_start_fresh(serve: Any, sync_engine_for: Any, certificates: Any) -> None:
    server, context = serve(context=certificates.server()), certificates.client()
    engine = sync_engine_for()
    assert call(engine, request_to(server.port, "/parent", context=context))["connection"] == 1

    def two_hundred(name: str) -> set[int]:
        numbers = set()
        for index in range(200):
            path = f"/{name}/{index}"
            answer = call(engine, request_to(server.port, path, "POST", path.encode(), context=context))
            assert answer["path"] == path
            numbers.add(answer["connection"])
        return numbers

    seen: list[set[int]] = []
    parent = threading.Thread(target=lambda: seen.append(two_hundred("parent")))
    parent.start()
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if 1 not in two_hundred(f"child{number}") else 2
                engine.close()
            finally:
                os._exit(code)
        children.append(pid)
    for pid in children:
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    parent.join(60)
    assert seen == [{1}]
    assert call(engine, request_to(server.port, context=context))["connection"] == 1
    assert not server.entries("goaway", 1)
    assert not server.entries("lost", 1)
    assert len(server.connections) == 5


SCRIPT = """
import signal, sys, threading, time, _thread
# A run in the background is born with SIGINT ignored, and would hand that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {root!r})
from netkit.http2 import SyncEngine
from tests.http2.scripted import request_to
engine = SyncEngine()
{body}
"""


def run_python(body: str, **extra: Any) -> subprocess.Popen[str]:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT.format(root=root, body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **extra,
    )


def test_interpreter_exit_is_silent_and_closes_connections(serve: Any) -> None:
    server = serve()
    with run_python(f"print(engine.send(request_to({server.port})).status)") as process:
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("200\n", "", 0)
    server.wait(lambda: server.entries("goaway"))


def test_ctrl_c_interrupts_a_wait_and_resets_the_stream(serve: Any) -> None:
    server = serve(Held())
    body = (
        f"try:\n    engine.send(request_to({server.port}, read_timeout=None))\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n    time.sleep(0.3)\n"
    )
    with run_python(body) as process:
        server.wait(lambda: server.entries("headers"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
    assert server.entries("reset")


def test_a_burst_wakes_the_loop_once(serve: Any, sync_engine_for: Any) -> None:
    server, engine = serve(Held()), sync_engine_for()
    loop, ring, wakes = portal().loop, portal()._ring, list[int]()
    assert ring is not None
    portal()._ring = lambda: (wakes.append(1), ring())[1]
    block = threading.Event()
    try:
        loop.call_soon_threadsafe(block.wait)
        threads = [threading.Thread(target=call, args=(engine, request_to(server.port, f"/{i}"))) for i in range(20)]
        for thread in threads:
            thread.start()
        while len(portal()._inbox) < 20:
            time.sleep(0.001)
    finally:
        block.set()
        portal()._ring = ring
    assert len(wakes) == 1
    server.wait(lambda: len(server.entries("headers")) == 20)
    conn = server.connections[0]
    server.call(lambda: [conn.answer(sid, body=conn.echo(sid)) for sid in list(conn.open)])
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("finish_open", [False, True])
def test_closing_lets_open_exchanges_finish_where_that_is_asked_for(
    serve: Any, machine: str, finish_open: bool
) -> None:
    server = serve(Held())
    engine = SyncEngine(Http2Options(machine=machine, connect_timeout=20.0), finish_open=finish_open)
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(engine.send(request_to(server.port)).read())
        except TransportError as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    server.wait(lambda: server.entries("headers"))
    engine.close()
    engine.close()
    if finish_open:
        assert not server.entries("lost")
        server.call(lambda: server.connections[0].answer(1))
    asking.join(20)
    server.wait(lambda: server.entries("lost"))
    if finish_open:
        assert answers == [b"ok"]
    else:
        assert isinstance(answers[0], TransportError)
    with pytest.raises(TransportError, match="closed"):
        engine.send(request_to(server.port))


def test_an_idle_engine_is_closed_when_close_returns(serve: Any, machine: str) -> None:
    server = serve()
    engine = SyncEngine(Http2Options(machine=machine, connect_timeout=20.0), finish_open=True)
    assert call(engine, request_to(server.port))["connection"] == 1
    engine.close()
    assert engine.stats().connections == 0
    server.wait(lambda: server.entries("lost"))


def test_what_was_handed_over_before_a_close_is_served_after_it(serve: Any, machine: str) -> None:
    server = serve()
    engine = SyncEngine(Http2Options(machine=machine, connect_timeout=20.0), finish_open=True)
    assert call(engine, request_to(server.port))["connection"] == 1
    block, answers = threading.Event(), list[Any]()
    portal().loop.call_soon_threadsafe(block.wait)
    closing = threading.Thread(target=engine.close, args=(20.0,))
    closing.start()
    while not portal()._inbox:
        time.sleep(0.001)
    asking = threading.Thread(target=lambda: answers.append(call(engine, request_to(server.port, "/late"))))
    asking.start()
    while len(portal()._inbox) < 2:
        time.sleep(0.001)
    block.set()
    asking.join(20)
    closing.join(20)
    assert answers[0]["path"] == "/late"
    server.wait(lambda: len(server.entries("lost")) == len(server.connections))
