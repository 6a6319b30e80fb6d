"""What the inference routes answer, and how the GPUs behind them behave."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import threading
import time
from typing import Any

import pytest

from netkit.testing import MockGPU, encoded_vector, expected_bytes, expected_tokens, expected_vector, faults
from netkit.testing.mock_gpu.gpus import Gpus, QueueFull

FREE: dict[str, Any] = {"launch_ms": 0, "per_item_ms": 0, "tls": False}


def post(client: Any, path: str, payload: Any) -> Any:
    reply = client.call("POST", path, json.dumps(payload).encode())
    return reply, json.loads(reply.body)


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("hello", ["hello"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_embedding_inputs_of_every_shape(given: Any, inputs: list[Any], http1: Any) -> None:
    with MockGPU(**FREE) as gpu:
        reply, answer = post(http1(gpu), "/v1/embeddings", {"input": given, "model": "m", "dimensions": 40})
        assert reply.status == 200
        assert answer["model"] == "m"
        assert [item["index"] for item in answer["data"]] == list(range(len(inputs)))
        vectors = [item["embedding"] for item in answer["data"]]
        assert vectors == [expected_vector(item, dimensions=40) for item in inputs]
        assert answer["usage"]["prompt_tokens"] == sum(1 if isinstance(i, str) else len(i) for i in inputs)


def test_base64_is_little_endian_f32(http1: Any) -> None:
    with MockGPU(**FREE, dimensions=16) as gpu:
        _, answer = post(http1(gpu), "/v1/embeddings", {"input": "a", "encoding_format": "base64"})
        packed = answer["data"][0]["embedding"]
        assert packed == encoded_vector("a", dimensions=16)
        assert list(struct.unpack("<16f", base64.b64decode(packed))) == expected_vector("a", dimensions=16)


def test_vectors_tell_inputs_apart_and_a_prefix_is_a_prefix() -> None:
    inputs: list[Any] = ["a", "b", b"a", [1, 2], [12], "1,2", {"image": "a"}]
    assert len({tuple(expected_vector(item, dimensions=16)) for item in inputs}) == len(inputs)
    assert expected_vector("a", dimensions=70)[:8] == expected_vector("a")
    assert all(-1 <= component < 1 for component in expected_vector("a", dimensions=70))


def test_expected_bytes_from_any_offset() -> None:
    whole = expected_bytes(3_000_000)
    assert whole[1_500_000:1_600_000] == expected_bytes(100_000, 1_500_000)
    assert len({whole[i : i + 32] for i in range(0, 1_048_576, 32)}) == 32768


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_data_order_keeps_the_index(order: Any, http1: Any) -> None:
    texts = [f"t{number}" for number in range(20)]
    with MockGPU(**FREE, data_order=order) as gpu:
        _, answer = post(http1(gpu), "/v1/embeddings", {"input": texts})
        indices = [item["index"] for item in answer["data"]]
        assert indices != sorted(indices)
        assert all(item["embedding"] == expected_vector(texts[item["index"]]) for item in answer["data"])


@pytest.mark.parametrize(
    ("path", "payload", "status", "says"),
    [
        ("/v1/embeddings", {"input": ["x"] * 5}, 422, "4"),
        ("/v1/embeddings", {"input": "a POISON b"}, 422, "POISON"),
        ("/v1/embeddings", {"input": []}, 400, "input"),
        ("/v1/embeddings", {"input": [1, "a"]}, 400, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "dimensions": -1}, 400, "dimensions"),
        ("/v1/embeddings", [1], 400, "object"),
        ("/embed", {"inputs": ["x"] * 5}, 422, "4"),
        ("/embed", {"inputs": 3}, 422, "inputs"),
        ("/gme", {"inputs": []}, 400, "inputs"),
        ("/gme", {"image": "a", "text": "b"}, 400, "exactly one"),
        ("/rerank", {"query": "q"}, 422, "texts"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}], "max_tokens": -1}, 400, "max_tokens"),
        ("/v1/nothing", {}, 404, "/v1/nothing"),
    ],
)
def test_errors_name_what_is_wrong(path: str, payload: Any, status: int, says: str, http1: Any) -> None:
    with MockGPU(**FREE, max_batch=4, poison="POISON") as gpu:
        reply, answer = post(http1(gpu), path, payload)
        assert reply.status == status
        message = answer["error"]["message"] if isinstance(answer["error"], dict) else answer["error"]
        assert says in message


def test_limits_of_size_and_keys(http1: Any) -> None:
    with MockGPU(**FREE, max_batch=4, batch_limit_status=413, max_body=100, api_keys=("k",)) as gpu:
        client = http1(gpu)
        key = [("Authorization", "Bearer k")]
        assert client.call("POST", "/v1/embeddings", b'{"input":"a"}').status == 401
        assert client.call("POST", "/v1/embeddings", b'{"input":"a"}', headers=key).status == 200
        batch = json.dumps({"input": ["x"] * 5}).encode()
        assert client.call("POST", "/v1/embeddings", batch, headers=key).status == 413
        assert client.call("POST", "/v1/embeddings", b'{"input":"' + b"a" * 89 + b'"}', headers=key).status == 413
        assert gpu.log.requests[-1].status == 413


def test_tei_and_gme_shapes(http1: Any) -> None:
    with MockGPU(**FREE) as gpu:
        client = http1(gpu)
        reply, vectors = post(client, "/embed", {"inputs": ["a", "b"]})
        assert vectors == [expected_vector("a"), expected_vector("b")]
        assert reply.header("x-queue-time") == "0"
        assert post(client, "/embed", {"inputs": "a"})[1] == [expected_vector("a")]
        image = "data:image/png;base64,AAAA"
        single = post(client, "/gme", {"model": "g", "image": image, "task": "t2i"})[1]
        batch = post(client, "/v1/gme", {"model": "g", "inputs": [{"image": image}, {"text": "x"}, "y"]})[1]
        assert single["data"][0]["embedding"] == batch["data"][0]["embedding"] == expected_vector(image)
        assert [item["embedding"] for item in batch["data"][1:]] == [expected_vector("x"), expected_vector("y")]
        ranked = post(client, "/rerank", {"query": "q", "texts": ["a", "b", "c"]})[1]
        assert sorted(item["index"] for item in ranked) == [0, 1, 2]
        assert [item["score"] for item in ranked] == sorted((i["score"] for i in ranked), reverse=True)


def test_chat_plain_and_streamed_say_the_same(http1: Any, http2: Any) -> None:
    messages = [
        {"role": "user", "content": [
            {"type": "text", "text": "what is this"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]},
    ]  # fmt: skip
    with MockGPU(launch_ms=0, per_item_ms=0, token_ms=0) as gpu:
        for client in (http1(gpu), http2(gpu)):
            plain = post(client, "/v1/chat/completions", {"messages": messages, "max_tokens": 7})[1]
            text = "".join(expected_tokens(messages, 7))
            assert plain["choices"][0]["message"]["content"] == text
            assert plain["usage"] == {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
            asked = {"messages": messages, "max_tokens": 7, "stream": True, "stream_options": {"include_usage": True}}
            reply = client.call("POST", "/v1/chat/completions", json.dumps(asked).encode())
            assert (reply.header("content-type") or "").startswith("text/event-stream")
            lines = [line for line in reply.body.decode().split("\n\n") if line]
            assert lines[-1] == "data: [DONE]"
            events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
            deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
            assert deltas[0]["role"] == "assistant"
            assert "".join(delta.get("content", "") for delta in deltas) == text
            assert events[-1]["usage"]["total_tokens"] == 11
            assert events[0]["usage"] is None
        complete = post(http1(gpu), "/v1/completions", {"prompt": "one two"})[1]
        assert complete["choices"][0]["text"] == "".join(expected_tokens("one two", 2))
        wrong = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x"}}]}]
        assert post(http1(gpu), "/v1/chat/completions", {"messages": wrong})[0].status == 400


async def test_the_openai_sdk_understands_it() -> None:
    import httpx2
    import openai

    with MockGPU(launch_ms=0, per_item_ms=0, token_ms=0, tls=False, api_keys=("k",)) as gpu:
        async with openai.AsyncOpenAI(base_url=gpu.url + "/v1", api_key="k", http_client=httpx2.AsyncClient()) as sdk:
            answer = await sdk.embeddings.create(model="m", input=["a", "b"])
            assert [item.embedding for item in answer.data] == [expected_vector("a"), expected_vector("b")]
            messages: Any = [{"role": "user", "content": "hi"}]
            stream = await sdk.chat.completions.create(model="m", messages=messages, max_tokens=3, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == "".join(expected_tokens(messages, 3))
            assert [model.id async for model in sdk.models.list()] == list(gpu.options.models)
        assert json.loads(gpu.log.requests[0].body or b"")["encoding_format"] == "base64"


def test_state_routes(http1: Any) -> None:
    with MockGPU(**FREE) as gpu:
        client = http1(gpu)
        post(client, "/v1/embeddings", {"input": ["a", "b"]})
        stats = json.loads(client.call("GET", "/stats").body)
        assert (stats["batches"], stats["items"], stats["requests"]) == (1, 2, 2)
        metrics = client.call("GET", "/metrics").body.decode()
        assert "mock_gpu_items_total 2" in metrics
        assert "vllm:num_requests_waiting 0" in metrics
        assert json.loads(client.call("GET", "/v1/models").body)["data"][0]["id"] == "mock-embed"
        assert client.call("GET", "/v1/models/none").status == 404
        gpu.reset()
        assert gpu.stats().items == 0
        assert gpu.log.requests == []


def test_head_is_the_head_of_get(http1: Any, http2: Any) -> None:
    with MockGPU(**FREE) as gpu:
        for client in (http1(gpu), http2(gpu)):
            for path in ("/bytes/100", "/stream/3", "/health", "/v1/models", "/status/503", "/counter"):
                reply = client.call("HEAD", path)
                assert (reply.status, reply.body) == (503 if "503" in path else 200, b"")
            assert client.call("HEAD", "/v1/embeddings").status == 405


def test_counters_and_auth(http1: Any) -> None:
    with MockGPU(**FREE) as gpu:
        client = http1(gpu)
        assert [json.loads(client.call("POST", "/counter", b"x").body)["counter"] for _ in range(3)] == [1, 2, 3]
        assert json.loads(client.call("GET", "/counter?key=k").body) == {"counter": 1}
        assert client.call("GET", "/basic-auth").header("www-authenticate") == 'Basic realm="netkit"'
        basic = "Basic " + base64.b64encode(b"me:pw").decode()
        assert client.call("GET", "/basic-auth/me/pw", headers=[("Authorization", basic)]).status == 200
        reply = client.call("GET", "/headers?x-own=1")
        assert (reply.all("set-cookie"), reply.all("x-multi")) == (
            ["first=1; Path=/", "second=2; Path=/; HttpOnly"],
            ["one", "two"],
        )
        assert reply.header("x-own") == "1"


def test_drip_gives_the_body_in_pieces(http2: Any) -> None:
    text = 'data: {"t":"é\u2028中"}\r\n\r\n'.encode()
    with MockGPU(**FREE) as gpu:
        reply = http2(gpu).call("POST", "/drip?size=1&interval_ms=0", text)
        assert reply.pieces == [bytes([byte]) for byte in text]


# The GPUs.


async def test_a_batch_costs_launch_plus_items_and_waits_its_turn() -> None:
    gpus = Gpus(1, launch=0.1, per_item=0.01, queue_size=None, max_streams=None)
    waits = await asyncio.gather(*(gpus.batch(10) for _ in range(3)))
    assert waits == pytest.approx([0.0, 0.2, 0.4], abs=0.1)  # a busy machine enqueues late
    one = gpus.stats()[0]
    assert (one.batches, one.items, one.gaps) == (3, 30, 0)
    assert one.busy == pytest.approx(0.6)
    assert gpus.utilisation() == pytest.approx(1.0)


async def test_gaps_are_counted_and_lower_the_utilisation() -> None:
    gpus = Gpus(1, launch=0.005, per_item=0, queue_size=None, max_streams=None)
    await gpus.batch(1)
    await asyncio.sleep(0.02)
    await gpus.batch(1)
    one = gpus.stats()[0]
    assert one.gaps == 1
    assert one.gap_longest >= 0.019
    assert gpus.utilisation() == pytest.approx(0.01 / (0.01 + one.gap_total))


async def test_two_gpus_share_the_queue() -> None:
    gpus = Gpus(2, launch=0.005, per_item=0, queue_size=None, max_streams=None)
    await asyncio.gather(*(gpus.batch(1) for _ in range(6)))
    assert [one.batches for one in gpus.stats()] == [3, 3]


async def test_a_cancelled_batch_leaves_the_queue_and_a_running_one_does_not_stop() -> None:
    gpus = Gpus(1, launch=0.2, per_item=0, queue_size=None, max_streams=None)
    tasks = [asyncio.create_task(gpus.batch(1)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    assert await tasks[2] == pytest.approx(0.2, abs=0.1)
    assert gpus.stats()[0].batches == 2
    assert gpus.queued == 0


async def test_queue_full() -> None:
    gpus = Gpus(1, launch=0.01, per_item=0, queue_size=2, max_streams=None)
    tasks = [asyncio.create_task(gpus.batch(1)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull) as full:
        await gpus.batch(1)
    assert full.value.retry_after == pytest.approx(0.02)
    await asyncio.gather(*tasks)
    assert gpus.rejected == 1


async def test_stream_slots_are_first_come_first_served_and_survive_cancellation() -> None:
    gpus = Gpus(1, launch=0, per_item=0, queue_size=None, max_streams=1)
    order: list[int] = []
    release = asyncio.Event()

    async def hold(number: int) -> None:
        async with gpus.stream():
            order.append(number)
            await release.wait()

    tasks = [asyncio.create_task(hold(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    assert (order, gpus.streams, gpus.queued) == ([0], 1, 2)
    tasks[0].cancel()
    await asyncio.sleep(0)
    tasks[2].cancel()  # at the moment when the slot is handed to it
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order[-1] == 3
    assert (gpus.streams, gpus.peak_streams) == (0, 1)


def test_overload_is_429_with_retry_after(http1: Any) -> None:
    with MockGPU(tls=False, launch_ms=60_000, queue_size=1) as gpu:
        clients = [http1(gpu) for _ in range(3)]
        for number, client in enumerate(clients):
            client.request("POST", "/v1/embeddings", b'{"input":"a"}')
            gpu.log.wait(lambda log, number=number: len(log.requests) > number)
            if number < 2:
                while gpu.stats().queued < number:
                    time.sleep(0.001)
        reply = clients[2].reply()
        assert reply.status == 429
        assert reply.header("retry-after") == "60"
        assert json.loads(reply.body)["error"]["message"] == "Model is overloaded"
        assert gpu.stats().rejected == 1
        clients[1].close()
        gpu.log.wait(lambda log: sum(record.outcome == "client_left" for record in log.requests) == 1)
        assert gpu.stats().queued == 0


def test_streams_beyond_the_slots_wait(http2: Any) -> None:
    with MockGPU(launch_ms=0, per_item_ms=0, token_ms=1, max_streams=2) as gpu:
        client = http2(gpu)
        body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 20, "stream": True}).encode()
        streams = [client.request("POST", "/v1/chat/completions", body) for _ in range(6)]
        for stream in streams:
            assert client.reply(stream).status == 200
        gpu.log.wait(lambda log: all(record.ended for record in log.requests))
        assert gpu.stats().peak_streams == 2
        assert gpu.stats().streams == 0


# The log, and the wire.


def test_log_waits_in_threads_and_tasks(http1: Any) -> None:
    with MockGPU(**FREE) as gpu:
        seen: list[int] = []

        def wait() -> None:
            gpu.log.wait(lambda log: len(log.requests) == 3)
            seen.append(len(gpu.log.requests))

        thread = threading.Thread(target=wait)
        thread.start()
        client = http1(gpu)
        for _ in range(3):
            client.call("GET", "/health")
        thread.join(10)
        assert seen == [3]
        asyncio.run(gpu.log.wait_async(lambda log: len(log.requests) == 3))
        with pytest.raises(TimeoutError, match="GET /health 200 complete"):
            gpu.log.wait(lambda log: False, timeout=0.01)
        with pytest.raises(TimeoutError):
            asyncio.run(gpu.log.wait_async(lambda log: False, timeout=0.01))


def test_log_keeps_within_its_bounds(http1: Any) -> None:
    with MockGPU(**FREE, log_size=10, keep_body=4) as gpu:
        client = http1(gpu)
        for number in range(15):
            client.call("POST", "/echo", b"x" * number)
        records = gpu.log.requests
        assert len(records) == 10
        assert gpu.log.dropped == 5
        assert records[-1].body is None
        assert (records[-1].body_size, len(records[-1].body_sha256)) == (14, 64)
        with pytest.raises(ValueError, match="larger"):
            records[-1].json()
        gpu.log.clear()
        assert (gpu.log.requests, len(gpu.log.connections)) == ([], 1)


@pytest.mark.parametrize("tls", [True, False])
def test_round_trip_time_acts_on_connect_and_on_each_exchange(tls: bool, http1: Any, http2: Any) -> None:
    with MockGPU(tls=tls, rtt_ms=40) as gpu:
        start = time.monotonic()
        client = http1(gpu)
        assert client.call("GET", "/health").status == 200
        first = time.monotonic()
        assert client.call("GET", "/bytes/100000").body == expected_bytes(100_000)
        second = time.monotonic()
        assert second - first >= 0.039
        # The TCP handshake, one round trip of TLS 1.3, the exchange.
        assert first - start >= (0.119 if tls else 0.079)
        assert http2(gpu).call("GET", "/bytes/100000").body == expected_bytes(100_000)


def test_bandwidth_throttles_both_ways(http1: Any, http2: Any) -> None:
    with MockGPU(bandwidth=1_000_000) as gpu:
        for client in (http1(gpu), http2(gpu)):
            start = time.monotonic()
            assert client.call("GET", "/bytes/60000").body == expected_bytes(60_000)
            middle = time.monotonic()
            assert client.call("POST", "/upload", expected_bytes(60_000)).status == 200
            assert middle - start >= 0.055
            assert time.monotonic() - middle >= 0.055


def test_an_end_travels_behind_its_bytes(http1: Any) -> None:
    with MockGPU(tls=False, rtt_ms=20, faults=[faults.CutBody(after_bytes=50)]) as gpu:
        client = http1(gpu)
        client.request("GET", "/bytes/100")
        got, how = client.rest()
        assert (got.partition(b"\r\n\r\n")[2], how) == (expected_bytes(50), "fin")
