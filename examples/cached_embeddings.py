"""Embeddings that are known are not asked for again, not even after a restart: an SQLite file, input by input.

Run it: python examples/cached_embeddings.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import netkit
from netkit.testing import MockGPU


def embed(url: str, trust: str, storage: Path, texts: list[str]) -> int:
    """Stands for one run of a program; gives the number of vectors that it got."""
    plugins = {"cache": {"storage": f"sqlite:{storage}", "ttl": 86400}}
    with netkit.Session(plugins=plugins) as session:
        session.verify = trust
        session.trust_env = False
        answer = session.post(f"{url}/v1/embeddings", json={"model": "mock-embed", "input": texts})
        answer.raise_for_status()
        return len(answer.json()["data"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, MockGPU(launch_ms=1) as gpu:
        storage = Path(folder) / "vectors.db"
        trust = str(gpu.ca_file)
        first = embed(gpu.url, trust, storage, ["red", "green"])
        second = embed(gpu.url, trust, storage, ["blue", "red", "green"])
        print(f"{first} + {second} vectors; the server computed {gpu.stats().items}")


if __name__ == "__main__":
    main()
