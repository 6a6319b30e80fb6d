"""The life of a response: events at once, one end, and a connection that is free when it is told (CASES C05, C60,
C64, C65)."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face, served

from netkit.errors import BodyClosed
from netkit.facade import edge_of, stats
from netkit.flow import compose
from netkit.http2 import Code
from netkit.testing import MockGPU, faults

OFF = {"retry": False, "pool": False}
CHAT = {"model": "mock-chat", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5}
CHAT_PATH = "/v1/chat/completions"


class Watch:
    """A layer that writes down the life of each body."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.ends: list[BaseException | None] = []
        self.released = 0

    async def __call__(self, request: Any, send: Any) -> Any:
        response = await send(request)
        response.observe(self.chunk, self.ends.append)
        response.body.on_release(self.release)
        return response

    def chunk(self, data: bytes) -> bytes:
        self.chunks.append(data)
        return data

    def release(self) -> None:
        self.released += 1


def watched(face: Face, gpu: MockGPU, *more: Any, **arguments: Any) -> tuple[Any, Watch]:
    client = face.client(gpu, plugins=OFF, **arguments)
    watch = Watch()
    edge = edge_of(client)
    edge._default = compose([*more, watch], edge._default)
    return client, watch


def test_a_body_read_to_its_end(face: Face, gpu: MockGPU) -> None:
    client, watch = watched(face, gpu)
    response = face.run(client.get("/v1/models"))
    assert b"".join(watch.chunks) == response.content
    assert watch.ends == [None]
    assert watch.released == 1
    assert stats(client).requests.in_flight == 0
    assert stats(client).first_byte.p50 > 0


def test_bodies_without_content_end_too(face: Face, gpu: MockGPU) -> None:
    client, watch = watched(face, gpu)
    gpu.faults.push([faults.Status(204), faults.Status(304)])
    for method in ("GET", "GET", "HEAD"):
        face.run(client.request(method, "/v1/models"))
    assert watch.ends == [None] * 3
    assert watch.chunks == []


@pytest.mark.parametrize("http", ["1.1"])
def test_the_connection_is_free_when_the_end_is_told(face: Face, gpu: MockGPU) -> None:
    client, _ = watched(face, gpu)
    idle: list[int] = []

    async def look(request: Any, send: Any) -> Any:
        response = await send(request)
        response.body.on_release(lambda: idle.append(stats(client).pool.idle))
        return response

    edge = edge_of(client)
    edge._default = compose([look], edge._default)
    face.run(client.get("/v1/models"))
    with face.stream(client, "GET", "/v1/models") as response:
        assert idle == [1]
        for _ in face.chunks(response):
            pass
        assert idle == [1, 1]


def test_leaving_early(face: Face, gpu: MockGPU) -> None:
    client, watch = watched(face, gpu)
    with face.stream(client, "POST", CHAT_PATH, json=CHAT) as response:
        chunks = face.chunks(response)
        next(chunks)
        assert watch.ends == []
    assert [type(end) for end in watch.ends] == [BodyClosed]
    assert watch.released == 1
    assert stats(client).requests.errors == 0


def test_an_abandoned_response_ends_at_once_and_is_closed_before_the_next_call(
    face: Face, gpu: MockGPU, http: str
) -> None:
    client, watch = watched(face, gpu)

    def abandon() -> None:
        request = client.build_request("POST", CHAT_PATH, json={**CHAT, "max_tokens": 1000})
        face.run(client.send(request, stream=True))

    abandon()
    gc.collect()
    assert watch.released == 1
    assert [type(end) for end in watch.ends] == [BodyClosed]
    assert stats(client).requests.in_flight == 0
    if http == "2":
        # The server is told without waiting for a next call; the loop needs turns for it.
        face.wait(gpu, lambda log: log.requests[0].outcome == "client_reset")
        assert gpu.log.requests[0].reset_code == Code.CANCEL
    face.run(client.get("/v1/models"))
    assert [type(end) for end in watch.ends] == [BodyClosed, type(None)]
    assert stats(client).requests.in_flight == 0
    assert stats(client).pool.in_use == 0
    if http == "1.1":
        gpu.log.wait(lambda log: log.requests[0].outcome == "client_left")


