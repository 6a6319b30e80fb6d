"""A legacy function that takes a requests session, before and after netkit: only who makes the session changes.

Run it: python examples/drop_in_requests.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import requests

import netkit
from netkit.testing import MockGPU


def embed(session: requests.Session, url: str, text: str) -> list[float]:
    """Ten-year-old code: it knows nothing of netkit."""
    answer = session.post(f"{url}/v1/embeddings", json={"model": "mock-embed", "input": text}, timeout=10)
    answer.raise_for_status()
    vector: list[float] = answer.json()["data"][0]["embedding"]
    return vector


def main() -> None:
    with MockGPU(launch_ms=1, per_item_ms=0.1) as gpu, requests.Session() as session:
        session.verify = gpu.ca_file or True
        session.trust_env = False
        netkit.attach(session, plugins={"retry": {"attempts": 4}})
        with ThreadPoolExecutor(16) as threads:
            vectors = list(threads.map(lambda n: embed(session, gpu.url, f"text {n}"), range(200)))
        stats = netkit.stats(session)
        print(f"{len(vectors)} vectors of {len(vectors[0])} numbers")
        print(f"P50 {stats.latency.p50 * 1e3:.1f} ms, P99 {stats.latency.p99 * 1e3:.1f} ms")
        print(f"{stats.requests.total} calls, {stats.requests.errors} errors")
        netkit.detach(session)


if __name__ == "__main__":
    main()
