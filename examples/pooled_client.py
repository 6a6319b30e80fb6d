"""One client for all threads: a bounded pool, a fair queue, connections that are used again.

Run it: python examples/pooled_client.py
"""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor

import netkit
from netkit.testing import MockGPU

POOL = {"max_connections": 8, "acquire_timeout": 30, "idle_timeout": "learn"}


def main() -> None:
    with MockGPU(http="1.1", gpus=8, launch_ms=1) as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        with netkit.Client(verify=trust, plugins={"pool": POOL}, timeout=30) as client:

            def embed(number: int) -> int:
                body = {"model": "mock-embed", "input": f"text {number}"}
                return client.post(f"{gpu.url}/v1/embeddings", json=body).status_code

            with ThreadPoolExecutor(64) as threads:
                answered = list(threads.map(embed, range(300))).count(200)
            pool = netkit.stats(client).pool
            print(f"{answered} of 300 calls answered, {gpu.stats().connections} connections")
            print(f"now {pool.in_use} in use, {pool.queued} in line")


if __name__ == "__main__":
    main()
