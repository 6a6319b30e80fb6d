"""Every failure on HTTP/1.1 leaves as the stack's own exception, with a verdict inside (CASES C19, C20, C74)."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face

from netkit import errors
from netkit.errors import FailureKind, Verdict
from netkit.facade import edge_of, stats
from netkit.flow import compose
from netkit.testing import MockGPU, faults

OFF = {"retry": False, "pool": False}


class Witness:
    """A layer that remembers the neutral error."""

    error: errors.TransportError | None = None

    async def __call__(self, request: Any, send: Any) -> Any:
        try:
            return await send(request)
        except errors.TransportError as error:
            self.error = error
            raise


def watched(face: Face, gpu: MockGPU | None = None, **arguments: Any) -> tuple[Any, Witness]:
    client = face.client(gpu, plugins=OFF, **arguments)
    witness = Witness()
    edge = edge_of(client)
    edge._default = compose([witness], edge._default)
    return client, witness


def expect(
    face: Face, client: Any, native: str, url: str, *, engine: bool = False, **arguments: Any
) -> BaseException:
    """The call fails exactly as it does without netkit; with `engine`, as that type with netkit's error beneath."""
    with pytest.raises(getattr(face.native, native)) as caught:
        face.run(client.post(url, json=EMBED, **arguments))
    if engine:
        assert type(caught.value).__module__ == face.native.TransportError.__module__
        assert isinstance(caught.value.__cause__, errors.TransportError)
    else:
        assert type(caught.value) is getattr(face.native, native)
        assert type(caught.value.__cause__).__module__.startswith("httpcore")
        assert not isinstance(caught.value.__context__, errors.NetkitError)
    assert caught.value.request.method == "POST"
    assert caught.value.__cause__ is not None
    assert stats(client).requests.errors == 1
    assert stats(client).requests.in_flight == 0
    return caught.value


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port whose backlog is full: connects to it are never answered."""
    with socket.socket() as listener, socket.socket() as filler, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for taker in (filler, second):
            taker.setblocking(False)
            taker.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def verdict(witness: Witness) -> tuple[FailureKind, Verdict]:
    assert witness.error is not None
    return witness.error.kind, witness.error.verdict


def test_dns(face: Face) -> None:
    client, witness = watched(face)
    expect(face, client, "ConnectError", "http://no-such-host.invalid/")
    assert verdict(witness) == (FailureKind.DNS, Verdict.NOT_SENT)


def test_refused(face: Face) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client, witness = watched(face)
    expect(face, client, "ConnectError", f"http://127.0.0.1:{port}/")
    assert verdict(witness) == (FailureKind.CONNECT, Verdict.NOT_SENT)


def test_connect_timeout(face: Face, deaf: int) -> None:
    client, witness = watched(face, timeout=face.native.Timeout(5, connect=0.1))
    expect(face, client, "ConnectTimeout", f"http://127.0.0.1:{deaf}/")
    assert verdict(witness) == (FailureKind.CONNECT_TIMEOUT, Verdict.NOT_SENT)


def test_certificate(face: Face, gpu: MockGPU) -> None:
    client, witness = watched(face)
    expect(face, client, "ConnectError", gpu.url + PATH)
    assert verdict(witness) == (FailureKind.CERTIFICATE, Verdict.NOT_SENT)
    assert gpu.log.requests == []


def test_tls_handshake(face: Face, plain_gpu: MockGPU) -> None:
    client, witness = watched(face)
    expect(face, client, "ConnectError", plain_gpu.url.replace("http:", "https:") + PATH)
    assert verdict(witness) == (FailureKind.TLS, Verdict.NOT_SENT)


@pytest.mark.parametrize(
    ("fault", "native", "kind"),
    [
        (faults.CloseBeforeHeaders(), "RemoteProtocolError", FailureKind.DISCONNECTED),
        (faults.ResetBeforeHeaders(), "ReadError", FailureKind.RESET),
        (faults.Malformed(), "RemoteProtocolError", FailureKind.PROTOCOL),
    ],
    ids=["closed", "reset", "malformed"],
)
def test_lost_before_an_answer(
    face: Face, plain_gpu: MockGPU, http: str, fault: Any, native: str, kind: FailureKind
) -> None:
    client, witness = watched(face, base_url=plain_gpu.url)
    plain_gpu.faults.push(fault)
    if http == "1.1":
        expect(face, client, native, PATH)
        assert verdict(witness) == (kind, Verdict.AMBIGUOUS)
    else:
        # Garbage is answered by closing; where our acknowledgements lie unread then, the kernel says RST for FIN.
        expect(face, client, "TransportError", PATH, engine=True)
        kinds = {FailureKind.RESET} if kind is FailureKind.RESET else {FailureKind.DISCONNECTED, FailureKind.RESET}
        assert verdict(witness)[0] in kinds
        assert verdict(witness)[1] is Verdict.AMBIGUOUS
    assert len(plain_gpu.log.requests) == 1


def test_read_timeout(face: Face, gpu: MockGPU, http: str) -> None:
    client, witness = watched(face, gpu, timeout=face.native.Timeout(5, read=0.1))
    gpu.faults.push(faults.BlackHole())
    expect(face, client, "ReadTimeout", PATH, engine=http == "2")
    assert verdict(witness) == (FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS)


def test_write_timeout(face: Face) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client, witness = watched(face, timeout=face.native.Timeout(5, write=0.1))
        with pytest.raises(face.native.WriteTimeout):
            face.run(client.post(f"http://127.0.0.1:{listener.getsockname()[1]}/", content=bytes(32 * 1024 * 1024)))
    assert verdict(witness) == (FailureKind.WRITE_TIMEOUT, Verdict.AMBIGUOUS)


@pytest.mark.parametrize("http", ["1.1"])
def test_native_pool_timeout(face: Face, gpu: MockGPU) -> None:
    client, witness = watched(
        face, gpu, limits=face.native.Limits(max_connections=1), timeout=face.native.Timeout(5, pool=0.05)
    )
    with face.stream(client, "GET", "/v1/models"):
        with pytest.raises(face.native.PoolTimeout):
            face.run(client.get("/v1/models"))
    assert verdict(witness) == (FailureKind.POOL, Verdict.NOT_SENT)


class Proxy:
    """A proxy that answers CONNECT with `reply` (None: hangs up) and counts."""

    def __init__(self, reply: bytes | None) -> None:
        self._reply = reply
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if not (head := connection.recv(65536)):
                    return
                self.heads.append(head)
                if self._reply is not None:
                    connection.sendall(self._reply)

    def close(self) -> None:
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join(10)
        self._listener.close()


@pytest.mark.parametrize(
    ("reply", "native"),
    [
        (b"HTTP/1.1 502 No\r\ncontent-length: 0\r\n\r\n", "ProxyError"),
        (None, "RemoteProtocolError"),
        (b"huh\r\n\r\n", "RemoteProtocolError"),
    ],
    ids=["refuses", "hangs-up", "babbles"],
)
def test_proxy_without_tunnel(face: Face, reply: bytes | None, native: str) -> None:
    proxy = Proxy(reply)
    try:
        client, witness = watched(face, proxy=proxy.url)
        expect(face, client, native, "https://target.invalid/")
        assert verdict(witness) == (FailureKind.PROXY, Verdict.NOT_SENT)
        # Asked for HTTP/2, then by the stack itself, in the same words.
        first, second = (sorted(head.lower().split(b"\r\n")) for head in proxy.heads)
        assert first == second
    finally:
        proxy.close()


def test_bad_urls_and_headers_are_no_failures_of_an_exchange(face: Face) -> None:
    client, witness = watched(face)
    with pytest.raises(face.native.UnsupportedProtocol):
        face.run(client.get("gopher://host/"))
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(face.native.LocalProtocolError):
        face.run(client.get(f"http://127.0.0.1:{listener.getsockname()[1]}/", headers={"x": "a\nb"}))
    assert witness.error is None


def test_short_body(face: Face, gpu: MockGPU, http: str) -> None:
    client, _ = watched(face, gpu)
    gpu.faults.push(faults.ShortBody())
    with pytest.raises(face.native.RemoteProtocolError) as caught:
        face.run(client.get("/v1/models"))
    assert type(caught.value) is face.native.RemoteProtocolError or http == "2"
    assert caught.value.request.method == "GET"
    assert stats(client).requests.errors == 1


def test_failures_in_a_body_are_told_as_processed(face: Face, gpu: MockGPU) -> None:
    ends: list[Any] = []

    async def watch(request: Any, send: Any) -> Any:
        response = await send(request)
        response.observe(on_end=ends.append)
        return response

    client = face.client(gpu, plugins=OFF)
    edge = edge_of(client)
    edge._default = compose([watch], edge._default)
    gpu.faults.push(faults.ShortBody())
    with pytest.raises(face.native.RemoteProtocolError):
        face.run(client.get("/v1/models"))
    assert [(error.kind, error.verdict) for error in ends] == [(FailureKind.BODY, Verdict.PROCESSED)]


def test_failures_of_mocks_are_never_resent(face: Face) -> None:
    calls: list[Any] = []

    def handler(request: Any) -> Any:
        calls.append(request)
        raise face.native.ConnectError("scripted")

    client = face.client(transport=face.transport(handler))
    with pytest.raises(face.native.ConnectError, match="scripted"):
        face.run(client.get("http://host/"))
    assert len(calls) == 1


def test_other_exceptions_pass_untouched(face: Face) -> None:
    boom = KeyError("mine")

    def handler(request: Any) -> Any:
        raise boom

    client = face.client(transport=face.transport(handler))
    with pytest.raises(KeyError) as caught:
        face.run(client.get("http://host/"))
    assert caught.value is boom
    assert stats(client).requests.in_flight == 0


DECISIONS = [
    (errors.PoolTimeout("full"), "PoolTimeout", "PoolTimeout"),
    (errors.QueueFull("full"), "QueueFull", "PoolTimeout"),
    (errors.CircuitOpen("open", retry_after=3.0), "CircuitOpen", "ConnectError"),
    (errors.DeadlineExceeded("late"), "DeadlineExceeded", "TimeoutException"),
    (errors.BatchError("odd"), "BatchError", "RequestError"),
    (errors.ImageError("odd"), "ImageError", "RequestError"),
]


@pytest.mark.parametrize(("error", "neutral", "native"), DECISIONS, ids=[f"{d[1]}-{d[2]}" for d in DECISIONS])
def test_decisions_of_netkit_are_both(face: Face, error: errors.NetkitError, neutral: str, native: str) -> None:
    cause = ValueError("why")

    async def decide(request: Any, send: Any) -> Any:
        fresh: Any = type(error)(str(error), **getattr(error, "details", {}))
        if isinstance(error, errors.TransportError):
            fresh.kind, fresh.attempts = error.kind, 2
        raise fresh from cause

    client = face.client(transport=face.transport(lambda request: pytest.fail("sent")), plugins=OFF)
    edge = edge_of(client)
    edge._default = compose([decide], edge._default)
    with pytest.raises(getattr(face.native, native)) as caught:
        face.run(client.get("http://host/"))
    found: Any = caught.value
    assert isinstance(found, getattr(errors, neutral))
    assert found.__cause__ is cause
    assert found.request.url == "http://host/"
    assert str(found) == str(error)
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is type(found)
    if isinstance(error, errors.TransportError):
        assert (found.kind, found.verdict, found.attempts) == (error.kind, error.verdict, 2)
        assert (again.kind, again.verdict) == (error.kind, error.verdict)
    if isinstance(error, errors.CircuitOpen):
        assert found.retry_after == 3.0


@pytest.mark.parametrize(
    ("kind", "native"),
    [
        (FailureKind.READ_TIMEOUT, "ReadTimeout"),
        (FailureKind.REFUSED, "RemoteProtocolError"),
        (FailureKind.OTHER, "TransportError"),
    ],
)
def test_failures_of_a_connection_are_native_with_their_cause(face: Face, kind: FailureKind, native: str) -> None:
    beneath = ValueError("why")

    async def fail(request: Any, send: Any) -> Any:
        raise errors.TransportError("h2", kind=kind) from beneath

    client = face.client(transport=face.transport(lambda request: pytest.fail("sent")), plugins=OFF)
    edge = edge_of(client)
    edge._default = compose([fail], edge._default)
    with pytest.raises(getattr(face.native, native)) as caught:
        face.run(client.get("http://host/"))
    found: Any = caught.value
    assert type(found) is getattr(face.native, native)
    assert isinstance(found.__cause__, errors.TransportError)
    assert found.__cause__.__cause__ is beneath
    assert found.request.url == "http://host/"


def test_config_and_plugin_errors_pass_unchanged(face: Face) -> None:
    async def broken(request: Any, send: Any) -> Any:
        raise errors.PluginError("broken")

    client = face.client(transport=face.transport(lambda request: pytest.fail("sent")), plugins=OFF)
    edge = edge_of(client)
    edge._default = compose([broken], edge._default)
    with pytest.raises(errors.PluginError) as caught:
        face.run(client.get("http://host/"))
    assert type(caught.value) is errors.PluginError


# C19: after the whole request was sent, only what may run twice is sent again.


def test_a_reset_get_is_sent_again_and_a_reset_post_is_not(face: Face, plain_gpu: MockGPU) -> None:
    gpu = plain_gpu
    client = face.client(base_url=gpu.url, plugins={"retry": {"backoff_initial": 0.01}})
    gpu.faults.push(faults.ResetBeforeHeaders())
    assert face.run(client.get("/v1/models")).status_code == 200
    assert [record.method for record in gpu.log.requests] == ["GET", "GET"]
    gpu.faults.push(faults.ResetBeforeHeaders())
    with pytest.raises(face.native.ReadError):
        face.run(client.post("/v1/chat/completions", json={"model": "mock-chat", "messages": []}))
    assert [record.method for record in gpu.log.requests] == ["GET", "GET", "POST"]
    assert stats(client).requests.attempts == 3


# C20: what the server saw is what netkit reports.


def test_attempts_are_counted_exactly(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu, plugins={"retry": {"attempts": 4, "backoff_initial": 0.01}})
    gpu.faults.push(faults.statuses(503, 503, 503, 503))
    assert face.run(client.post(PATH, json=EMBED)).status_code == 503
    assert len(gpu.log.requests) == 4
    assert stats(client).requests.attempts == 4
    assert stats(client).requests.total == 1
