"""What the next attempt of a call finds: its body, another connection, and what the failure of the last one told."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from httpx_faces import PATH, Face
from netkit_adapters.httpx import http2 as http2_module

from netkit import errors
from netkit.errors import FailureKind, TransportError, Verdict
from netkit.facade import edge_of, stats
from netkit.flow import compose
from netkit.http2 import Engine, SyncEngine
from netkit.testing import MockGPU, faults

NO_RETRY = {"retry": False}


def _layer(client: Any, layer: Any) -> None:
    edge = edge_of(client)
    edge._default = compose([layer], edge._default)


def _one_shot(face: Face, *chunks: bytes) -> Any:
    async def tasks() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return tasks() if face.asynchronous else iter(chunks)


def _again(seen: list[Any], before: Callable[[], object] = lambda: None) -> Any:
    """A layer that notes each failure and sends once more."""

    async def again(request: Any, send: Any) -> Any:
        try:
            return await send(request)
        except TransportError as error:
            seen.append(error)
            before()
            return await send(request)

    return again


# Bodies.


def test_a_one_shot_body_is_whole_after_a_connect_that_failed(face: Face, gpu: MockGPU, http: str) -> None:
    seen: list[Any] = []
    client = face.client(gpu, plugins=NO_RETRY)
    _layer(client, _again(seen, gpu.resume_listening))
    gpu.pause_listening()
    response = face.run(client.post("/v1/files", content=_one_shot(face, b"one", b"", b"two")))
    assert response.http_version == f"HTTP/{http}"
    assert [record.body for record in gpu.log.requests] == [b"onetwo"]
    assert (seen[0].verdict, seen[0].details) == (Verdict.NOT_SENT, {"body_started": False})
    assert stats(client).requests.attempts == 2


def test_retry_sends_a_one_shot_body_that_nobody_touched(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu, plugins={"retry": {"attempts": 3, "backoff_initial": 0.01}})
    tries: list[int] = []

    async def opening(request: Any, send: Any) -> Any:
        tries.append(len(tries))
        if len(tries) == 3:
            gpu.resume_listening()
        return await send(request)

    edge = edge_of(client)
    retry = next(layer for (name, _), layer in edge._instances.items() if name == "retry")
    inner = edge._terminal
    http2 = next(layer for (name, _), layer in edge._instances.items() if name == "http2")
    edge._default = compose([retry, opening, http2], inner)
    gpu.pause_listening()
    face.run(client.post("/v1/files", content=_one_shot(face, b"one", b"two")))
    assert tries == [0, 1, 2]
    assert [record.body for record in gpu.log.requests] == [b"onetwo"]


class _Taking:
    """In place of an engine's `send`: takes from the body, then fails or falls back; from then on the real one."""

    def __init__(self, patch: pytest.MonkeyPatch, face: Face, error: TransportError) -> None:
        self._kind: Any = Engine if face.asynchronous else SyncEngine
        self._real = self._kind.send
        self._error = error
        self._left = 1
        self.taken: list[bytes] = []
        taking = self

        async def tasks(engine: Any, request: Any) -> Any:
            if not taking._left:
                return await taking._real(engine, request)
            taking._left = 0
            body = request.body
            taking.taken.append(await anext(aiter(body)) if hasattr(body, "__aiter__") else next(iter(body)))
            raise taking._error

        def threads(engine: Any, request: Any) -> Any:
            if not taking._left:
                return taking._real(engine, request)
            taking._left = 0
            taking.taken.append(next(iter(request.body)))
            raise taking._error

        patch.setattr(self._kind, "send", tasks if face.asynchronous else threads)


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[Any]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


def _files(face: Face, file: Any) -> dict[str, Any]:
    # Async clients take files in forms only.
    return {"files": {"f": ("name", file)}} if face.asynchronous else {"content": file}


