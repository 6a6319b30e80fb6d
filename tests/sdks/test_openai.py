"""The OpenAI SDK: its own clients, netkit's as `http_client`, and whose retries they are."""

from __future__ import annotations

from typing import Any

import pytest

import netkit
from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer

from .conftest import Seen

openai = pytest.importorskip("openai")
httpx2 = pytest.importorskip("httpx2")

MESSAGES: Any = [{"role": "user", "content": "hello"}]


def test_its_own_client(gpu: MockGPU, seen: Seen) -> None:
    with openai.OpenAI(api_key="k", base_url=f"{gpu.url}/v1") as sdk:
        assert isinstance(sdk._client, netkit.httpx2.Client)
        made = sdk.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
        assert [item.index for item in made.data] == [0, 1]
        with sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True, max_tokens=4) as events:
            assert "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert netkit.stats(sdk._client).requests.total == 2
    seen.check(2)


async def test_its_own_async_client(gpu: MockGPU, seen: Seen) -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url=f"{gpu.url}/v1") as sdk:
        await sdk.embeddings.create(model="m", input="a", encoding_format="float")
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True, max_tokens=4)
        assert [event async for event in stream]
        assert netkit.stats(sdk._client).requests.total == 2
    seen.check(2)


@pytest.mark.parametrize("whose", ["sdk", "netkit"])
def test_one_failure_is_one_retry(gpu: MockGPU, seen: Seen, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Answer.json({}, status=503, headers=[("retry-after", "0.01")]), Answer.json({"data": []})])
    gpu.route("/v1/models", lambda _: next(answers))
    if whose == "netkit":
        monkeypatch.setenv("NETKIT_RETRY", "true")
    with openai.OpenAI(api_key="k", base_url=f"{gpu.url}/v1", max_retries=2 if whose == "sdk" else 0) as sdk:
        assert list(sdk.models.list()) == []
        counted = netkit.stats(sdk._client).requests
    seen.check(2)
    assert (counted.total, counted.attempts) == ((2, 2) if whose == "sdk" else (1, 2))


def test_a_client_of_the_users(gpu: MockGPU, seen: Seen) -> None:
    """`http_client=` with settings of its own, under `install` as without it."""
    with netkit.httpx2.Client(plugins={"pool": {"max_connections": 3}}) as client:
        sdk = openai.OpenAI(api_key="k", base_url=f"{gpu.url}/v1", http_client=client)
        sdk.embeddings.create(model="m", input="a", encoding_format="float")
        assert netkit.stats(client).requests.total == 1
    seen.check(1)
