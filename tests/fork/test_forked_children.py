"""A child gets on whatever the parent's other threads held at the moment of the fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from netkit.testing import MockGPU, conformance

ONE_OF_EACH = ("requests", "httpx", "httpx-async", "aiohttp")
FACES = [face.name for face in conformance.FACES if face.name in ONE_OF_EACH and conformance.is_installed(face)]


@pytest.mark.parametrize("http", ["1.1", "2"])
def test_no_lock_that_another_thread_holds_is_waited_for(http: str, tmp_path: Path) -> None:
    with MockGPU(http="auto" if http == "2" else "1.1", tls=http == "2") as one:
        with MockGPU(http="auto" if http == "2" else "1.1", tls=http == "2") as other:
            authorities = ""
            if http == "2":
                authorities = str(tmp_path / "authorities.pem")
                Path(authorities).write_text("".join(Path(gpu.ca_file or "").read_text() for gpu in (one, other)))
            arguments = [",".join(FACES), f"{one.url},{other.url}", authorities]
            done = subprocess.run(
                [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.fork.held_locks", *arguments],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            said = [json.loads(line) for line in done.stdout.splitlines()]
            assert [each["face"] for each in said] == FACES, done.stderr
            assert {each["child"] for each in said} == {0}, (said, done.stderr)
            assert all(each["held"] > 20 for each in said)
            # Everything that was asked for arrived once: twice in each child, twice in each parent.
            echoed = [record.body for gpu in (one, other) for record in gpu.log.requests if record.path == "/echo"]
            assert sorted(echoed) == sorted([b"before", b"inherited", b"own", b"after"] * len(FACES))
            assert {record.protocol for record in one.log.requests} <= {f"HTTP/{http}"}
