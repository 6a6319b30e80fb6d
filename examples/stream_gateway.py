"""A gateway's client: a hundred token streams at once over HTTP/2, each handed on event by event.

Run it: python examples/stream_gateway.py
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import netkit
from netkit.testing import MockGPU

PLUGINS = {"http2": {"max_connections": 2}, "deadline": {"first_byte": 10, "between_events": 5}}


async def events(client: netkit.AsyncClient, url: str, question: str) -> AsyncIterator[str]:
    """The events of one answer as they come. Whoever leaves the loop early resets the stream, not the connection."""
    body = {
        "model": "mock-chat",
        "stream": True,
        "max_tokens": 20,
        "messages": [{"role": "user", "content": question}],
    }
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield line.removeprefix("data: ")


async def main() -> None:
    async with MockGPU(http="2", gpus=4, launch_ms=1, token_ms=5) as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        async with netkit.AsyncClient(verify=trust, plugins=PLUGINS) as client:

            async def one(number: int) -> int:
                return len([event async for event in events(client, gpu.url, f"question {number}")])

            counts = await asyncio.gather(*map(one, range(100)))
            complete = sum(count >= 20 for count in counts)
            print(f"{complete} complete streams on {gpu.stats().connections} connection(s)")
            print(f"gap between events, P99: {netkit.stats(client).gaps.p99 * 1e3:.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
