"""Runs `app.py` as it is, and by `netkit run`, against a server that answers every fifth request with 503.

Run it from its folder: cd examples/legacy_project && python main.py
"""

from __future__ import annotations

import os
import subprocess
import sys

from netkit.testing import MockGPU, faults


def attempt(gpu: MockGPU, *command: str) -> str:
    """The program's last line, whatever became of it."""
    gpu.faults.clear()
    gpu.faults.push(faults.statuses(*[200, 200, 200, 200, 503] * 20))
    places = {"EMBED_URL": f"{gpu.url}/v1/embeddings", "REQUESTS_CA_BUNDLE": str(gpu.ca_file)}
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | places, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip().splitlines()[-1].partition(" for url")[0]


def main() -> None:
    with MockGPU(launch_ms=1) as gpu:
        print(f"before: {attempt(gpu, 'app.py')}")
        print(f"after: {attempt(gpu, '-m', 'netkit.cli', 'run', 'app.py')}")
        print(f"by protocol: {dict(sorted((c.protocol, 1) for c in gpu.log.connections))}")


if __name__ == "__main__":
    main()
