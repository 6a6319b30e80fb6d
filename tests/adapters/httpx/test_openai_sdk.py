"""The OpenAI SDK on netkit's clients: embeddings and a streamed chat."""

from __future__ import annotations

from typing import Any

import pytest
from httpx_faces import context_of
from netkit_adapters import httpx2

from netkit.facade import stats
from netkit.testing import MockGPU, expected_vector

openai = pytest.importorskip("openai")

MESSAGES: Any = [{"role": "user", "content": "hello"}]


def test_sync(gpu: MockGPU, http: str) -> None:
    client = httpx2.Client(verify=context_of(gpu))
    sdk = openai.OpenAI(api_key="k", base_url=f"{gpu.url}/v1", http_client=client)
    made = sdk.embeddings.create(model="mock-embed", input=["a", "b"], encoding_format="float")
    expected = [expected_vector(text) for text in ("a", "b")]
    assert [item.embedding for item in made.data] == [pytest.approx(vector) for vector in expected]
    with sdk.chat.completions.create(model="mock-chat", messages=MESSAGES, stream=True, max_tokens=4) as events:
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text
    whole = sdk.chat.completions.create(model="mock-chat", messages=MESSAGES, max_tokens=4)
    assert text == whole.choices[0].message.content
    assert {record.protocol for record in gpu.log.requests} == {f"HTTP/{http}"}
    assert stats(client).requests.total == 3
    assert stats(client).requests.in_flight == 0
    sdk.close()


async def test_async(gpu: MockGPU, http: str) -> None:
    client = httpx2.AsyncClient(verify=context_of(gpu))
    sdk = openai.AsyncOpenAI(api_key="k", base_url=f"{gpu.url}/v1", http_client=client)
    made = await sdk.embeddings.create(model="mock-embed", input="a", encoding_format="float")
    assert made.data[0].embedding == pytest.approx(expected_vector("a"))
    events = await sdk.chat.completions.create(model="mock-chat", messages=MESSAGES, stream=True, max_tokens=4)
    text = "".join([event.choices[0].delta.content or "" async for event in events if event.choices])
    assert text
    assert {record.protocol for record in gpu.log.requests} == {f"HTTP/{http}"}
    assert stats(client).requests.total == 2
    assert stats(client).requests.in_flight == 0
    await sdk.close()


def test_errors_of_the_sdk_still_match(gpu: MockGPU) -> None:
    client = httpx2.Client(plugins={"retry": False})
    sdk = openai.OpenAI(api_key="k", base_url=f"{gpu.url}/v1", http_client=client, max_retries=0)
    with pytest.raises(openai.APIConnectionError) as caught:
        sdk.embeddings.create(model="mock-embed", input="a")
    import httpx2 as native

    assert isinstance(caught.value.__cause__, native.ConnectError)
    sdk.close()
