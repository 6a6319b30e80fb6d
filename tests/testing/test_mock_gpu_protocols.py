"""HTTP/1.1 and HTTP/2 as clients see them, on every engine, with and without TLS; other people's clients too."""

from __future__ import annotations

import hashlib
import shutil
import socket
import ssl
import subprocess
from typing import Any

import h2.events
import httpx
import pytest

from netkit.testing import MockGPU, expected_bytes, expected_vector, faults

ENGINES = ["ngh2", "h2"]


def verify(gpu: MockGPU) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=gpu.ca_file) if gpu.ca_file else True


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("version", ["1.1", "2"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_httpx_gets_everything(version: str, tls: bool, engine: Any, loop: Any) -> None:
    with MockGPU(tls=tls, engine=engine, loop=loop, launch_ms=0, per_item_ms=0) as gpu:
        with httpx.Client(
            http1=version == "1.1", http2=version == "2", verify=verify(gpu), base_url=gpu.url, trust_env=False
        ) as client:
            answer = client.post("/v1/embeddings", json={"input": ["a", "b"]})
            assert answer.http_version == f"HTTP/{version}"
            assert [item["embedding"] for item in answer.json()["data"]] == [
                expected_vector("a"),
                expected_vector("b"),
            ]
            assert client.get("/bytes/3000000").content == expected_bytes(3_000_000)
            assert client.get("/bytes/300000?chunked=1&gzip=1").content == expected_bytes(300_000)
            assert client.get("/bytes/300000?deflate=1").content == expected_bytes(300_000)
            upload = expected_bytes(3_000_000)
            assert client.post("/upload", content=upload).json()["sha256"] == hashlib.sha256(upload).hexdigest()
            echo = client.post("/echo?q=1", content=iter([b"a", b"b"]), headers={"X-A": "1"}).json()
            assert (echo["body"], echo["query"], echo["method"]) == ("ab", "q=1", "POST")
            assert client.head("/bytes/10").headers["content-length"] == "10"
            assert client.get("/status/204").content == b""
            assert client.get("/status/304").status_code == 304
            assert client.get("/redirect/3", follow_redirects=True).status_code == 200
            assert client.get("/trailers").text == "before the trailers"
            assert client.get("/early-hints").text == "after a hint"
            assert client.get("/digest-auth", auth=httpx.DigestAuth("user", "passwd")).status_code == 200
            assert client.get("/cookies/set?a=b").cookies["a"] == "b"
            assert client.get("/cookies").json() == {"cookies": {"a": "b"}}
            with client.stream("GET", "/stream/3?gzip=1") as events:
                assert [line for line in events.iter_lines() if line][-1] == "data: [DONE]"
        gpu.log.wait(lambda log: log.connections[0].closed is not None)
        assert len(gpu.log.connections) == 1
        assert {record.outcome for record in gpu.log.requests} == {"complete"}
        assert gpu.log.of_kind("handler_error") == []
        assert gpu.log.of_kind("protocol_error") == []


@pytest.mark.parametrize(
    ("http", "offer", "spoken"),
    [
        ("auto", ["h2", "http/1.1"], "h2"),
        ("auto", ["http/1.1"], "http/1.1"),
        ("auto", None, None),
        ("1.1", ["h2", "http/1.1"], "http/1.1"),
        ("2", ["h2", "http/1.1"], "h2"),
    ],
)
def test_alpn(http: Any, offer: list[str] | None, spoken: str | None) -> None:
    with MockGPU(http=http) as gpu:
        context = ssl.create_default_context(cafile=gpu.ca_file)
        if offer:
            context.set_alpn_protocols(offer)
        import socket

        with socket.create_connection(("127.0.0.1", gpu.port)) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as tls:
                assert tls.selected_alpn_protocol() == spoken


def test_without_tls_the_preface_decides(http1: Any, http2: Any) -> None:
    with MockGPU(tls=False) as gpu:
        assert http2(gpu).call("GET", "/health").status == 200
        assert http1(gpu).call("GET", "/health").status == 200
        assert [record.protocol for record in gpu.log.connections] == ["HTTP/2", "HTTP/1.1"]


def test_wire_order_and_case_of_headers_are_kept(http1: Any) -> None:
    sent = [("X-Zulu", "1"), ("x-alpha", "2"), ("X-Zulu", "3")]
    with MockGPU() as gpu:
        client = http1(gpu)
        client.call("GET", "/echo?a=1&a=2", headers=sent)
        record = gpu.log.requests[0]
        assert list(record.headers) == [("Host", "localhost"), *sent]
        assert (record.target, record.path, record.query) == ("/echo?a=1&a=2", "/echo", "a=1&a=2")
        assert record.header("X-ZULU") == "1"


def test_the_fast_path_and_h11_log_the_same(http1: Any) -> None:
    with MockGPU(tls=False) as gpu:
        client = http1(gpu)
        head = b"POST /echo?a HTTP/1.1\r\nHost: h\r\nX-Case: kept\r\n"
        for rest in (
            b"Content-Length: 2\r\n\r\nab",
            b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n",
            b"Connection: Keep-Alive, x\r\nContent-Length: 2\r\n\r\nab",
        ):
            client.socket.sendall(head + rest)
            assert client.socket.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        records = gpu.log.requests
        assert len(records) == 3
        for record in records:
            assert record.headers[:2] == (("Host", "h"), ("X-Case", "kept"))
            assert (record.target, record.body, record.body_complete) == ("/echo?a", b"ab", True)
            assert record.body_sha256 == hashlib.sha256(b"ab").hexdigest()
        assert len(gpu.log.connections) == 1


def test_pipelined_requests_are_answered_in_order(http1: Any) -> None:
    with MockGPU(tls=False) as gpu:
        client = http1(gpu)
        one = b"POST /echo?n=%d HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
        client.socket.sendall(
            b"".join(one % number for number in range(500)) + b"GET /delay/1 HTTP/1.1\r\nHost: h\r\n"
        )
        client.socket.sendall(b"Connection: close\r\n\r\n")
        answers = client.at_end()
        assert answers.count(b"HTTP/1.1 200 OK") == 501
        assert [record.query for record in gpu.log.requests[:3]] == ["n=0", "n=1", "n=2"]
        assert {record.body for record in gpu.log.requests[:500]} == {b"abc"}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 200_000, b"431"),
    ],
)
def test_what_is_no_http_is_refused(request_bytes: bytes, status: bytes, http1: Any) -> None:
    with MockGPU(tls=False, http="1.1") as gpu:
        client = http1(gpu)
        client.socket.sendall(request_bytes)
        try:
            answer = client.at_end()
        except ConnectionResetError:  # the rest of a head that is too long was not read
            answer = b""
        assert answer.startswith(b"HTTP/1.1 " + status) or status == b"431"
        gpu.log.wait(lambda log: log.of_kind("protocol_error"))


