"""Request bodies: what can be sent again, and what a layer's change makes of a request (CASES C21)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx_faces import Face

from netkit.facade import edge_of
from netkit.flow import compose
from netkit.messages import Body
from netkit.testing import MockGPU, faults

OFF = {"retry": False, "pool": False}
DATA = bytes(range(256)) * 1024


def spied(face: Face, gpu: MockGPU, *found: Any) -> Any:
    client = face.client(gpu, plugins=OFF)
    edge = edge_of(client)
    edge._default = compose(found, edge._default)
    return client


SYNC_ONLY = {"file", "file-at-offset", "list", "memory"}


def arguments_of(name: str, file: Any) -> dict[str, Any]:
    """Arguments of a call whose body can be sent twice."""
    if name == "file-at-offset":
        file.seek(100)
    found: dict[str, dict[str, Any]] = {
        "bytes": {"content": DATA},
        "json": {"json": {"a": 1}},
        "form": {"data": {"a": "1", "b": "2"}},
        "multipart-bytes": {"files": {"f": ("name", DATA)}},
        "multipart-file": {"files": {"f": file}, "data": {"x": "y"}},
        "file": {"content": file},
        "file-at-offset": {"content": file},
        "list": {"content": [b"a", b"b", DATA]},
        "memory": {"content": io.BytesIO(DATA)},
    }
    return found[name]


NAMES = ["bytes", "json", "form", "multipart-bytes", "multipart-file", "file", "file-at-offset", "list", "memory"]


@pytest.mark.parametrize("name", NAMES)
def test_the_second_attempt_sends_the_same_bytes(face: Face, gpu: MockGPU, tmp_path: Path, name: str) -> None:
    if face.asynchronous and name in SYNC_ONLY:
        pytest.skip("async clients take no such body")
    if face.stack == "httpx" and name == "file-at-offset":
        pytest.skip("httpx declares the whole file's length, and fails by itself")
    path = tmp_path / "body"
    path.write_bytes(DATA)
    client = face.client(gpu, plugins={"retry": {"attempts": 2, "backoff_initial": 0.01}})
    gpu.faults.push(faults.statuses(503, 503))
    with path.open("rb") as file:
        face.run(client.put("/v1/files", **arguments_of(name, file)))
    first, second = gpu.log.requests
    assert first.body_sha256 == second.body_sha256
    assert first.headers == second.headers
    assert first.body_size == second.body_size > 0
    if name == "file-at-offset":
        assert first.body_sha256 == hashlib.sha256(DATA[100:]).hexdigest()


def test_a_generator_is_sent_once(face: Face, gpu: MockGPU) -> None:
    def once() -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    async def async_once() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    client = face.client(gpu, plugins={"retry": {"attempts": 3, "backoff_initial": 0.01}})
    gpu.faults.push(faults.statuses(503, 503))
    response = face.run(client.put("/v1/files", content=async_once() if face.asynchronous else once()))
    assert response.status_code == 503
    assert [record.body for record in gpu.log.requests] == [b"onetwo"]


def test_a_layer_that_resends_a_generator_gets_the_native_error(face: Face, gpu: MockGPU) -> None:
    async def twice(request: Any, send: Any) -> Any:
        assert not request.body.replayable
        await (await send(request)).discard()
        return await send(request)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"

    client = spied(face, gpu, twice)
    with pytest.raises(face.native.StreamConsumed):
        face.run(client.put("/v1/files", content=chunks() if face.asynchronous else iter([b"x"])))
    assert len(gpu.log.requests) == 1


def test_what_layers_see_of_a_body(face: Face, gpu: MockGPU) -> None:
    seen: list[Body] = []

    async def look(request: Any, send: Any) -> Any:
        seen.append(request.body)
        return await send(request)

    client = spied(face, gpu, look)
    face.run(client.get("/v1/models"))
    face.run(client.post("/v1/files", content=b"abc"))
    face.run(client.post("/v1/files", files={"f": b"abc"}))
    assert [(body.content, body.replayable) for body in seen] == [(b"", True), (b"abc", True), (None, True)]
    assert seen[2].size == gpu.log.requests[2].body_size


@pytest.mark.parametrize("kind", ["bytes", "reopenable", "one-shot", "empty"])
def test_a_changed_body_is_framed_anew(face: Face, gpu: MockGPU, http: str, kind: str) -> None:
    new = {
        "bytes": Body.of(b"changed"),
        "reopenable": Body.reopenable(lambda: [b"chan", b"ged"], 7),
        "one-shot": Body.one_shot(iter([b"chan", b"ged"])),
        "empty": Body.of(b""),
    }[kind]

    async def change(request: Any, send: Any) -> Any:
        return await send(request.replace(body=new))

    face.run(spied(face, gpu, change).post("/v1/files", content=b"original body"))
    record = gpu.log.requests[0]
    assert record.body == (b"" if kind == "empty" else b"changed")
    assert record.header("content-length") == {"one-shot": None, "empty": "0"}.get(kind, "7")
    # HTTP/2 has frames of its own.
    assert record.header("transfer-encoding") == ("chunked" if kind == "one-shot" and http == "1.1" else None)


def test_changed_headers_method_and_url(face: Face, gpu: MockGPU) -> None:
    async def change(request: Any, send: Any) -> Any:
        return await send(
            request.replace(
                method="PUT",
                url=request.url.replace("/old", "/new?q=1"),
                headers=request.headers.add("X-Twice", "b").set("X-Name", "Ünïcode"),
            )
        )

    response = face.run(spied(face, gpu, change).post("/old", content=b"x", headers={"X-Twice": "a"}))
    record = gpu.log.requests[0]
    assert (record.method, record.target, record.body) == ("PUT", "/new?q=1", b"x")
    assert [value for name, value in record.headers if name.lower() == "x-twice"] == ["a", "b"]
    # What the caller asked for is what the response belongs to.
    assert (response.request.method, response.request.url.path) == ("POST", "/old")


def test_another_origin_gets_its_own_host_and_transport(face: Face, gpu: MockGPU, plain_gpu: MockGPU) -> None:
    async def move(request: Any, send: Any) -> Any:
        return await send(request.replace(url=request.url.replace(gpu.url, plain_gpu.url)))

    client = spied(face, gpu, move)
    assert face.run(client.get("/v1/models")).status_code == 200
    face.run(client.get("/v1/models", headers={"host": "mine"}))
    assert gpu.log.requests == []
    host = plain_gpu.url.partition("://")[2]
    assert [record.authority for record in plain_gpu.log.requests] == [host, "mine"]


def test_the_wrong_kind_of_body_fails_as_natively(face: Face, gpu: MockGPU) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"

    client = face.client(gpu)
    with pytest.raises(RuntimeError, match="Attempted to send"):
        face.run(client.post("/v1/files", content=iter([b"x"]) if face.asynchronous else chunks()))
    assert gpu.log.requests == []


def test_a_stack_of_unknown_layout_sends_files_once(sync_face: Face, tmp_path: Path) -> None:
    import dataclasses

    from netkit_adapters.httpx.bodies import body_of

    face = sync_face
    stack = edge_stack(face)
    request = face.native.Request("POST", "http://host/", content=io.BytesIO(b"abc"))
    assert body_of(stack, request).replayable
    unknown = dataclasses.replace(stack, iterator_stream=None, multipart_stream=None)
    assert not body_of(unknown, request).replayable


def edge_stack(face: Face) -> Any:
    return face.client()._netkit_wiring.stack
