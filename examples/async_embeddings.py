"""An embedding job in asyncio: many texts, bounded concurrency, every vector with its text.

Run it: python examples/async_embeddings.py
"""

from __future__ import annotations

import asyncio
import ssl

import netkit
from netkit.testing import MockGPU

CONCURRENCY = 64


async def embed_all(session: netkit.ClientSession, url: str, texts: list[str]) -> dict[str, list[float]]:
    """One call per text, `CONCURRENCY` at a time; the connections are fewer, and shared fairly."""
    vectors: dict[str, list[float]] = {}
    places = asyncio.Semaphore(CONCURRENCY)

    async def embed(text: str) -> None:
        async with places, session.post(url, json={"model": "mock-embed", "input": text}) as answer:
            answer.raise_for_status()
            vectors[text] = (await answer.json())["data"][0]["embedding"]

    async with asyncio.TaskGroup() as group:
        for text in texts:
            group.create_task(embed(text))
    return vectors


async def main() -> None:
    async with MockGPU(gpus=4, launch_ms=1, per_item_ms=0.1) as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        plugins = {"pool": {"max_connections": 16, "acquire_timeout": 30}, "retry": {"attempts": 4}}
        connector = netkit.aiohttp.TCPConnector(ssl=trust, limit=0)
        async with netkit.ClientSession(connector=connector, plugins=plugins) as session:
            texts = [f"text {number}" for number in range(500)]
            vectors = await embed_all(session, f"{gpu.url}/v1/embeddings", texts)
            print(f"{len(vectors)} vectors over {gpu.stats().connections} connections")


if __name__ == "__main__":
    asyncio.run(main())
