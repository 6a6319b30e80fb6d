"""Every example runs, from its own folder, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

EXPECTED = {
    "drop_in_requests.py": "200 vectors of 8 numbers",
    "async_embeddings.py": "500 vectors over",
    "image_vectors.py": "12 vectors of 12 photographs",
    "pooled_client.py": "300 of 300 calls answered, 8 connections\nnow 0 in use, 0 in line",
    "stream_gateway.py": "100 complete streams on 1 connection(s)",
    "batched_openai.py": "512 right vectors",
    "cached_embeddings.py": "2 + 3 vectors; the server computed 3",
    "balanced_replicas.py": "by both\n50 of 50 answered while one of them answers 503\nleft out: 1",
    "langchain_embeddings.py": "128 vectors in",
    "legacy_project/main.py": "HTTPError: 503 Server Error: Service Unavailable\nafter: 20 vectors",
    "config_project/main.py": "embeddings: 200 after 3 attempts\nchat: 503 after 1 attempt",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str) -> None:
    if name == "langchain_embeddings.py":
        # Not in [dev]: it brings 12 packages, one of which (zstandard) changes the headers that every stack sends.
        pytest.importorskip("langchain_openai", reason="needs netkit-http[examples]")
    path = EXAMPLES / name
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NETKIT_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", path.name],
        cwd=path.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert EXPECTED[name] in done.stdout


def test_every_example_is_listed() -> None:
    found = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*.py")}
    found |= {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/main.py")}
    assert found == set(EXPECTED)