@pytest.mark.parametrize(
    "plugins", [{"pool": {"max_connections": 1}}, {"limit": {"concurrency": 1}}], ids=["pool", "limit"]
)
def test_slots_of_abandoned_responses_come_back(face: Face, gpu: MockGPU, plugins: dict[str, Any]) -> None:
    client = face.client(gpu, plugins=plugins, timeout=face.native.Timeout(5, pool=1))
    for _ in range(3):
        face.run(client.send(client.build_request("POST", CHAT_PATH, json=CHAT), stream=True))
        gc.collect()
    assert face.run(client.get("/v1/models")).status_code == 200


def test_reading_in_a_layer_leaves_the_body_to_the_caller(face: Face, gpu: MockGPU) -> None:
    contents: list[bytes] = []

    async def read(request: Any, send: Any) -> Any:
        response = await send(request)
        contents.append(await response.read())
        contents.append(await response.read())
        return response

    client, watch = watched(face, gpu, read)
    response = face.run(client.post(PATH, json=EMBED))
    assert contents == [response.content, response.content]
    assert b"".join(watch.chunks) == response.content
    assert watch.ends == [None]
    assert stats(client).first_byte.p50 > 0


def test_changes_by_an_observer_reach_the_caller(face: Face, gpu: MockGPU) -> None:
    async def shout(request: Any, send: Any) -> Any:
        response = await send(request)
        await response.read()
        response.observe(lambda chunk: chunk.upper())
        return response

    client, _ = watched(face, gpu, shout)
    response = face.run(client.get("/v1/models"))
    assert b"DATA" in response.content
    assert b"data" not in response.content


def test_a_response_given_up_by_a_layer_frees_its_connection(face: Face, gpu: MockGPU, http: str) -> None:
    async def again(request: Any, send: Any) -> Any:
        first = await send(request)
        await first.discard()
        return await send(request)

    client, watch = watched(face, gpu, again)
    face.run(client.get("/v1/models"))
    assert [type(end) for end in watch.ends] == [BodyClosed, type(None)]
    # A small declared remainder is read, and the connection used again.
    before = len(gpu.log.connections)
    assert stats(client).pool.open + stats(client).http2.connections == 1
    with face.stream(client, "POST", CHAT_PATH, json=CHAT) as response:
        face.read(response)
    # HTTP/2 resets a stream; its connection lives on.
    assert len(gpu.log.connections) == before + (http == "1.1")


def test_compressed_bodies_are_decoded_by_the_stack(face: Face) -> None:
    import gzip

    packed = gzip.compress(b"hello")
    seen: list[bytes] = []

    async def look(request: Any, send: Any) -> Any:
        response = await send(request)
        response.observe(lambda chunk: (seen.append(chunk), chunk)[1])
        return response

    def handler(request: Any) -> Any:
        stream = face.native.ByteStream(packed)
        return face.native.Response(200, headers={"content-encoding": "gzip"}, stream=stream)

    client = face.client(transport=face.transport(handler), plugins=OFF)
    edge = edge_of(client)
    edge._default = compose([look], edge._default)
    assert face.run(client.get("http://host/")).text == "hello"
    assert seen == [packed]


def test_complete_responses_of_mocks_are_seen_by_observers(face: Face) -> None:
    seen: list[Any] = []

    async def look(request: Any, send: Any) -> Any:
        response = await send(request)
        response.observe(lambda chunk: (seen.append(chunk), chunk)[1], seen.append)
        seen.append(await response.read())
        return response

    response = face.native.Response(200, json={"a": 1})
    client = face.client(transport=face.transport(lambda request: response), plugins=OFF)
    edge = edge_of(client)
    edge._default = compose([look], edge._default)
    for _ in range(2):
        assert face.run(client.get("http://host/")) is response
    assert seen == [response.content, None, response.content] * 2
    assert stats(client).requests.in_flight == 0