@pytest.mark.parametrize("http", ["2"])
def test_a_file_that_the_engine_had_begun_is_sent_whole_by_the_stack(
    face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after a refused stream whose second connection could not be made.
    client = face.client(gpu, plugins=NO_RETRY)
    lost = TransportError("cannot connect", kind=FailureKind.CONNECT, verdict=Verdict.NOT_SENT)
    content = bytes(range(256)) * 16
    with _file(content) as file:
        taking = _Taking(monkeypatch, face, lost)
        face.run(client.post("/v1/files", **_files(face, file)))
    [record] = gpu.log.requests
    assert taking.taken[0]
    assert record.protocol == "HTTP/1.1"
    assert record.body is not None
    assert content in record.body
    assert record.body_complete


@pytest.mark.parametrize("http", ["2"])
def test_a_one_shot_body_that_the_engine_had_begun(face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    client = face.client(gpu, plugins=NO_RETRY)
    full = errors.PoolTimeout("no stream became free")
    _Taking(monkeypatch, face, full)
    _layer(client, _again(seen))
    if face.asynchronous:
        # What a task's generator gave cannot be put back.
        with pytest.raises(face.native.StreamConsumed):
            face.run(client.post("/v1/files", content=_one_shot(face, b"one", b"two")))
        assert gpu.log.requests == []
    else:
        face.run(client.post("/v1/files", content=_one_shot(face, b"one", b"two")))
        assert [record.body for record in gpu.log.requests] == [b"onetwo"]
    assert [error.details for error in seen] == [{"body_started": face.asynchronous}]


def test_a_one_shot_body_that_was_sent_is_never_sent_again(face: Face, gpu: MockGPU) -> None:
    seen: list[Any] = []
    client = face.client(gpu, plugins=NO_RETRY)
    _layer(client, _again(seen))
    gpu.faults.push(faults.ResetBeforeHeaders())
    with pytest.raises(face.native.StreamConsumed):
        face.run(client.post("/v1/files", content=_one_shot(face, b"one", b"two")))
    assert len(gpu.log.requests) == 1
    assert "body_started" not in seen[0].details


# Connections.


@pytest.mark.parametrize("pool", [True, False])
def test_a_layer_can_ask_for_another_connection(face: Face, pool: bool) -> None:
    with MockGPU(http="1.1", tls=False, launch_ms=0, per_item_ms=0) as gpu:
        client = face.client(base_url=gpu.url, plugins={**NO_RETRY, "pool": pool})

        async def twice(request: Any, send: Any) -> Any:
            await (await send(request)).discard()
            return await send(request.extend(new_connection=True))

        _layer(client, twice)
        for _ in range(2):
            assert face.run(client.get("/v1/models")).status_code == 200
        assert [record.connection for record in gpu.log.requests] == [1, 2, 2, 3]
        assert stats(client).pool.open == 1


def test_a_misdirected_request_is_sent_on_another_connection(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    assert face.run(client.get("/v1/models")).status_code == 200
    gpu.faults.push(faults.Status(421))
    assert face.run(client.post(PATH, json={"model": "mock-embed", "input": "a"})).status_code == 200
    first, refused, resent = gpu.log.requests
    assert first.connection == refused.connection != resent.connection
    assert refused.protocol == resent.protocol
    assert stats(client).requests.retries == 0


def test_a_failure_says_whether_its_connection_had_served_before(face: Face) -> None:
    seen: list[Any] = []

    async def noting(request: Any, send: Any) -> Any:
        try:
            return await send(request)
        except TransportError as error:
            seen.append(error.details)
            raise

    with MockGPU(http="1.1", tls=False, launch_ms=0, per_item_ms=0) as gpu:
        client = face.client(base_url=gpu.url, plugins=NO_RETRY)
        _layer(client, noting)
        gpu.script(faults.CloseBeforeHeaders(), faults.Pass(), faults.CloseBeforeHeaders())
        for _ in range(3):
            with contextlib.suppress(face.native.RemoteProtocolError):
                face.run(client.get("/v1/models"))
        with pytest.raises(face.native.ConnectError):
            face.run(client.get("http://127.0.0.1:1/"))
    assert seen == [{"reused": False}, {"reused": True}, {"body_started": False}]


# Bounds, and words.


def test_what_is_remembered_of_origins_is_bounded(face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    port = edge_of(face.client(gpu))._context.http2
    assert isinstance(port, http2_module.HttpxHttp2)
    monkeypatch.setattr(http2_module, "MAX_ORIGINS", 8)

    class Target:
        def __init__(self, number: int) -> None:
            self.connect = type("Connect", (), {"host": f"h{number}", "port": 443})

    for number in range(50):
        port._remember(Target(number))  # type: ignore[arg-type]
    assert len(port._http1) == 8
    assert port._knows_http1(Target(49))  # type: ignore[arg-type]
    assert not port._knows_http1(Target(0))  # type: ignore[arg-type]


def test_negotiations_leave_nothing_behind(sync_face: Face, gpu: MockGPU) -> None:
    client = sync_face.client(gpu)
    client.get("/v1/models")
    negotiation = edge_of(client)._context.http2._negotiation  # type: ignore[union-attr]
    assert negotiation._locks == {}


@pytest.mark.parametrize("method", ["PÖST", "PO ST", "post", "", "M-SEARCH", "GET\r\nX: y"])
def test_odd_methods_fail_or_pass_as_in_the_stack(face: Face, gpu: MockGPU, method: str) -> None:
    outcomes: list[Any] = []
    for client in (face.keep(face.NativeClient(verify=False)), face.client(gpu), face.client(gpu, plugins=NO_RETRY)):
        try:
            outcomes.append(face.run(client.request(method, gpu.url + "/v1/models")).status_code)
        except Exception as error:
            outcomes.append(type(error))
    assert len(set(outcomes)) == 1, outcomes
