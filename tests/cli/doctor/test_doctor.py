"""`netkit doctor` against the mock: what it finds is what the server was told to be, and it keeps its promise."""

from __future__ import annotations

import json
import re
import socket
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import netkit
from netkit.cli import main
from netkit.config import Config
from netkit.http2 import protocol
from netkit.testing import MockGPU, expected_vector, faults
from netkit.testing.mock_gpu import Answer, Exchange

SECRET = "Bearer sk-very-secret-0123456789"


def doctor(gpu: MockGPU, capsys: pytest.CaptureFixture[str], *more: str, path: str = "/v1") -> tuple[int, Any, str]:
    trust = ["--ca", gpu.ca_file] if gpu.ca_file else []
    code = main(["doctor", gpu.url + path, "--idle", "0", "--json", *trust, *more])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def promised(told: str) -> int:
    found = re.search(r"up to (\d+) requests", told)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("machine", ["ngh2", "h2"])
def test_what_an_http2_server_is(
    machine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(protocol, "MACHINES", {machine: protocol.MACHINES[machine]})
    settings = {3: 5, 4: 131072, 5: 32768, 6: 9000}
    with MockGPU(settings=settings, rtt_ms=20, connection_window=1 << 20) as gpu:
        code, found, told = doctor(gpu, capsys)
        assert code == 0
        assert found["requests"] == len(gpu.log.requests) <= promised(told)
    assert (found["alpn"], found["tls_version"], found["verified"]) == ("h2", "TLSv1.3", True)
    assert found["http2"] | {"ping": 0} == {
        "max_streams": 5,
        "stream_window": 131072,
        "connection_window": 1 << 20,
        "max_frame": 32768,
        "max_header_list": 9000,
        "ping": 0,
    }
    assert found["http2"]["ping"] >= 0.02
    assert found["http1"]["keep_alive"] is True
    assert found["batching"]["route"] == "/v1/embeddings"
    assert (found["batching"]["works"], found["batching"]["largest"], found["batching"]["named"]) == (True, 32, 32)
    assert found["upload"] == {"status": 413, "ends": "resets"}
    assert "max_connections = 26" in found["block"]


def test_what_an_http1_server_is(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(http="1.1", keep_alive_timeout=2, announce_keep_alive=True, max_batch=7) as gpu:
        code, found, told = doctor(gpu, capsys, path="")
        assert code == 0
        assert found["requests"] == len(gpu.log.requests) <= promised(told)
    assert (found["alpn"], found["http2"]) == ("http/1.1", None)
    assert (found["http1"]["version"], found["http1"]["keep_alive"], found["http1"]["timeout"]) == (
        "HTTP/1.1",
        True,
        2,
    )
    assert (found["batching"]["largest"], found["batching"]["named"]) == (7, 7)
    assert found["upload"] == {"status": 413, "ends": "closes"}
    assert "http2 = false" in found["block"]
    assert "idle_timeout = 1.6" in found["block"]
    assert "max_items = 7" in found["block"]


def test_a_server_that_closes_after_each_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(http="1.1", max_requests_per_connection=1) as gpu:
        code, found, _ = doctor(gpu, capsys)
    assert (code, found["http1"]["keep_alive"]) == (0, False)
    assert found["batching"]["largest"] == 32


@pytest.mark.parametrize("how", ["fin", "goaway"])
def test_the_idle_wait_ends_when_the_server_hangs_up(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    http = "2" if how == "goaway" else "1.1"
    with MockGPU(http=http, keep_alive_timeout=0.5) as gpu:  # type: ignore[arg-type]
        code, found, _ = doctor(gpu, capsys, "--idle", "30", "--no-batches", "--no-upload")
    assert code == 0
    ((_, (seconds, _)),) = found["idle"].items()
    assert 0.3 < seconds < 10
    assert found["seconds"] < 20


def test_prior_knowledge_without_tls(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(tls=False) as gpu:
        code, found, told = doctor(gpu, capsys)
        assert found["requests"] >= len(gpu.log.requests)
    assert promised(told) >= found["requests"]
    assert (code, found["prior_knowledge"], found["tls_version"]) == (0, True, None)
    assert 'enabled = "prior-knowledge"' in found["block"]


def test_no_prior_knowledge_without_tls(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(tls=False, http="1.1") as gpu:
        code, found, _ = doctor(gpu, capsys)
    assert (code, found["prior_knowledge"], found["http2"]) == (0, False, None)
    assert "http2 = false" in found["block"]


def test_the_promise_is_kept_where_no_limit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def stubborn(exchange: Exchange) -> Answer:
        size = len(exchange.json()["input"])
        if size > 90:
            return Answer.error(400, "no")
        return Answer.json({"data": [{"index": index, "embedding": [1.0]} for index in range(size)]})

    with MockGPU() as gpu:
        gpu.route("/v1/embeddings", stubborn, methods=("POST",))
        code, found, told = doctor(gpu, capsys, "--no-upload")
        assert found["requests"] == len(gpu.log.requests) <= promised(told)
    assert code == 0
    assert found["batching"]["named"] is None
    assert 32 <= found["batching"]["largest"] <= 90 < found["batching"]["refused"]


def test_one_input_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(max_batch=1) as gpu:
        code, found, _ = doctor(gpu, capsys)
    assert (code, found["batching"]["works"], found["batching"]["largest"]) == (0, False, 1)
    assert "batch =" not in found["block"]


def test_an_answer_with_too_few_results_is_no_batch(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"data": [{"index": 0, "embedding": [1.0]}]}
    with MockGPU() as gpu:
        gpu.faults.push(faults.Status(200, body=json.dumps(answer), path="/v1/embeddings", times=None))
        code, found, _ = doctor(gpu, capsys, "--no-upload")
    assert (code, found["batching"]["works"], found["batching"]["largest"]) == (0, False, 1)
    assert "1 results" in found["batching"]["why"]


def test_rate_limits_and_overload(capsys: pytest.CaptureFixture[str]) -> None:
    headers = {"retry-after": "7", "x-ratelimit-limit-requests": "60", "x-request-id": "r-1"}
    with MockGPU() as gpu:
        gpu.faults.push(faults.Status(429, headers=headers, path="/v1/embeddings", times=None))
        code, found, _ = doctor(gpu, capsys, "--no-upload")
        # The first refusal ends it.
        assert [record.path for record in gpu.log.requests].count("/v1/embeddings") == 1
    assert (code, found["retry_after"], found["request_id"]) == (0, "7", "x-request-id")
    assert found["limits"] == {"x-ratelimit-limit-requests": "60"}
    assert found["batching"]["works"] is None
    assert "limit = true" in found["block"]
    assert "retry = true" in found["block"]


def test_the_other_route_and_forms(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(max_batch=8, batch_limit_status=413) as gpu:
        code, found, _ = doctor(gpu, capsys, path="/embed")
        assert (code, found["batching"]["form"], found["batching"]["largest"]) == (0, "tei", 8)
        gpu.route("/own/vectors", gpu._backend.application.find("/v1/embeddings").handler, methods=("POST",))  # type: ignore[union-attr]
        code, found, _ = doctor(gpu, capsys, "--route", "/own/vectors", "--model", "m")
        assert (code, found["batching"]["route"], found["batching"]["named"]) == (0, "/own/vectors", 8)
        assert 'routes = { "*/vectors" = "openai" }' in found["block"]


def test_credentials_are_sent_and_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(api_keys=(SECRET.removeprefix("Bearer "),)) as gpu:
        gpu.faults.push(faults.Status(401, body=f"bad key {SECRET} \x1b[31m", path="/v1/embeddings", times=None))
        trust = ["--ca", str(gpu.ca_file)]
        arguments = ["doctor", f"{gpu.url}/v1?key=topsecretkey", "--idle", "0", *trust, "--header"]
        assert main([*arguments, f"Authorization: {SECRET}"]) == 0
        captured = capsys.readouterr()
        assert {dict(record.headers).get("authorization") for record in gpu.log.requests} == {SECRET}
    for text in (captured.out, captured.err):
        assert "very-secret" not in text
        assert "topsecretkey" not in text
        assert "\x1b" not in text
    assert "401 bad key ***" in captured.out


def test_a_password_that_the_server_repeats_is_not_shown_either(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU(tls=False) as gpu:
        gpu.route("/v1", lambda _: Answer(302, [("location", "http://u:other@else/x?token=t0ken#t0ken")], b""))
        gpu.faults.push(faults.Status(401, body="no entry for u with s3cretword", path="/v1/embeddings", times=None))
        url = gpu.url.replace("http://", "http://u:s3cretword@") + "/v1"
        assert main(["doctor", url, "--idle", "0", "--no-upload"]) == 0
        shown = "".join(capsys.readouterr())
    assert "redirects to http://else/x (not followed)" in shown
    assert "no entry for u with ***" in shown
    assert not {word for word in ("s3cretword", "other", "t0ken") if word in shown}


@pytest.mark.parametrize("header", ["Authorization", "X: a\nb", "Host: x", "Ключ: x"])
def test_headers_that_are_none(header: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "http://localhost", "--header", header]) == 2
    assert "--header" in capsys.readouterr().err


# --- servers that cannot be talked to


@contextmanager
def saying(words: bytes) -> Iterator[int]:
    """A listener that says this to everybody and closes; nothing at all: it keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            kept = []
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    break
                kept.append(sock)
                if words:
                    sock.sendall(words)
                    sock.shutdown(socket.SHUT_WR)
            for sock in kept:
                sock.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def unwell(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["doctor", "--idle", "0", *arguments]) == 1
    out = capsys.readouterr().out
    assert "tool.netkit" not in out
    (line,) = [line for line in out.splitlines() if line.startswith("PROBLEM")]
    return line


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "connection refused" in unwell(capsys, f"http://127.0.0.1:{port}")


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the name is not known" in unwell(capsys, "https://no-such-host.invalid")


def test_no_http(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"220 smtp.example ESMTP\r\n") as port:
        assert "no HTTP" in unwell(capsys, f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("words", [b"", b"\x15\x03\x03\x00\x02\x02\x0a"], ids=["silence", "alert"])
def test_no_tls_where_there_is_some(words: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    if words:
        with saying(words) as port:
            assert "is it https:// here?" in unwell(capsys, f"http://127.0.0.1:{port}")
    else:
        with MockGPU() as gpu:
            assert "is it https:// here?" in unwell(capsys, gpu.url.replace("https", "http"))


def test_a_server_that_promises_to_keep_connections_and_closes_them(capsys: pytest.CaptureFixture[str]) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nkeep-alive: timeout=5\r\n\r\n{}"
    with saying(answer) as port:
        assert main(["doctor", f"http://127.0.0.1:{port}", "--idle", "0", "--no-upload"]) == 0
    out = capsys.readouterr().out
    assert "closes after each answer" in out
    assert "batches   /v1/embeddings: not found out (the answer to a batch of 1" in out


def test_tls_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert "is it http:// here?" in unwell(capsys, f"https://127.0.0.1:{port}")


def test_an_untrusted_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU() as gpu:
        assert "--ca FILE" in unwell(capsys, gpu.url)
        assert main(["doctor", gpu.url, "--idle", "0", "--insecure", "--no-batches", "--no-upload"]) == 0
        assert "NOT verified" in capsys.readouterr().out
        assert len(gpu.log.requests) == 3


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_certificates_that_the_environment_names(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = ("--idle", "0", "--no-batches", "--no-upload")
    with MockGPU() as gpu:
        monkeypatch.setenv(variable, str(gpu.ca_file))
        assert main(["doctor", gpu.url, *few]) == 0
        told = capsys.readouterr()
        assert "certificate trusted" in told.out
        assert (f"Trusts what {variable} names" in told.err) == (variable != "SSL_CERT_FILE")
        if variable != "SSL_CERT_FILE":
            monkeypatch.setenv(variable, str(tmp_path))  # a folder, with nothing in it
            assert "the certificate is not trusted" in unwell(capsys, gpu.url)
            monkeypatch.setenv(variable, str(tmp_path / "none.pem"))
            assert main(["doctor", gpu.url, *few]) == 2
            assert f"doctor: {variable}: {tmp_path}/none.pem: no certificates" in capsys.readouterr().err
            # What has nothing to do with the look does not end it.
            assert main(["doctor", gpu.url, *few, "--ca", str(gpu.ca_file)]) == 0
    with MockGPU(tls=False) as plain:
        assert main(["doctor", plain.url, *few]) == 0


def test_a_server_that_never_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from netkit.cli.doctor.budget import Budget

    monkeypatch.setattr(Budget.__init__, "__kwdefaults__", {"patience": 0.2})
    with saying(b"") as port:
        assert "does not answer" in unwell(capsys, f"http://127.0.0.1:{port}")


def test_a_file_without_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "https://localhost", "--ca", str(tmp_path / "none.pem")]) == 2
    assert "no certificates" in capsys.readouterr().err


def test_it_asks_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with MockGPU(tls=False) as gpu:
        monkeypatch.setattr("sys.stdin.readline", lambda: "\n", raising=False)
        assert main(["doctor", gpu.url]) == 1
        assert "Go on?" in capsys.readouterr().err
        assert list(gpu.log.requests) == []
        monkeypatch.setattr("sys.stdin.readline", lambda: "y\n", raising=False)
        assert main(["doctor", gpu.url, "--idle", "0", "--no-batches", "--no-upload"]) == 0
        assert len(gpu.log.requests) > 0


# --- the block


def test_everything_below_the_heading_is_toml(capsys: pytest.CaptureFixture[str]) -> None:
    with MockGPU() as gpu:
        assert main(["doctor", gpu.url, "--idle", "0", "--no-batches", "--no-upload", "--ca", str(gpu.ca_file)]) == 0
        printed = capsys.readouterr().out
    _, pasted = printed.split("For pyproject.toml:")
    assert "verify=" in pasted
    (route,) = tomllib.loads(pasted)["tool"]["netkit"]["route"]
    assert route["match"] == f"{gpu.url}/*"


@pytest.mark.parametrize(
    "options",
    [
        {"http": "2", "settings": {3: 4}},
        {"http": "1.1", "keep_alive_timeout": 3, "announce_keep_alive": True},
        {"tls": False},
    ],
    ids=["h2", "h1", "h2c"],
)
def test_the_block_works_as_pasted(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockGPU(max_batch=5, **options) as gpu:
        code, found, _ = doctor(gpu, capsys)
        assert code == 0
        pasted = tmp_path / "pyproject.toml"
        pasted.write_text(f'[project]\nname = "x"\n\n{found["block"]}\n')
        gpu.log.clear()
        with netkit.Session(config=Config.load(pasted)) as session:
            session.verify = gpu.ca_file or True
            session.trust_env = False

            def embed(text: str) -> Any:
                answer = session.post(f"{gpu.url}/v1/embeddings", json={"model": "mock-embed", "input": text})
                return answer.json()["data"][0]["embedding"]

            results: dict[str, Any] = {}
            threads = [
                threading.Thread(target=lambda text=f"text {number}": results.update({text: embed(text)}))
                for number in range(24)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert results == {text: pytest.approx(expected_vector(text)) for text in results}
        assert len(results) == 24
        records = list(gpu.log.requests)
        assert {record.status for record in records} == {200}
        assert {record.protocol for record in records} == {"HTTP/1.1" if options.get("http") == "1.1" else "HTTP/2"}
        assert len(records) < 24