def test_http_1_0_and_expect_continue(http1: Any) -> None:
    with MockGPU(tls=False) as gpu:
        old = http1(gpu)
        old.socket.sendall(b"GET /stream/2 HTTP/1.0\r\n\r\n")
        answer = old.at_end()
        assert b"transfer-encoding" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")
        client = http1(gpu)
        client.socket.sendall(b"POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.socket.sendall(b"ab")
        assert b'"body":"ab"' in client.socket.recv(65536)


def test_informational_and_trailers(http1: Any, http2: Any) -> None:
    with MockGPU() as gpu:
        for client in (http1(gpu), http2(gpu)):
            hinted = client.call("GET", "/early-hints")
            assert (hinted.informational, hinted.status) == ([103], 200)
            assert client.call("GET", "/trailers").trailers == [("x-checksum", "42")]


def test_keep_alive_limits(http1: Any, http2: Any) -> None:
    with MockGPU(max_requests_per_connection=2) as gpu:
        client = http1(gpu)
        assert client.call("GET", "/health").header("connection") is None
        assert client.call("GET", "/health").header("connection") == "close"
        assert client.socket.recv(1) == b""
        streams = http2(gpu)
        assert streams.call("GET", "/health").status == 200
        assert streams.call("GET", "/health").status == 200
        streams.read(lambda c: c.fin or c.goaways)
        assert streams.goaways == [(3, 0)]
    with MockGPU(keep_alive_timeout=0.05, announce_keep_alive=True) as gpu:
        client, streams = http1(gpu), http2(gpu)
        assert client.call("GET", "/health").header("keep-alive") == "timeout=0.05"
        assert client.socket.recv(1) == b""
        streams.read(lambda c: c.goaways)
        assert gpu.log.of_kind("goaway_sent")[0].detail["debug"] == "idle"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slow_reader_holds_only_its_own_stream_back(engine: Any, http2: Any) -> None:
    with MockGPU(engine=engine) as gpu:
        client = http2(gpu, window=1000)
        slow = client.request("GET", "/bytes/5000")
        client.read(lambda c: len(c.replies[slow].body) == 1000)
        other = client.request("GET", "/status/200")
        assert client.reply(other).status == 200
        assert gpu.log.requests[0].outcome == "open"
        for _ in range(4):
            before = len(client.replies[slow].body)
            client.state.increment_flow_control_window(1000, slow)
            client.flush()
            client.read(lambda c, before=before: len(c.replies[slow].body) > before)
        client.reply(slow)
        assert client.replies[slow].body == expected_bytes(5000)
        gpu.log.wait(lambda log: log.requests[0].outcome == "complete")


@pytest.mark.parametrize("engine", ENGINES)
def test_leaving_a_stream_stops_the_work_and_shows_in_the_log(engine: Any, http2: Any, http1: Any) -> None:
    with MockGPU(engine=engine) as gpu:
        client = http2(gpu)
        stream = client.request("GET", "/stream/inf?interval_ms=1")
        client.read(lambda c: len(c.replies[stream].pieces) >= 2)
        client.state.reset_stream(stream, 8)
        client.flush()
        gpu.log.wait(lambda log: log.requests[0].ended)
        record = gpu.log.requests[0]
        assert (record.outcome, record.reset_code) == ("client_reset", 8)
        event = gpu.log.of_kind("rst_received")[0]
        assert (event.stream, event.code) == (stream, 8)
        sent = record.events_sent
        assert client.call("GET", "/health").status == 200
        assert gpu.log.requests[0].events_sent == sent
        leaver = http1(gpu)
        leaver.request("GET", "/stream/inf?interval_ms=1")
        leaver.socket.recv(100)
        leaver.close()
        gpu.log.wait(lambda log: log.requests[-1].outcome == "client_left")
        gpu.log.wait(lambda log: log.of_kind("eof", connection=2) or log.of_kind("reset", connection=2))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reset_in_the_same_breath_as_the_end_of_the_connection_is_no_error(
    engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    # RFC 7541, 6.1 and 6.2.2: POST, http and / from the static table, the authority spelled out.
    head = b"\x83\x86\x84\x01\x04test"
    begin = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        frame(4, 0, 0, b""),
        frame(1, 4, 1, head),
        frame(0, 0, 1, b"half of it"),
    ]
    end = [frame(0, 0, 1, b"more"), frame(3, 0, 1, (8).to_bytes(4, "big")), frame(7, 0, 0, bytes(8))]
    with MockGPU(engine=engine, tls=False, http="2") as gpu:
        host, _, port = gpu.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"".join(begin))
            gpu.log.wait(lambda log: log.requests)
            client.sendall(b"".join(end))
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        gpu.log.wait(lambda log: log.connections and log.connections[0].closed)
        assert gpu.log.of_kind("goaway_received")
        assert gpu.log.requests[0].outcome == "client_reset"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_streams_above_the_limit_are_refused(engine: Any, http2: Any) -> None:
    with MockGPU(engine=engine, settings={3: 2}) as gpu:
        client = http2(gpu)
        client.read(lambda c: c.settings)
        assert client.settings[0][3] == 2
        held = [client.request("GET", "/delay/60000") for _ in range(2)]
        gpu.log.wait(lambda log: len(log.requests) == 2)
        assert gpu.log.connections[0].peak_requests == len(held)
        client.state.remote_settings.update({3: 100})  # a client that does not respect it
        client.state.remote_settings.acknowledge()
        extra = client.request("GET", "/health")
        client.read(lambda c: c.goaways or c.replies[extra].reset is not None)
        assert len(gpu.log.requests) == 2


