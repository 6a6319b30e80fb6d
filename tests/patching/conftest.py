"""Programs in processes of their own: what `install` changes is the whole process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

from netkit.testing import MockGPU

Program = Callable[..., str]

PRELUDE = """
import sys
URL, CA = sys.argv[1], sys.argv[2]
BODY = {"model": "m", "input": "x"}
EMBED = URL + "/v1/embeddings"
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[MockGPU]:
    with MockGPU(launch_ms=0, per_item_ms=0) as server:
        yield server


@pytest.fixture
def program(gpu: MockGPU) -> Program:
    """Run a program, warnings being errors, against the mock; gives its output. It fails when the program does."""

    def run(code: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(code), gpu.url, gpu.ca_file, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run
