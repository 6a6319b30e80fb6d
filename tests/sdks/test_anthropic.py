"""The Anthropic SDK: a message, a streamed message, and a retry of its own.

The client that it makes by itself brings a transport with socket options of its own: that is what gets called, over
HTTP/1.1, with netkit's chain around it. HTTP/2 takes a client of netkit's as `http_client`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import netkit
from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer, Exchange

from .conftest import Seen

anthropic = pytest.importorskip("anthropic")

TEXT = "é\u2028中"
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": TEXT}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}


def _events() -> bytes:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}}
    events = [
        {"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        delta,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    lines = (f"event: {e['type']}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events)
    return "".join(lines).encode()


async def _bytewise(payload: bytes) -> AsyncIterator[bytes]:
    for byte in payload:
        yield bytes([byte])


def _messages(exchange: Exchange) -> Answer:
    if json.loads(exchange.content).get("stream"):
        return Answer(200, [("content-type", "text/event-stream")], _bytewise(_events()))
    return Answer.json(MESSAGE)


PROTOCOLS = {"own": "HTTP/1.1", "netkit's": "HTTP/2"}


@pytest.mark.parametrize("whose", list(PROTOCOLS))
def test_messages(gpu: MockGPU, seen: Seen, whose: str) -> None:
    gpu.route("/v1/messages", _messages)
    client = None if whose == "own" else netkit.httpx2.Client()
    with anthropic.Anthropic(api_key="k", base_url=gpu.url, http_client=client) as sdk:
        assert sdk.messages.create(**ASKED).content[0].text == TEXT
        with sdk.messages.stream(**ASKED) as stream:
            assert "".join(stream.text_stream) == TEXT
        assert netkit.stats(sdk._client).requests.total == 2
    seen.check(2, protocol=PROTOCOLS[whose])


@pytest.mark.parametrize("whose", list(PROTOCOLS))
async def test_messages_in_tasks(gpu: MockGPU, seen: Seen, whose: str) -> None:
    gpu.route("/v1/messages", _messages)
    client = None if whose == "own" else netkit.httpx2.AsyncClient()
    async with anthropic.AsyncAnthropic(api_key="k", base_url=gpu.url, http_client=client) as sdk:
        assert (await sdk.messages.create(**ASKED)).content[0].text == TEXT
        async with sdk.messages.stream(**ASKED) as stream:
            assert "".join([text async for text in stream.text_stream]) == TEXT
    seen.check(2, protocol=PROTOCOLS[whose])


def test_its_own_retry_is_the_only_one(gpu: MockGPU, seen: Seen) -> None:
    answers = iter([Answer.json({}, status=529, headers=[("retry-after-ms", "1")]), Answer.json(MESSAGE)])
    gpu.route("/v1/messages", lambda _: next(answers))
    with anthropic.Anthropic(api_key="k", base_url=gpu.url) as sdk:
        assert sdk.messages.create(**ASKED).id == "msg_1"
    seen.check(2, protocol=PROTOCOLS["own"])
