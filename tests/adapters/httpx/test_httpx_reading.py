"""Answers that are here whole are read at once, and leave responses as the stack's own reading leaves them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face

from netkit.facade import edge_of, stats
from netkit.flow import compose
from netkit.testing import MockGPU, faults


@pytest.fixture
def http() -> str:
    return "2"


def _reading(face: Face) -> Any:
    return __import__(f"netkit_adapters.{face.stack}.faces", fromlist=["SHAPES"]).SHAPES.reading


def _state(response: Any) -> dict[str, Any]:
    left_out = ("_decoder", "stream", "headers", "extensions", "_request", "_elapsed", "history")
    return {name: value for name, value in response.__dict__.items() if name not in left_out}


def test_a_response_is_as_the_stack_leaves_it(face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    kind = type(_reading(face))
    take = kind.take

    def noting(self: Any, response: Any, *, asynchronous: bool) -> bool:
        taken.append(take(self, response, asynchronous=asynchronous))
        return taken[-1]

    monkeypatch.setattr(kind, "take", noting)
    client = face.client(gpu)
    native = face.keep(face.NativeClient(verify=False, http2=True, base_url=gpu.url))
    expected, got = (face.run(one.post(PATH, json=EMBED)) for one in (native, client))
    assert taken == [True]
    assert _state(got) == _state(expected)
    assert got.elapsed.total_seconds() > 0
    assert (got.is_closed, got.is_stream_consumed) == (True, True)
    assert got.num_bytes_downloaded == len(got.content) == int(got.headers["content-length"])
    assert got.json() == expected.json()
    assert face.read(got) == got.content
    assert pickle.loads(pickle.dumps(got)).content == got.content
    with pytest.raises(face.native.StreamConsumed):
        list(face.chunks(got))
    assert stats(client).requests.in_flight == 0
    assert stats(client).first_byte.mean > 0


def test_observers_see_and_change_what_is_read(face: Face, gpu: MockGPU) -> None:
    ends: list[Any] = []

    async def upper(request: Any, send: Any) -> Any:
        response = await send(request)
        response.observe(lambda chunk: chunk.upper(), ends.append)
        return response

    client = face.client(gpu)
    edge = edge_of(client)
    edge._default = compose([upper], edge._default)
    response = face.run(client.get("/v1/models"))
    assert response.content == response.content.upper()
    assert b"MODEL" in response.content
    assert ends == [None]


def test_an_observer_that_raises_ends_the_call(face: Face, gpu: MockGPU) -> None:
    async def raising(request: Any, send: Any) -> Any:
        response = await send(request)

        def refuse(chunk: bytes) -> bytes:
            raise LookupError("no")

        response.observe(refuse)
        return response

    client = face.client(gpu)
    edge = edge_of(client)
    edge._default = compose([raising], edge._default)
    with pytest.raises(LookupError):
        face.run(client.get("/v1/models"))
    requests = stats(client).requests
    assert (requests.in_flight, requests.errors) == (0, 1)


def test_encoded_and_empty_answers(face: Face, gpu: MockGPU) -> None:
    import gzip

    client = face.client(gpu)
    packed = gzip.compress(b"text")
    gpu.faults.push(faults.Status(200, body=packed, headers={"content-encoding": "gzip"}))
    response = face.run(client.get("/v1/models"))
    assert (response.content, response.num_bytes_downloaded) == (b"text", len(packed))
    gpu.faults.push(faults.Status(204, body=b""))
    response = face.run(client.get("/v1/models"))
    assert (response.status_code, response.content, response.is_closed) == (204, b"", True)
    assert face.run(client.head("/v1/models")).content == b""


def test_a_patched_read_or_send_is_called(face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    client, asked = face.client(gpu), list[str]()
    name = "aread" if face.asynchronous else "read"
    own = getattr(face.native.Response, name)
    monkeypatch.setattr(face.native.Response, name, lambda self: (asked.append("read"), own(self))[1])
    face.run(client.get("/v1/models"))
    assert asked == ["read"]
    monkeypatch.undo()
    send = face.NativeClient.send

    def patched(self: Any, request: Any, **options: Any) -> Any:
        asked.append(f"send {options['stream']}")
        return send(self, request, **options)

    monkeypatch.setattr(face.NativeClient, "send", patched)
    assert face.run(client.get("/v1/models")).is_closed
    assert asked == ["read", "send False"]


def test_redirects_hooks_and_streams_are_as_ever(face: Face, gpu: MockGPU) -> None:
    states: list[tuple[bool, bool]] = []

    def hook(response: Any) -> None:
        states.append((response.is_closed, hasattr(response, "_content")))

    async def async_hook(response: Any) -> None:
        hook(response)

    hooks = {"response": [async_hook if face.asynchronous else hook]}
    client = face.client(gpu, event_hooks=hooks, follow_redirects=True)
    gpu.faults.push(faults.Status(302, headers={"location": "/v1/models"}))
    response = face.run(client.get("/v1/models"))
    assert [earlier.status_code for earlier in response.history] == [302]
    assert states == [(False, False)] * 2
    with face.stream(client, "GET", "/v1/models") as streamed:
        assert not streamed.is_closed
        with pytest.raises(face.native.ResponseNotRead):
            streamed.content  # noqa: B018
        assert b"".join(face.chunks(streamed))
