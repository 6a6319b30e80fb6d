"""HTTP/2 under a client: what the engine takes over, whose settings it uses, and what stays the stack's own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face, context_of

from netkit import errors
from netkit.facade import attach, stats
from netkit.http2 import Code
from netkit.testing import MockGPU, faults

CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": "mock-chat", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 50}
PLAIN = {"retry": False}


@pytest.fixture
def http() -> str:
    return "2"


@pytest.fixture
def old() -> Iterator[MockGPU]:
    """A server that speaks HTTP/1.1 only."""
    with MockGPU(http="1.1", launch_ms=0, per_item_ms=0) as server:
        yield server


def protocols(gpu: MockGPU) -> list[str]:
    return [record.protocol for record in gpu.log.requests]


def body(face: Face, *chunks: bytes) -> Any:
    """A one-shot body."""

    async def tasks() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return tasks() if face.asynchronous else iter(chunks)


# What is taken over.


def test_a_response_is_the_stacks_own_and_complete(face: Face, gpu: MockGPU) -> None:
    gpu.faults.push(faults.Status(200, headers=[("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-a", "1")]))
    client = face.client(gpu)
    response = face.run(client.get("/v1/models"))
    assert type(response) is face.native.Response
    assert (response.http_version, response.reason_phrase) == ("HTTP/2", "OK")
    assert dict(client.cookies) == {"a": "1", "b": "2"}
    assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert response.elapsed.total_seconds() > 0
    assert response.extensions["http_version"] == b"HTTP/2"
    assert response.extensions["reason_phrase"] == b"OK"
    assert response.extensions["stream_id"] == 1
    network = response.extensions["network_stream"]
    assert network.get_extra_info("server_addr")[1] == int(gpu.url.rpartition(":")[2])
    assert network.get_extra_info("client_addr") == gpu.log.connections[0].peer
    assert network.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    assert network.get_extra_info("socket").fileno() > 0
    assert network.get_extra_info("unknown") is None


def test_an_attached_client_and_the_stacks_own_switch(face: Face, gpu: MockGPU) -> None:
    attached = attach(face.keep(face.NativeClient(verify=context_of(gpu), base_url=gpu.url)))
    switched = face.client(gpu, http2=True)
    only = face.client(gpu, http1=False, http2=True)
    for client in (attached, switched, only):
        assert face.run(client.get("/v1/models")).http_version == "HTTP/2"
        assert stats(client).http2.opened_total == 1


def test_cleartext_is_spoken_where_the_client_was_told_so(face: Face) -> None:
    with MockGPU(tls=False, launch_ms=0) as gpu:
        client = face.client(base_url=gpu.url, http1=False, http2=True)
        assert face.run(client.get("/v1/models")).http_version == "HTTP/2"
        assert stats(client).http2.opened_total == 1
        assert face.run(face.client(base_url=gpu.url).get("/v1/models")).http_version == "HTTP/1.1"


def test_limits_of_the_user_cap_the_connections(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu, limits=face.native.Limits(max_connections=1), plugins={"http2": {"max_streams": 1}})
    held = face.run(client.send(client.build_request("POST", CHAT_PATH, json=CHAT), stream=True))
    with pytest.raises(errors.PoolTimeout) as caught:
        face.run(client.get("/v1/models", timeout=face.native.Timeout(5, pool=0.05)))
    assert isinstance(caught.value, face.native.PoolTimeout)
    face.close(held)
    assert len(gpu.log.connections) == 1


def test_extensions_of_a_request(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    extensions = {"target": b"/v1/models?raw=%zz", "sni_hostname": "localhost"}
    assert face.run(client.get("/elsewhere", extensions=extensions)).status_code == 200
    assert gpu.log.requests[0].target == "/v1/models?raw=%zz"
    assert gpu.log.connections[0].server_name == "localhost"
    assert protocols(gpu) == ["HTTP/2"]
    # Another name is another connection.
    assert face.run(client.get("/v1/models")).status_code == 200
    assert len(gpu.log.connections) == 2


def test_event_hooks_redirects_and_auth_run_as_ever(face: Face, gpu: MockGPU) -> None:
    seen: list[str] = []

    def note(thing: Any) -> None:
        seen.append(type(thing).__name__)

    async def anote(thing: Any) -> None:
        seen.append(type(thing).__name__)

    hook = anote if face.asynchronous else note
    client = face.client(gpu, event_hooks={"request": [hook], "response": [hook]}, auth=("user", "word"))
    gpu.faults.push(faults.Status(302, headers=[("location", "/v1/models")]))
    response = face.run(client.get("/old", follow_redirects=True))
    assert [hop.status_code for hop in response.history] == [302]
    assert seen == ["Request", "Response"] * 2
    assert all(record.header("authorization") for record in gpu.log.requests)


# Whose TLS settings.


def test_the_clients_own_certificate_is_shown(face: Face) -> None:
    with MockGPU(client_certificate="required", launch_ms=0) as gpu:
        context = context_of(gpu)
        context.load_cert_chain(str(gpu.client_file))
        client = face.client(gpu, verify=context)
        assert face.run(client.get("/v1/models")).http_version == "HTTP/2"
        assert gpu.log.connections[0].client_certificate


def test_the_users_context_offers_what_it_did_before(face: Face, gpu: MockGPU) -> None:
    context = context_of(gpu)
    assert face.run(face.client(gpu, verify=context).get("/v1/models")).http_version == "HTTP/2"
    with socket.create_connection(("127.0.0.1", int(gpu.url.rpartition(":")[2]))) as raw:
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
            assert secure.selected_alpn_protocol() == "http/1.1"


def test_what_a_context_checks_in_its_sockets_is_not_left_out(sync_face: Face, gpu: MockGPU) -> None:
    class Pinned(ssl.SSLContext):
        def wrap_socket(self, *args: Any, **kwargs: Any) -> Any:
            raise ssl.SSLError("the pin does not match")

    context = Pinned(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(str(gpu.ca_file))
    with pytest.raises(sync_face.native.ConnectError, match="pin"):
        sync_face.run(sync_face.client(gpu, verify=context).get("/v1/models"))
    assert gpu.log.requests == []


def test_an_unverified_connection_serves_its_own_client_only(face: Face, gpu: MockGPU) -> None:
    assert face.run(face.client(gpu, verify=False).get("/v1/models")).http_version == "HTTP/2"
    with pytest.raises(face.native.ConnectError) as caught:
        face.run(face.client(gpu, verify=True, trust_env=False).get("/v1/models"))
    assert type(caught.value) is face.native.ConnectError
    assert len(gpu.log.requests) == 1


# What stays native.


def transports(face: Face, gpu: MockGPU) -> dict[str, Callable[[], Any]]:
    make = face.HTTPTransport
    return {
        "retries": lambda: make(verify=context_of(gpu), retries=2),
        "local address": lambda: make(verify=context_of(gpu), local_address="127.0.0.1"),
        "stock": lambda: make(verify=context_of(gpu)),
        "subclass": lambda: type("Mine", (make,), {})(verify=context_of(gpu)),
    }


@pytest.mark.parametrize("name", ["retries", "local address", "stock", "subclass"])
def test_transports_that_were_passed_in_are_left_alone(face: Face, gpu: MockGPU, name: str) -> None:
    for arguments in (
        {"transport": transports(face, gpu)[name]()},
        {"mounts": {"all://": transports(face, gpu)[name]()}},
    ):
        client = face.client(gpu, **arguments)
        assert face.run(client.get("/v1/models")).http_version == "HTTP/1.1"
    if name in ("retries", "local address"):
        # Of an attached client nobody knows who made its transport: what it can do more than others tells.
        native = face.keep(face.NativeClient(transport=transports(face, gpu)[name](), base_url=gpu.url))
        assert face.run(attach(native).get("/v1/models")).http_version == "HTTP/1.1"


def _http11(face: Face) -> Any:
    core = importlib.import_module("httpcore" if face.native.__name__ == "httpx" else "httpcore2")
    return getattr(core, "AsyncHTTP11Connection" if face.asynchronous else "HTTP11Connection")


@pytest.mark.parametrize(
    "place", ["transport", "pool", "own transport", "own pool", "pick", "own pick", "backend", "http11"]
)
def test_a_mock_never_becomes_traffic(face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    client = face.client(gpu)
    face.run(client.get("/v1/models"))
    gpu.log.wait(lambda log: log.requests)  # the caller may have its answer before it is written down
    gpu.log.clear()
    name = "handle_async_request" if face.asynchronous else "handle_request"
    transport, calls = client._transport, []

    class Called(Exception):
        pass

    def mock(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        raise Called

    owners: dict[str, tuple[Any, str]] = {
        "transport": (type(transport), name),
        "pool": (type(transport._pool), name),
        "own transport": (transport, name),
        "own pool": (transport._pool, name),
        "backend": (type(face.backend(transport)), "connect_tcp"),
        "http11": (_http11(face), name),
    }
    if place in ("pick", "own pick"):
        owner = face.NativeClient if place == "pick" else client
        monkeypatch.setattr(owner, "_transport_for_url", lambda *args: face.transport(mock))
    else:
        monkeypatch.setattr(*owners[place], mock)
    with pytest.raises(Called):
        face.run(client.get("/v1/models"))
    assert len(calls) == 1
    assert gpu.log.requests == []
    monkeypatch.undo()
    assert face.run(client.get("/v1/models")).http_version == "HTTP/2"


def test_upgrades_and_traces_go_to_the_stack(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    face.run(client.get("/v1/models", headers={"connection": "upgrade", "upgrade": "other"}))

    async def atrace(name: str, info: Any) -> None:
        pass

    trace = atrace if face.asynchronous else lambda name, info: None
    face.run(client.get("/v1/models", extensions={"trace": trace}))
    assert protocols(gpu) == ["HTTP/1.1"] * 2


def test_an_old_server_is_asked_once(face: Face, old: MockGPU) -> None:
    client = face.client(old)
    for _ in range(3):
        assert face.run(client.get("/v1/models")).http_version == "HTTP/1.1"
    # A Client's first connection serves whichever protocol the server chose.
    assert len(old.log.connections) == (2 if face.asynchronous else 1)
    assert stats(client).requests.attempts == 3


def test_a_one_shot_body_reaches_an_old_server_whole(face: Face, old: MockGPU) -> None:
    client = face.client(old)
    face.run(client.put("/v1/files", content=body(face, b"one", b"two")))
    assert [record.body for record in old.log.requests] == [b"onetwo"]


def test_settings_that_http2_cannot_carry_fail_in_the_stacks_words(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    face.run(client.get("/v1/models"))
    with pytest.raises(face.native.LocalProtocolError) as caught:
        face.run(client.get("/v1/models", headers={"x": "a\nb"}))
    assert type(caught.value) is face.native.LocalProtocolError
    assert len(gpu.log.requests) == 1


# Proxies.


class Tunnels:
    """A CONNECT proxy that remembers what it was asked."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._open.append(near)
                head = near.recv(65536)
                self.heads.append(head)
                host, _, port = head.split(b" ")[1].decode().rpartition(":")
                far = socket.create_connection((host, int(port)))
                self._open.append(far)
                near.sendall(b"HTTP/1.1 200 Go on\r\n\r\n")
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pipe, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pipe(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()
        for opened in self._open:
            opened.close()


@pytest.mark.parametrize("old_server", [False, True], ids=["h2", "http/1.1"])
def test_through_a_proxy(face: Face, gpu: MockGPU, old: MockGPU, old_server: bool) -> None:
    tunnels, server = Tunnels(), old if old_server else gpu
    try:
        proxy = face.native.Proxy(f"http://user:word@{tunnels.address}", headers={"x-to-proxy": "1"})
        client = face.client(server, proxy=proxy)
        response = face.run(client.put("/v1/files", content=body(face, b"one", b"two")))
        assert response.http_version == ("HTTP/1.1" if old_server else "HTTP/2")
        assert [record.body for record in server.log.requests] == [b"onetwo"]
        assert len(tunnels.heads) == (2 if old_server else 1)
        for head in tunnels.heads:
            assert b"\r\nproxy-authorization: basic dxnlcjp3b3jk\r\n" in head.lower()
            assert b"\r\nx-to-proxy: 1\r\n" in head
        face.close(client)
    finally:
        tunnels.close()


def test_proxies_of_the_environment(face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    tunnels = Tunnels()
    try:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{tunnels.address}")
        client = face.client(gpu)
        assert face.run(client.get("/v1/models")).http_version == "HTTP/2"
        assert len(tunnels.heads) == 1
        face.close(client)
    finally:
        tunnels.close()


# Failures.


def test_a_reset_before_the_answer(face: Face, gpu: MockGPU) -> None:
    gpu.faults.push(faults.ResetStream(code=Code.INTERNAL_ERROR))
    client = face.client(gpu, plugins=PLAIN)
    with pytest.raises(face.native.RemoteProtocolError, match=r"INTERNAL_ERROR \(2\)") as caught:
        face.run(client.post(PATH, json=EMBED))
    assert caught.value.request.url.path == PATH
    assert isinstance(caught.value.__cause__, errors.TransportError)
    assert caught.value.__cause__.verdict is errors.Verdict.AMBIGUOUS
    assert stats(client).requests.attempts == 1


def test_a_reset_in_the_body(face: Face, gpu: MockGPU) -> None:
    gpu.faults.push(faults.ResetStream(code=Code.INTERNAL_ERROR, at="events"))
    client, got = face.client(gpu), []

    def consume() -> None:
        with face.stream(client, "POST", CHAT_PATH, json=CHAT) as response:
            got.extend(face.chunks(response))

    with pytest.raises(face.native.RemoteProtocolError, match=r"\(2\)") as caught:
        consume()
    assert caught.value.request.url.path == CHAT_PATH
    assert got
    assert len(gpu.log.requests) == 1
    assert stats(client).requests.errors == 1


def test_what_the_server_refused_is_sent_again_unseen(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu, plugins=PLAIN)
    face.run(client.get("/v1/models"))
    for fault in (faults.ResetStream(code=Code.REFUSED_STREAM), faults.GoAway(last_stream=0)):
        gpu.faults.push(fault)
        assert face.run(client.post(PATH, json=EMBED)).status_code == 200
    assert [record.status for record in gpu.log.requests] == [200, None, 200, None, 200]
    gpu.faults.push(faults.ResetStream(code=Code.REFUSED_STREAM, times=2))
    with pytest.raises(face.native.RemoteProtocolError, match=r"REFUSED_STREAM \(7\)"):
        face.run(client.post(PATH, json=EMBED))


def test_an_early_answer_to_a_large_upload(face: Face, gpu: MockGPU) -> None:
    gpu.faults.push(faults.EarlyResponse())
    client = face.client(gpu)
    content = body(face, *[bytes(64 * 1024)] * 256)
    response = face.run(client.post("/v1/files", content=content))
    assert (response.status_code, response.content) == (413, b"big")
    assert face.run(client.get("/v1/models")).status_code == 200
    assert len(gpu.log.connections) == 1


def test_what_the_body_raises_reaches_the_caller(face: Face, gpu: MockGPU) -> None:
    boom = KeyError("mine")

    async def tasks() -> AsyncIterator[bytes]:
        yield b"x"
        raise boom

    def threads() -> Iterator[bytes]:
        yield b"x"
        raise boom

    client = face.client(gpu, plugins={"retry": {"pure": ["*"], "backoff_initial": 0.01}})
    with pytest.raises(KeyError) as caught:
        face.run(client.put("/v1/files", content=tasks() if face.asynchronous else threads()))
    assert caught.value is boom
    assert stats(client).requests.in_flight == 0
    assert face.run(client.get("/v1/models")).http_version == "HTTP/2"


def test_a_body_of_another_length_than_declared(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    with pytest.raises(face.native.LocalProtocolError):
        face.run(client.put("/v1/files", content=body(face, b"abc"), headers={"content-length": "5"}))
    assert face.run(client.get("/v1/models")).status_code == 200


def test_a_file_is_sent_again_from_where_it_stood(sync_face: Face, gpu: MockGPU) -> None:
    client = sync_face.client(gpu, plugins=PLAIN)
    sync_face.run(client.get("/v1/models"))
    gpu.faults.push(faults.ResetStream(code=Code.REFUSED_STREAM, at="body"))
    sync_face.run(client.put("/v1/files", content=io.BytesIO(b"content")))
    assert [record.body for record in gpu.log.requests[1:]] == [b"content"] * 2


# Leaving.


@pytest.mark.parametrize("stack", ["httpx", "httpx2"])
async def test_a_cancelled_task_resets_its_stream_only(stack: str, gpu: MockGPU) -> None:
    face = Face(stack, True)
    gate = faults.Hold()
    async with face.Client(verify=context_of(gpu), base_url=gpu.url) as client:
        await client.get("/v1/models")
        gpu.faults.push(gate)
        task = asyncio.create_task(client.get("/v1/models"))
        await asyncio.to_thread(gate.wait_for, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(gpu.log.wait, lambda log: log.requests[1].outcome == "client_reset")
        assert gpu.log.requests[1].reset_code == Code.CANCEL
        gate.release()
        assert (await client.get("/v1/models")).status_code == 200
        assert len(gpu.log.connections) == 1
        assert stats(client).requests.in_flight == 0
    assert stats(client).http2.connections == 0
    face.finish()


def test_many_early_leavers_stall_nothing(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    for _ in range(40):
        with face.stream(client, "POST", CHAT_PATH, json=CHAT) as response:
            next(face.chunks(response))
    assert face.run(client.get("/v1/models")).status_code == 200
    assert len(gpu.log.connections) == 1
    assert stats(client).http2.streams == 0


def test_a_cold_burst_of_threads_makes_one_handshake(sync_face: Face, gpu: MockGPU) -> None:
    client, failed = sync_face.client(gpu), []
    together = threading.Barrier(16, timeout=30)

    def work() -> None:
        together.wait()
        try:
            assert client.post(PATH, json=EMBED).http_version == "HTTP/2"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(gpu.log.connections) == 1
