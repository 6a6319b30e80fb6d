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
    "config_project/main.py": "embeddings: 200 after 3 attempts\nchat: 503 after 1 attempt",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str) -> None:
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