# C05: streams read to their end give their connections back by themselves.


def test_streams_read_to_the_end_without_close(face: Face, gpu: MockGPU, http: str) -> None:
    client = face.client(gpu, plugins={"pool": {"max_connections": 2, "acquire_timeout": 2}})
    held = []
    for _ in range(10):
        response = face.run(client.send(client.build_request("POST", CHAT_PATH, json=CHAT), stream=True))
        assert b"[DONE]" in b"".join(face.chunks(response))
        held.append(response)
    # An AsyncClient asks for HTTP/2 on a connection of its own.
    assert len(gpu.log.connections) == (2 if face.asynchronous and http == "1.1" else 1)
    assert stats(client).pool.in_use == 0


# C60: what died after one event was delivered is told, not replayed.


def test_a_stream_that_dies_is_not_replayed(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu, plugins={"retry": {"attempts": 3, "pure": ["*"], "backoff_initial": 0.01}})
    gpu.faults.push(faults.CutBody(after_events=1))
    got: list[bytes] = []

    def consume() -> None:
        with face.stream(client, "POST", CHAT_PATH, json=CHAT) as response:
            got.extend(face.chunks(response))

    with pytest.raises((face.native.RemoteProtocolError, face.native.ReadError)) as caught:
        consume()
    assert caught.value.request.url.path == CHAT_PATH
    assert len(gpu.log.requests) == 1
    assert b"".join(got).count(b'"role"') <= 1
    assert stats(client).requests.attempts == 1


# C64: leaving reaches the server.


def test_the_server_sees_that_the_caller_left(face: Face, http: str) -> None:
    with MockGPU(http=served(http), launch_ms=0, token_ms=20) as gpu:
        client, outcome = face.client(gpu), "client_left" if http == "1.1" else "client_reset"
        with face.stream(client, "POST", CHAT_PATH, json={**CHAT, "max_tokens": 1000}) as response:
            chunks = face.chunks(response)
            next(chunks)
        left = time.monotonic()
        gpu.log.wait(lambda log: log.requests[0].outcome == outcome)
        assert gpu.log.requests[0].ended - left < 2
        assert stats(client).pool.in_use == 0


# C65: no event waits for the next one, and none is merged with another.


def test_the_first_event_is_delivered_while_the_server_holds_the_second(face: Face, gpu: MockGPU) -> None:
    gate = faults.Hold(at="head")
    gpu.faults.push(gate)
    client = face.client(gpu, plugins={"retry": True, "pool": True})
    # The head alone is enough for the response to be there.
    with face.stream(client, "POST", CHAT_PATH, json=CHAT) as response:
        assert response.status_code == 200
        gate.release()
        chunks = face.chunks(response)
        assert next(chunks).startswith(b"data: ")
        assert len(gpu.log.requests) == 1


def test_chunks_are_neither_merged_nor_kept(face: Face) -> None:
    import tracemalloc

    made = 64
    size = 256 * 1024

    def sync_stream() -> Any:
        for _ in range(made):
            yield bytes(size)

    async def async_stream() -> Any:
        for _ in range(made):
            yield bytes(size)

    def handler(request: Any) -> Any:
        return face.native.Response(200, content=async_stream() if face.asynchronous else sync_stream())

    client = face.client(transport=face.transport(handler))
    with face.stream(client, "GET", "http://host/") as response:
        chunks = face.chunks(response)
        assert len(next(chunks)) == size
        tracemalloc.start()
        try:
            sizes = {len(chunk) for chunk in chunks}
            assert tracemalloc.get_traced_memory()[1] < 8 * size
        finally:
            tracemalloc.stop()
    assert sizes == {size}