def test_streams_opened_before_the_settings_are_refused_above_the_limit(http2: Any) -> None:
    with MockGPU(settings={3: 4}, faults=[faults.DelayedSettings(seconds=0.3)]) as gpu:
        client = http2(gpu)
        streams = [client.request("GET", "/status/200") for _ in range(6)]
        replies = [client.reply(stream) for stream in streams]
        assert [reply.reset for reply in replies] == [None] * 4 + [7] * 2
        assert [reply.status for reply in replies[:4]] == [200] * 4
        assert isinstance(client.events[0], h2.events.RemoteSettingsChanged)
        assert len(gpu.log.requests) == 4
        assert [event.code for event in gpu.log.of_kind("rst_sent")] == [7, 7]


def test_ping_and_settings_at_run_time(http2: Any) -> None:
    with MockGPU() as gpu:
        client = http2(gpu)
        assert client.call("GET", "/health").status == 200
        connection = gpu.connection(1)
        connection.ping()
        connection.settings({3: 5})
        client.read(lambda c: len(c.settings) == 2)
        assert client.settings[1] == {3: 5}
        gpu.log.wait(lambda log: log.of_kind("ping_acked") and len(log.of_kind("settings_acked")) == 2)
        connection.goaway(2, 0, debug=b"enough")
        client.read(lambda c: c.goaways)
        assert client.goaways == [(0, 2)]
        client.socket.close()
        gpu.log.wait(lambda log: log.connections[0].closed)
        with pytest.raises(LookupError):
            gpu.connection(1)


