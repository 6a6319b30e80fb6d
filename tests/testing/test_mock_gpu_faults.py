"""Every fault, seen on the client's socket and in the server's log."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import h2.events
import h2.exceptions
import pytest

from netkit.testing import MockGPU, expected_bytes, expected_vector, faults
from netkit.testing.mock_gpu import Answer, Exchange, Signal

BODY = b'{"input":["a","b","c"]}'
EMBED = ("POST", "/v1/embeddings", BODY)
OPTIONS: dict[str, Any] = {"launch_ms": 0, "per_item_ms": 0}


@pytest.fixture(params=[True, False], ids=["tls", "plain"])
def gpu(request: pytest.FixtureRequest) -> Any:
    with MockGPU(tls=request.param, **OPTIONS) as server:
        yield server
        assert server.log.of_kind("handler_error") == []


# HTTP/1.1: how a connection ends.


@pytest.mark.parametrize("fault", [faults.CloseBeforeHeaders(nth=2), faults.ResetBeforeHeaders(nth=2)])
def test_second_request_is_read_and_never_answered(fault: faults.Fault, gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(fault)
    client = http1(gpu)
    assert client.call(*EMBED).status == 200
    client.request(*EMBED)
    if isinstance(fault, faults.ResetBeforeHeaders):
        with pytest.raises(ConnectionResetError):
            client.at_end()
    else:
        assert client.at_end() == b""
    record = gpu.log.requests[1]
    assert (record.body, record.body_complete, record.outcome, record.status) == (BODY, True, "server_closed", None)
    assert gpu.log.connections[0].closed_by == ("server_reset" if fault.how == "reset" else "server")  # type: ignore[attr-defined]
    assert http1(gpu).call(*EMBED).status == 200
    assert gpu.faults.fired(fault) == 1
    assert not gpu.faults.is_active


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize(("after", "body_bytes"), [({}, 0), ({"after_bytes": 20}, 20)])
def test_answer_is_cut(how: Any, after: dict[str, int], body_bytes: int, gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.CutBody(how=how, **after))
    client = http1(gpu)
    client.request(*EMBED)
    got, ended = client.rest()
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert (ended, len(body)) == (how, body_bytes)
    assert gpu.log.requests[0].outcome == "server_closed"


def test_stream_is_cut_after_events(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.CutBody(after_events=3, how="reset"))
    client = http1(gpu)
    client.request("GET", "/stream/10")
    got, ended = client.rest()
    assert ended == "reset"
    assert got.count(b"data: ") == 3
    assert gpu.log.requests[0].events_sent == 3


def test_short_body(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.ShortBody(missing=7))
    client = http1(gpu)
    client.request("GET", "/bytes/100")
    head, _, body = client.at_end().partition(b"\r\n\r\n")
    assert b"content-length: 107" in head
    assert body == expected_bytes(100)


def test_malformed_at_head_and_body(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.Malformed(data=b"\x00nonsense"), faults.Malformed(data=b"\x00nonsense", at="body"))
    client = http1(gpu)
    client.request(*EMBED)
    assert client.at_end() == b"\x00nonsense"
    client = http1(gpu)
    client.request(*EMBED)
    assert client.at_end().endswith(b"\r\n\r\n\x00nonsense")


@pytest.mark.parametrize("how", ["fin", "reset"])
def test_idle_connection_ends_after_a_whole_answer(how: Any, gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.CloseIdle(how=how, delay=0.01))
    client = http1(gpu)
    assert client.call(*EMBED).header("connection") is None
    if how == "reset":
        with pytest.raises(ConnectionResetError):
            client.at_end()
    else:
        assert client.at_end() == b""
    assert gpu.log.requests[0].outcome == "complete"


def test_idle_connections_end_when_the_test_says_so(gpu: MockGPU, http1: Any, http2: Any) -> None:
    idle, busy, streams = http1(gpu), http1(gpu), http2(gpu)
    gate = faults.Hold(path="/health")
    gpu.faults.push(gate)
    assert idle.call("GET", "/status/200").status == 200
    assert streams.call("GET", "/status/200").status == 200
    busy.request("GET", "/health")
    gate.arrived.wait()
    assert gpu.close_connections("goaway") == 2
    assert idle.at_end() == b""
    streams.read(lambda c: c.goaways)
    gate.release()
    assert busy.reply().status == 200


def test_slow_head_and_drip(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.SlowHeaders(size=30, interval=0.001), faults.SlowDrip(size=40, interval=0.001))
    client = http1(gpu)
    reply = client.call("GET", "/bytes/200")
    assert reply.body == expected_bytes(200)
    assert gpu.log.requests[0].events_sent == 5


def test_early_response(gpu: MockGPU, http1: Any, http2: Any) -> None:
    gpu.faults.push(faults.EarlyResponse(times=2, linger=0.05))
    client = http1(gpu)
    client.socket.sendall(b"POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 30000000\r\n\r\n" + b"x" * 1000)
    reply = client.at_end()
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in reply
    assert reply.endswith(b"\r\n\r\nbig")
    gpu.log.wait(lambda log: log.connections[0].closed_by == "server_reset")
    record = gpu.log.requests[0]
    assert (record.status, record.body_complete) == (413, False)
    streams = http2(gpu)
    stream = streams.request("POST", "/upload", b"x" * 1000, end=False)
    early = streams.reply(stream)
    streams.read(lambda c: c.replies[stream].reset is not None)
    assert (early.status, early.body, early.reset) == (413, b"big", 0)
    assert streams.call("GET", "/health").status == 200


def test_black_hole(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.BlackHole(connection=1, request=2))
    client = http1(gpu)
    assert client.call("GET", "/health").status == 200
    client.request("GET", "/health")
    gpu.log.wait(lambda log: len(log.requests) == 2)
    client.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)
    received = gpu.log.connections[0].bytes_in
    client.socket.sendall(b"more that nobody reads")
    assert http1(gpu).call("GET", "/health").status == 200
    assert gpu.log.connections[0].bytes_in == received
    assert gpu.log.connections[0].closed is None


@pytest.mark.parametrize("how", ["fin", "reset"])
def test_connection_ends_on_accept(how: Any, http1: Any) -> None:
    with MockGPU(tls=False, http="1.1", faults=[faults.CloseOnAccept(how=how, nth=2)]) as gpu:
        assert http1(gpu).call("GET", "/health").status == 200
        if how == "fin":
            assert http1(gpu).at_end() == b""
        else:
            with pytest.raises(ConnectionResetError):  # connect itself may see it
                http1(gpu).at_end()
        assert http1(gpu).call("GET", "/health").status == 200


def test_accept_delay(gpu: MockGPU, http1: Any, http2: Any) -> None:
    gpu.faults.push(faults.AcceptDelay(seconds=0.03))
    assert http1(gpu).call("GET", "/health").status == 200
    assert http2(gpu).call("GET", "/health").status == 200
    assert gpu.log.requests[0].time - gpu.log.connections[0].time >= 0.025
    assert gpu.log.requests[1].time - gpu.log.connections[1].time >= 0.025


# Answers.


def test_status_sequence_then_the_servers_own(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.statuses(503, 429, 200, 500, headers={"Retry-After": "1"}, path="/v1/*"))
    client = http1(gpu)
    assert client.call("GET", "/health").status == 200
    got = [client.call(*EMBED) for _ in range(5)]
    assert [reply.status for reply in got] == [503, 429, 200, 500, 200]
    assert [reply.header("retry-after") for reply in got] == ["1", "1", None, "1", None]
    assert json.loads(got[0].body)["error"]["message"] == "scripted status 503"


def test_status_with_a_body_of_its_own(gpu: MockGPU, http2: Any) -> None:
    gpu.faults.push(faults.Status(502, body="<html>", headers=[("a", "1"), ("a", "2")]), faults.Status(204))
    client = http2(gpu)
    reply = client.call(*EMBED)
    assert (reply.status, reply.body, reply.all("a")) == (502, b"<html>", ["1", "2"])
    assert client.call(*EMBED).status == 204


def test_latencies_are_drawn_from_the_seed() -> None:
    uniform = [faults.Latency(uniform=(0.1, 0.2), seed=7) for _ in range(2)]
    draws = [[fault.draw() for _ in range(50)] for fault in uniform]
    assert draws[0] == draws[1]
    assert all(0.1 <= draw <= 0.2 for draw in draws[0])
    tail = faults.Latency(lognormal=(0.1, 0.5), seed=1)
    sample = sorted(tail.draw() for _ in range(1001))
    assert 0.08 < sample[500] < 0.12
    assert sample[-1] > 0.25
    assert faults.Latency(seconds=0.5).draw() == 0.5


def test_latency_delays_and_lets_the_next_fault_follow(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.Latency(seconds=0.02), faults.Status(503))
    client = http1(gpu)
    assert [client.call(*EMBED).status for _ in range(2)] == [503, 200]
    assert all(r.first_byte is not None and r.first_byte - r.time >= 0.015 for r in gpu.log.requests)
    assert [event.detail["name"] for event in gpu.log.of_kind("fault")] == ["Latency", "Status", "Latency"]


def test_hold_gives_the_test_the_say(gpu: MockGPU, http1: Any) -> None:
    gate = faults.Hold(times=2)
    gpu.faults.push(gate)
    clients = [http1(gpu) for _ in range(3)]
    for client in clients[:2]:
        client.request(*EMBED)
    gate.wait_for(2)
    assert clients[2].call(*EMBED).status == 200
    assert [record.outcome for record in gpu.log.requests] == ["open", "open", "complete"]
    gate.release_one(1)
    gpu.log.wait(lambda log: log.requests[1].outcome == "complete" or log.requests[0].outcome == "complete")
    gate.release()
    for client in clients[:2]:
        assert json.loads(client.reply().body)["data"][0]["embedding"] == expected_vector("a")


def test_hold_after_the_head(gpu: MockGPU, http2: Any) -> None:
    gate = faults.Hold(at="head")
    gpu.faults.push(gate)
    client = http2(gpu)
    stream = client.request(*EMBED)
    client.read(lambda c: c.replies[stream].status == 200)
    gate.arrived.wait()
    assert client.replies[stream].body == b""
    gate.release()
    assert client.reply(stream).ended


async def test_hold_from_a_task(gpu: MockGPU) -> None:
    import asyncio

    gate = faults.Hold()
    gpu.faults.push(gate)
    if gpu.options.tls:
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", gpu.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
    await gate.wait_for_async(1)
    gate.release()
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


def test_hold_that_nobody_releases_ends_with_the_server(http1: Any) -> None:
    gate = faults.Hold()
    with MockGPU(faults=[gate], tls=False) as gpu:
        client = http1(gpu)
        client.request("GET", "/health")
        gate.arrived.wait()
        with pytest.raises(TimeoutError):
            gate.wait_for(2, timeout=0.01)
    assert gpu.log.requests[0].outcome == "server_closed"


@pytest.mark.parametrize(
    ("fault", "indices"),
    [
        (faults.Data(order="reversed"), [2, 1, 0]),
        (faults.Data(drop=(1,)), [0, 2]),
        (faults.Data(duplicate=(0,)), [0, 1, 2, 0]),
        (faults.Data(extra=1), [0, 1, 2, 3]),
        (faults.Data(without_index=True), [None, None, None]),
    ],
)
def test_embedding_data_that_is_not_what_was_asked_for(
    fault: faults.Data, indices: list[int | None], gpu: MockGPU, http1: Any
) -> None:
    gpu.faults.push(fault)
    data = json.loads(http1(gpu).call(*EMBED).body)["data"]
    assert [item.get("index") for item in data] == indices
    for item in data:
        if item.get("index") in (0, 1, 2):
            assert item["embedding"] == expected_vector("abc"[item["index"]])


def test_data_of_a_bare_list(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.Data(order="reversed", drop=(0,)))
    answer = json.loads(http1(gpu).call("POST", "/embed", b'{"inputs":["a","b","c"]}').body)
    assert answer == [expected_vector("c"), expected_vector("b")]


def test_edit(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.Edit(change=lambda answer: replace(answer, headers=[*answer.headers, ("x-extra", "1")])))
    reply = http1(gpu).call(*EMBED)
    assert (reply.status, reply.header("x-extra")) == (200, "1")


def test_rate_limit(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.RateLimit(allowed=2, seconds=3600))
    client = http1(gpu)
    got = [client.call(*EMBED) for _ in range(4)]
    assert [reply.status for reply in got] == [200, 200, 429, 429]
    assert got[2].header("retry-after") == "3600"
    gpu.script(faults.RateLimit(allowed=1, seconds=0.01))
    assert client.call(*EMBED).status == 200
    assert client.call(*EMBED).status == 429
    statuses = []
    while 200 not in statuses:  # the period ends by itself
        statuses.append(client.call(*EMBED).status)
    assert set(statuses) <= {429, 200}


def test_oversize_headers_on_http1(gpu: MockGPU, http1: Any) -> None:
    gpu.faults.push(faults.OversizeHeaders(size=50_000, field_size=1000))
    client = http1(gpu)
    client.request("GET", "/health")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.socket.recv(65536)
    assert len(head) > 50_000


# HTTP/2.


@pytest.fixture(params=["ngh2", "h2"])
def gpu2(request: pytest.FixtureRequest) -> Any:
    with MockGPU(engine=request.param, http="2", **OPTIONS) as server:
        yield server
        assert server.log.of_kind("handler_error") == []


@pytest.mark.parametrize("code", [7, 8, 2, 11])
@pytest.mark.parametrize("at", ["request", "body", "head", "events"])
def test_reset_stream(code: int, at: Any, gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.ResetStream(code=code, at=at))
    client = http2(gpu2)
    reply = client.call(*EMBED)
    assert reply.reset == code
    assert reply.status == (200 if at in ("head", "events") else 0)
    assert bool(reply.body) == (at == "events")
    assert client.call(*EMBED).status == 200
    record = gpu2.log.requests[0]
    assert (record.outcome, record.reset_code) == ("server_reset", code)
    assert [(event.stream, event.code) for event in gpu2.log.of_kind("rst_sent")] == [(1, code)]
    assert len(gpu2.log.connections) == 1


@pytest.mark.parametrize("last", [0, 1, None])
def test_goaway_with_any_last_stream(last: int | None, gpu2: MockGPU, http2: Any) -> None:
    gate = faults.Hold(path="/status/200", times=None)
    gpu2.faults.push(faults.GoAway(request=3, last_stream=last, code=0, debug=b"bye"), gate)
    client = http2(gpu2)
    client.read(lambda c: c.settings)
    streams = [client.request("GET", "/status/200") for _ in range(2)]
    gate.wait_for(2)
    streams.append(client.request("GET", "/status/200"))
    client.read(lambda c: c.goaways)
    said = 5 if last is None else last
    assert client.goaways == [(said, 0)]
    gate.release()
    answered = [stream for stream in streams if stream <= said]
    for stream in answered:
        assert client.reply(stream).status == 200
    client.read(lambda c: c.fin)
    outcomes = [record.outcome for record in gpu2.log.requests]
    assert outcomes == ["complete" if stream <= said else "refused_by_goaway" for stream in streams]
    event = gpu2.log.of_kind("goaway_sent")[0]
    assert (event.code, event.detail) == (0, {"last_stream": said, "debug": "bye"})


def test_rolling_goaway_of_every_connection(gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.GoAway(request=3, times=None))
    for _ in range(2):
        client = http2(gpu2)
        assert [client.call("GET", "/health").status for _ in range(3)] == [200] * 3
        client.read(lambda c: c.fin)
        assert client.goaways == [(5, 0)]
    assert len(gpu2.log.requests) == 6


def test_goaway_in_two_steps_keeps_what_came_between(gpu2: MockGPU, http2: Any) -> None:
    second_step = Signal()
    gpu2.faults.push(faults.GoAway(two_step=True, until=second_step, then="keep"))
    client = http2(gpu2)
    first = client.request("GET", "/health")
    client.read(lambda c: c.goaways)
    assert client.goaways == [(2**31 - 1, 0)]
    between = client.request("GET", "/health")
    assert client.reply(between).status == 200
    second_step.set()
    assert client.reply(first).status == 200
    assert client.goaways[1] == (between, 0)
    late = client.request("GET", "/health")
    client.state.ping(b"12345678")
    client.flush()
    client.read(lambda c: any(isinstance(event, h2.events.PingAckReceived) for event in c.events))
    assert client.replies[late].status == 0
    assert len(gpu2.log.requests) == 2


def test_settings_change_with_streams_in_flight(gpu2: MockGPU, http2: Any) -> None:
    gate = faults.Hold(path="/status/200", times=2)
    gpu2.faults.push(faults.SettingsChange(settings={3: 1}, nth=2), gate)
    client = http2(gpu2)
    client.read(lambda c: c.settings)
    streams = [client.request("GET", "/status/200") for _ in range(2)]
    gate.wait_for(2)
    client.read(lambda c: len(c.settings) == 2)
    assert client.settings[1] == {3: 1}
    gpu2.log.wait(lambda log: len(log.of_kind("settings_acked")) == 2)
    assert {record.outcome for record in gpu2.log.requests} == {"open"}
    gate.release()
    assert [client.reply(stream).status for stream in streams] == [200, 200]
    sent = [event.detail["settings"] for event in gpu2.log.of_kind("settings_sent")]
    assert sent[1] == {3: 1}


def test_delayed_settings(gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.DelayedSettings(seconds=0.3, settings={3: 9}))
    client = http2(gpu2)
    stream = client.request("GET", "/health")
    assert client.reply(stream).status == 200
    assert client.settings[0][3] == 9
    accepted = gpu2.log.of_kind("accepted")[0]
    assert gpu2.log.of_kind("settings_sent")[0].time - accepted.time >= 0.25
    assert gpu2.log.requests[0].time < gpu2.log.of_kind("settings_sent")[0].time


def test_stalled_window(gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.StalledWindow(initial=1000))
    client = http2(gpu2)
    client.read(lambda c: c.settings)
    stream = client.request("POST", "/upload", b"x" * 1000, end=False)
    gpu2.log.wait(lambda log: log.requests and log.requests[0].body_size == 1000)
    assert client.call("GET", "/health").status == 200
    assert client.state.local_flow_control_window(stream) == 0
    assert gpu2.log.of_kind("window_sent") == []


def test_ping_unanswered(gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.PingUnanswered(times=1))
    silent, other = http2(gpu2), http2(gpu2)
    for client in (silent, other):
        client.state.ping(b"12345678")
        client.flush()
        assert client.call("GET", "/health").status == 200
    gpu2.log.wait(lambda log: len(log.of_kind("ping_received")) == 2)
    assert not any(isinstance(event, h2.events.PingAckReceived) for event in silent.events)
    other.read(lambda c: any(isinstance(event, h2.events.PingAckReceived) for event in c.events))
    assert [event.connection for event in gpu2.log.of_kind("ping_answered")] == [2]


@pytest.mark.parametrize("kind", ["ping", "settings"])
def test_floods(kind: Any, gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.Flood(kind=kind, count=1200))
    client = http2(gpu2)
    assert client.call("GET", "/health").status == 200
    expected = 1200 if kind == "ping" else 1201
    assert len(gpu2.log.of_kind(f"{kind}_sent")) == expected
    assert client.call("GET", "/health").status == 200


def test_empty_data_flood(gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.Flood(kind="empty_data", count=1000))
    client = http2(gpu2)
    stream = client.request("GET", "/health")
    client.read(lambda c: len(c.replies[stream].pieces) == 1000)
    client.state.reset_stream(stream, 11)
    client.flush()
    gpu2.log.wait(lambda log: log.requests[0].outcome == "client_reset")


def test_oversize_headers(gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.OversizeHeaders(size=200_000))
    client = http2(gpu2)
    client.request("GET", "/health")
    with pytest.raises(h2.exceptions.ProtocolError):
        client.read(lambda c: False)


def test_continuation_flood(gpu2: MockGPU, http2: Any) -> None:
    gpu2.faults.push(faults.ContinuationFlood(count=2000))
    client = http2(gpu2)
    client.request("GET", "/health")
    with pytest.raises(h2.exceptions.ProtocolError):
        client.read(lambda c: False)


def test_http2_faults_on_http1_are_errors_that_the_log_shows(http1: Any) -> None:
    with MockGPU(tls=False, faults=[faults.ResetStream()]) as gpu:
        client = http1(gpu)
        client.request("GET", "/health")
        with pytest.raises(ConnectionResetError):
            client.at_end()
        assert "does not speak HTTP/2" in gpu.log.of_kind("handler_error")[0].detail["error"]


# The script.


def test_conditions(gpu: MockGPU, http1: Any) -> None:
    when: Callable[[Exchange], object] = lambda exchange: exchange.header("x-pick") == "yes"  # noqa: E731
    gpu.faults.push(
        faults.Status(501, path="/v1/*", method="POST", nth=2, times=2),
        faults.Status(502, when=when),
        faults.Status(503, connection=2, request=2),
    )
    first, second = http1(gpu), http1(gpu)
    assert [first.call(*EMBED).status for _ in range(4)] == [200, 501, 501, 200]
    assert first.call("GET", "/health", headers=[("X-Pick", "yes")]).status == 502
    assert [second.call("GET", "/health").status for _ in range(3)] == [200, 503, 200]
    assert not gpu.faults.is_active


def test_remove_clear_and_replace(gpu: MockGPU, http1: Any) -> None:
    client = http1(gpu)
    always = faults.Status(503, times=None)
    gpu.faults.push(always)
    assert [client.call("GET", "/health").status for _ in range(3)] == [503] * 3
    assert gpu.faults.fired(always) == 3
    gpu.faults.remove(always)
    assert client.call("GET", "/health").status == 200
    gpu.script([faults.Status(500), [faults.Status(501)]])
    assert len(gpu.faults) == 2
    gpu.faults.clear()
    assert client.call("GET", "/health").status == 200
    with pytest.raises(TypeError):
        gpu.faults.push("503")  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Teapot(faults.Fault):
    """What a third party writes."""

    async def run(self, exchange: Exchange, proceed: faults.Proceed) -> None:
        await exchange.body.wait()
        await faults.respond(exchange, Answer.text("short and stout", 418))


def test_a_fault_of_ones_own_and_a_route_of_ones_own(gpu: MockGPU, http1: Any, http2: Any) -> None:
    gpu.faults.push(Teapot(path="/x", times=2))

    def mine(exchange: Exchange) -> Answer:
        return Answer.json({"got": exchange.json(), "rest": exchange.path})

    gpu.route("/mine/*", mine, methods=("POST",))
    for client in (http1(gpu), http2(gpu)):
        assert client.call("POST", "/x", b"{}").status == 418
        assert json.loads(client.call("POST", "/mine/a", b"[1]").body) == {"got": [1], "rest": "/mine/a"}
        assert client.call("GET", "/mine/a").status == 405


def test_a_broken_handler_is_a_500_with_its_traceback_in_the_log(http1: Any) -> None:
    def broken(exchange: Exchange) -> Answer:
        raise KeyError("mine")

    with MockGPU(tls=False) as gpu:
        gpu.route("/broken", broken)
        assert http1(gpu).call("GET", "/broken").status == 500
        assert "in broken" in gpu.log.of_kind("handler_error")[0].detail["error"]


def test_pushes_from_other_threads_are_each_met_once(gpu: MockGPU, http1: Any) -> None:
    def push() -> None:
        for _ in range(50):
            gpu.faults.push(faults.Status(503))

    threads = [threading.Thread(target=push) for _ in range(4)]
    client = http1(gpu)
    for thread in threads:
        thread.start()
    seen = [client.call("GET", "/health").status for _ in range(50)]
    for thread in threads:
        thread.join()
    seen += [client.call("GET", "/health").status for _ in range(250)]
    assert seen.count(503) == 200
