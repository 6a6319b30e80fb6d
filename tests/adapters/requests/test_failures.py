"""Failures over requests: native types, verdicts, what the server saw (CASES C01, C05, C19-C21, C60, C74, C78)."""

from __future__ import annotations

import array
import errno
import gc
import io
import pickle
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from netkit_adapters.requests import CircuitOpen, PoolTimeout
from netkit_adapters.requests.errors import _causes, classify, to_native
from netkit_adapters.requests.pool import idle_connections
from requests import exceptions as native
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NewConnectionError
from urllib3.util import Retry

import netkit
from netkit.errors import FailureKind, TransportError, Verdict
from netkit.testing import MockGPU, faults
from netkit.testing.mock_gpu import Answer

PLAIN = {"retry": False}
UNSAFE = {"attempts": 3, "backoff_initial": 0, "jitter": "none"}


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """For what happens in the background loop and tells nobody."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _refused_url() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}/"


def _raised(session: requests.Session, *args: Any, **kwargs: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        session.request(*args, **kwargs)
    return caught.value


FAILURES: dict[str, tuple[Callable[[], Any], dict[str, Any], FailureKind, Verdict]] = {
    "fin": (faults.CloseBeforeHeaders, {}, FailureKind.DISCONNECTED, Verdict.AMBIGUOUS),
    "reset": (faults.ResetBeforeHeaders, {}, FailureKind.RESET, Verdict.AMBIGUOUS),
    "garbage": (faults.Malformed, {}, FailureKind.PROTOCOL, Verdict.AMBIGUOUS),
    "read timeout": (faults.Hold, {"timeout": (5, 0.05)}, FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS),
    "short body": (faults.ShortBody, {}, FailureKind.BODY, Verdict.PROCESSED),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_on_the_wire_are_native_and_classified(gpu: MockGPU, name: str, http: str) -> None:
    make, arguments, kind, verdict = FAILURES[name]
    if (name, http) == ("garbage", "2"):
        kind = FailureKind.DISCONNECTED  # the mock says it by closing the connection
    with requests.Session() as plain, netkit.Session(plugins=PLAIN) as session:
        plain.trust_env = session.trust_env = False
        gpu.script(first := make())
        expected = _raised(plain, "POST", f"{gpu.url}/echo", data=b"x", **arguments)
        gpu.script(second := make())
        actual = _raised(session, "POST", f"{gpu.url}/echo", data=b"x", **arguments)
        assert type(actual) is type(expected)
        assert isinstance(actual, requests.RequestException)
        assert actual.request is not None or expected.request is None  # type: ignore[attr-defined]
        if http == "1.1":
            assert [type(e) for e in _cause_chain(actual)] == [type(e) for e in _cause_chain(expected)]
        failure = classify(actual, processed=name == "short body")
        if http == "2":
            failure = next(error for error in _causes(actual) if isinstance(error, TransportError))
        assert failure is not None
        if http == "2" and kind in (FailureKind.DISCONNECTED, FailureKind.RESET):
            # What was on its way to a server that has closed makes its kernel answer with a reset, sooner or later:
            # whether reading or writing learns of it first is a race, and what it is called with it.
            assert failure.kind in (FailureKind.DISCONNECTED, FailureKind.RESET)
        else:
            assert failure.kind is kind
        assert failure.verdict is verdict
        assert netkit.stats(session).requests.errors == 1
        assert netkit.stats(session).requests.in_flight == 0
        assert netkit.stats(session).pool.in_use == 0
    for gate in (first, second):
        if isinstance(gate, faults.Hold):
            gate.release()


def test_connection_refused(session: netkit.Session) -> None:
    error = _raised(session, "POST", _refused_url(), data=b"x")
    assert type(error) is native.ConnectionError
    assert any(isinstance(e, OSError) and e.errno == errno.ECONNREFUSED for e in _cause_chain(error))
    failure = classify(error)
    assert failure is not None
    assert (failure.kind, failure.verdict) == (FailureKind.CONNECT, Verdict.NOT_SENT)


def test_unknown_host(session: netkit.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = _raised(session, "POST", "http://nowhere.invalid/", data=b"x")
    assert type(error) is native.ConnectionError
    failure = classify(error)
    assert failure is not None
    assert (failure.kind, failure.verdict) == (FailureKind.DNS, Verdict.NOT_SENT)


def test_an_adapter_that_has_retried_answers_is_not_retried(gpu: MockGPU) -> None:
    gpu.route("/busy", lambda _: Answer.text("", status=500))
    with netkit.Session(plugins={"retry": {"attempts": 3, "statuses": [500]}}) as session:
        retries = Retry(total=2, status_forcelist=[500], backoff_factor=0)
        session.mount("https://", HTTPAdapter(max_retries=retries))
        session.mount("http://", HTTPAdapter(max_retries=retries))
        error = _raised(session, "GET", f"{gpu.url}/busy")
        assert type(error) is native.RetryError
        failure = classify(error)
        assert failure is not None
        assert (failure.kind, failure.verdict) == (FailureKind.OTHER, Verdict.PROCESSED)
    assert [request.status for request in gpu.log.requests] == [500, 500, 500], "urllib3's own three"


def test_connect_timeout(session: netkit.Session) -> None:
    with socket.socket() as silent:
        # A listener whose backlog is full answers no further SYN.
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with socket.create_connection(silent.getsockname()):
            error = _raised(netkit.attach(requests.Session(), plugins=PLAIN), "GET", url, timeout=(0.2, 5))
    failure = classify(error)
    assert failure is not None
    if isinstance(error, native.ConnectTimeout):
        assert (failure.kind, failure.verdict) == (FailureKind.CONNECT_TIMEOUT, Verdict.NOT_SENT)
    else:
        # Some kernels accept one more than the backlog: then nobody answers, which is a read timeout or reset.
        assert failure.verdict is Verdict.AMBIGUOUS


def test_certificate_error_is_never_retried(tls_gpu: MockGPU) -> None:
    with netkit.Session(plugins={"retry": UNSAFE}) as session:
        session.trust_env = False
        error = _raised(session, "GET", f"{tls_gpu.url}/echo")
        assert type(error) is native.SSLError
        assert any(isinstance(e, ssl.SSLCertVerificationError) for e in _cause_chain(error))
        assert netkit.stats(session).requests.attempts == 1
    assert not tls_gpu.log.requests


@pytest.mark.parametrize(
    ("method", "url", "kind"),
    [
        ("GET", "http://", native.InvalidURL),
        ("GET", "no-scheme", native.MissingSchema),
        ("GET", "gopher://x", native.InvalidSchema),
    ],
)
def test_bad_urls_raise_as_before(session: netkit.Session, method: str, url: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        session.request(method, url)


def test_bad_header_raises_before_anything_is_sent(gpu: MockGPU, session: netkit.Session) -> None:
    with pytest.raises(native.InvalidHeader):
        session.get(f"{gpu.url}/echo", headers={"X": "a\r\nb"})
    assert not gpu.log.requests


def test_pool_timeout_is_a_native_timeout(gpu: MockGPU) -> None:
    plugins = {"http2": False, "pool": {"max_connections": 1, "acquire_timeout": 0.05}}
    with netkit.Session(plugins=plugins) as session:
        with session.get(f"{gpu.url}/stream/3", stream=True):
            error = _raised(session, "GET", f"{gpu.url}/echo")
        assert isinstance(error, netkit.PoolTimeout)
        assert isinstance(error, requests.ConnectTimeout)
        assert error.request is not None
        assert session.get(f"{gpu.url}/echo").ok
        stats = netkit.stats(session)
        assert (stats.pool.in_use, stats.pool.queued, stats.pool.timeouts) == (0, 0, 1)


def test_decisions_survive_pickling_and_keep_their_verdict() -> None:
    neutral = netkit.CircuitOpen("open", retry_after=3.5)
    made = to_native(neutral, None)
    assert isinstance(made, CircuitOpen)
    assert made.retry_after == 3.5
    again = pickle.loads(pickle.dumps(made))
    assert isinstance(again, requests.ConnectionError)
    assert again.verdict is Verdict.NOT_SENT
    assert isinstance(pickle.loads(pickle.dumps(to_native(netkit.PoolTimeout("x"), None))), PoolTimeout)


def test_neutral_failures_become_native_ones() -> None:
    request = requests.Request("GET", "http://x/").prepare()
    made = to_native(TransportError("gone", kind=FailureKind.READ_TIMEOUT), request)
    assert type(made) is native.ReadTimeout
    assert made.request is request


# C01


@pytest.mark.parametrize("path", ["/echo", "/status/204"])
def test_a_closed_idle_socket_is_dropped_before_the_post(gpu: MockGPU, path: str, http: str) -> None:
    gpu.script(faults.CloseIdle())
    with netkit.Session(plugins=PLAIN) as session:
        assert session.get(f"{gpu.url}{path}").status_code in (200, 204)
        if http == "1.1":
            # The log may know of the close a moment before the client's kernel does.
            (idle,) = [c for pool in session._netkit_wiring.pool.pools for c in idle_connections(pool)]
            assert select.select([idle.sock], [], [], 10)[0]
        else:
            wait_until(lambda: netkit.stats(session).http2.connections == 0)
        assert session.post(f"{gpu.url}/echo", data=b"once").ok
        stats = netkit.stats(session)
    assert [request.method for request in gpu.log.requests] == ["GET", "POST"]
    assert len({request.connection for request in gpu.log.requests}) == 2
    if http == "1.1":
        assert stats.pool.discarded_stale == 1
    assert stats.requests.attempts == 2
    assert stats.requests.retries == 0


# C05


def test_ten_streams_read_to_their_end_need_no_close(gpu: MockGPU) -> None:
    with netkit.Session(plugins={"pool": {"max_connections": 2}}) as session:
        for _ in range(10):
            answer = session.get(f"{gpu.url}/stream/3", stream=True)
            assert len([line for line in answer.iter_lines() if line.startswith(b"data:")]) >= 3
            assert netkit.stats(session).pool.in_use == 0
    assert len({request.connection for request in gpu.log.requests}) == 1


# C19, C20


@pytest.mark.parametrize("fault", [faults.CloseBeforeHeaders, faults.ResetBeforeHeaders])
@pytest.mark.parametrize(
    ("method", "arguments", "seen"),
    [
        ("GET", {}, 2),
        ("POST", {"data": b"pay"}, 1),
        ("POST", {"data": b"pay", "headers": {"Idempotency-Key": "k1"}}, 2),
    ],
)
def test_a_reset_after_the_request_was_sent(
    gpu: MockGPU, fault: Callable[..., Any], method: str, arguments: dict[str, Any], seen: int
) -> None:
    with netkit.Session() as session:
        session.get(f"{gpu.url}/echo")
        gpu.script(fault())
        if seen == 2:
            assert session.request(method, f"{gpu.url}/echo", **arguments).ok
        else:
            assert type(_raised(session, method, f"{gpu.url}/echo", **arguments)) is native.ConnectionError
    sent = gpu.log.requests[1:]
    assert [request.method for request in sent] == [method] * seen
    assert len({request.body_sha256 for request in sent}) == 1
    assert len({request.header("idempotency-key") for request in sent}) == 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_the_server_sees_exactly_the_attempts_that_are_reported(gpu: MockGPU, attempts: int) -> None:
    with netkit.Session(plugins={"retry": {**UNSAFE, "attempts": attempts}}) as session:
        session.get(f"{gpu.url}/echo")
        gpu.script(faults.CloseBeforeHeaders(times=None))
        assert isinstance(_raised(session, "GET", f"{gpu.url}/echo"), native.ConnectionError)
        assert netkit.stats(session).requests.attempts == attempts + 1
    assert len(gpu.log.requests) == attempts + 1


# C21


def _bodies(tmp_path: Path) -> dict[str, dict[str, Any]]:
    path = tmp_path / "body.bin"
    path.write_bytes(bytes(range(256)) * 4)
    file = path.open("rb")
    file.seek(100)
    return {
        "bytes": {"data": b"abc"},
        "text": {"data": "äbc"},
        "form": {"data": {"a": "1", "b": "ü"}},
        "json": {"json": {"a": [1, 2]}},
        "file at 100": {"data": file},
        "BytesIO": {"data": io.BytesIO(b"x" * 1000)},
        "multipart": {"files": {"f": ("name", b"y" * 500)}, "data": {"a": "1"}},
    }


@pytest.mark.parametrize("name", ["bytes", "text", "form", "json", "file at 100", "BytesIO", "multipart"])
@pytest.mark.parametrize("script", [(faults.Status(503),), (faults.Status(307, headers={"location": "/echo"}),)])
def test_attempt_two_sends_what_attempt_one_sent(
    gpu: MockGPU, tmp_path: Path, name: str, script: tuple[Any, ...]
) -> None:
    arguments = _bodies(tmp_path)
    gpu.script(*script)
    with netkit.Session(plugins={"retry": UNSAFE}) as session:
        assert session.put(f"{gpu.url}/echo", **arguments[name]).ok
    for value in arguments["file at 100"].values():
        value.close()
    first, second = gpu.log.requests
    assert first.body_size == second.body_size > 0
    assert first.body_sha256 == second.body_sha256
    assert first.header("content-length") == second.header("content-length")
    assert first.header("content-type") == second.header("content-type")


class TellOnly:
    """A stream that tells where it is and cannot go back."""

    def __init__(self) -> None:
        self.left = [b"one", b"two"]

    def tell(self) -> int:
        return 0

    def __iter__(self) -> Iterator[bytes]:
        while self.left:
            yield self.left.pop(0)


@pytest.mark.parametrize("make", [lambda: iter([b"one", b"two"]), TellOnly])
def test_a_one_shot_body_is_sent_once(gpu: MockGPU, make: Callable[[], Any]) -> None:
    gpu.script(faults.Status(503))
    with netkit.Session(plugins={"retry": UNSAFE}) as session:
        assert session.put(f"{gpu.url}/echo", data=make()).status_code == 503
    assert [request.body for request in gpu.log.requests] == [b"onetwo"]


# C60, C64


def test_nothing_is_replayed_after_an_event_was_delivered(gpu: MockGPU) -> None:
    gpu.script(faults.ResetAfterHeaders(after_events=3, after_bytes=None))
    with netkit.Session(plugins={"retry": UNSAFE}) as session:
        answer = session.get(f"{gpu.url}/stream/10", stream=True)
        lines: list[bytes] = []
        with pytest.raises(native.ChunkedEncodingError):
            lines += answer.iter_lines()
        assert netkit.stats(session).requests.errors == 1
    assert len(gpu.log.requests) == 1


def _leave_by_close(session: netkit.Session, url: str) -> None:
    with session.get(url, stream=True) as answer:
        next(answer.iter_lines())


def _leave_by_generator(session: netkit.Session, url: str) -> None:
    answer = session.get(url, stream=True)
    lines = answer.iter_content(None)
    next(lines)
    lines.close()  # type: ignore[attr-defined]


def _leave_to_the_collector(session: netkit.Session, url: str) -> None:
    answer = session.get(url, stream=True)
    next(answer.iter_lines())
    del answer
    gc.collect()


@pytest.mark.parametrize("leave", [_leave_by_close, _leave_by_generator, _leave_to_the_collector])
def test_leaving_a_stream_reaches_the_server_and_frees_the_slot(gpu: MockGPU, leave: Any) -> None:
    with netkit.Session(plugins={"retry": UNSAFE, "pool": {"max_connections": 1}}) as session:
        leave(session, f"{gpu.url}/stream/100000?interval_ms=5")
        gpu.log.wait(lambda log: log.requests[0].outcome in ("client_left", "client_reset"))
        stats = netkit.stats(session)
        assert (stats.pool.in_use, stats.requests.in_flight, stats.requests.errors) == (0, 0, 0)
        assert session.get(f"{gpu.url}/echo").ok
    assert gpu.log.requests[0].events_sent < 1000


# C78


def test_verification_off_never_serves_verification_on(tls_gpu: MockGPU, session: netkit.Session) -> None:
    with pytest.warns(Warning, match="Unverified"):
        assert session.get(f"{tls_gpu.url}/echo", verify=False).ok
    assert type(_raised(session, "GET", f"{tls_gpu.url}/echo", verify=True)) is native.SSLError
    assert session.get(f"{tls_gpu.url}/echo", verify=tls_gpu.ca_file).ok
    assert len(tls_gpu.log.requests) == 2
    assert len({request.connection for request in tls_gpu.log.requests}) == 2


# Interruption


def test_an_interrupt_leaves_nothing_behind(gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    from requests.adapters import HTTPAdapter

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    with netkit.Session(plugins={"retry": UNSAFE, "pool": {"max_connections": 1}}) as session:
        with monkeypatch.context() as patch:
            patch.setattr(HTTPAdapter, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.get(f"{gpu.url}/echo")
        assert netkit.stats(session).requests.attempts == 1
        assert netkit.stats(session).pool.in_use == 0
        assert session.get(f"{gpu.url}/echo").ok


@pytest.mark.parametrize("chunk", [5, object(), ["list of str"]])
@pytest.mark.parametrize("protocol", ["1.1", "auto"])
def test_a_chunk_that_is_neither_bytes_nor_text_is_a_type_error(protocol: str, chunk: Any) -> None:
    with MockGPU(http=protocol, launch_ms=0) as secure, netkit.Session(plugins=PLAIN) as session:
        session.trust_env = False
        session.verify = secure.ca_file or True
        with pytest.raises(TypeError):
            session.post(f"{secure.url}/echo", data=iter([b"first", chunk, b"last"]))
        fine = iter([b"fine", b"", None, "\u00fc", array.array("b", b"!")])
        assert session.post(f"{secure.url}/echo", data=fine).json()["body"] == "fine\u00fc!"
        assert all(request.body in (b"first", b"", "fine\u00fc!".encode()) for request in secure.log.requests)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_one_shot_body_is_sent_whole_after_connects_that_failed(
    gpu: MockGPU, http: str, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, refused = HTTPConnection.connect, []

    def flaky(connection: Any) -> None:
        if len(refused) < failures:
            refused.append(connection)
            raise NewConnectionError(connection, "refused")
        connect(connection)

    monkeypatch.setattr(HTTPConnection, "connect", flaky)
    with netkit.Session(plugins={"retry": {"backoff_initial": 0.001}}) as session:
        session.trust_env = False
        assert session.post(f"{gpu.url}/echo", data=iter([b"one", b"two"])).json()["body"] == "onetwo"
        assert netkit.stats(session).requests.attempts == failures + 1
    assert [request.body for request in gpu.log.requests] == [b"onetwo"]