def test_an_unread_upload_gets_its_answer_and_no_error(http2: Any) -> None:
    with MockGPU(max_body=1000) as gpu:
        client = http2(gpu)
        stream = client.request("POST", "/echo", b"x" * 2000, end=False)
        reply = client.reply(stream)
        assert (reply.status, reply.ended) == (413, True)
        assert b"1000" in reply.body
        client.read(lambda c: any(isinstance(event, h2.events.StreamReset) for event in c.events))
        assert reply.reset == 0
        assert client.call("GET", "/health").status == 200


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load (package nghttp2-client) is not installed")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tls", [True, False])
def test_h2load_sees_no_error(engine: Any, tls: bool) -> None:
    with MockGPU(engine=engine, tls=tls) as gpu:
        for arguments in (["-m", "10"], ["--h1"]):
            command = ["h2load", "-n", "400", "-c", "4", *arguments, gpu.url + "/bytes/1000"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            assert "400 succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout
        gpu.log.wait(lambda log: all(record.closed for record in log.connections))
        assert {record.outcome for record in gpu.log.requests} == {"complete"}
        assert len(gpu.log.requests) == 800


@pytest.mark.skipif(shutil.which("nghttp") is None, reason="nghttp (package nghttp2-client) is not installed")
@pytest.mark.parametrize("engine", ENGINES)
def test_nghttp_sees_the_frames(engine: Any) -> None:
    with MockGPU(engine=engine, settings={3: 9}) as gpu:
        command = ["nghttp", "-v", "-n", "--no-verify-peer", gpu.url + "/bytes/100000"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "SETTINGS_MAX_CONCURRENT_STREAMS(0x03):9" in done.stdout
        assert ":status: 200" in done.stdout
        assert "END_STREAM" in done.stdout
