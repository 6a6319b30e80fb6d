"""The OpenAI SDK, one text at a time from 64 threads: netkit sends many texts in each request.

Run it: python examples/batched_openai.py
"""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor

import openai

import netkit
from netkit.testing import MockGPU, expected_vector


def main() -> None:
    with MockGPU(launch_ms=10, per_item_ms=0.2) as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        http = netkit.httpx2.Client(verify=trust, plugins={"batch": {"max_items": 32}})
        with openai.OpenAI(base_url=f"{gpu.url}/v1", api_key="none", max_retries=0, http_client=http) as sdk:

            def embed(text: str) -> list[float]:
                return (
                    sdk.embeddings.create(model="mock-embed", input=text, encoding_format="float").data[0].embedding
                )

            texts = [f"text {number}" for number in range(512)]
            with ThreadPoolExecutor(64) as threads:
                vectors = list(threads.map(embed, texts))
            right = sum(vector == expected_vector(text) for vector, text in zip(vectors, texts, strict=True))
            print(f"{right} right vectors")
            print(f"{len(gpu.log.requests)} requests; batches of {netkit.stats(http).batch.mean_size:.0f} on average")


if __name__ == "__main__":
    main()
