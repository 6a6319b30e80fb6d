"""The mock GPU of the ladder, in a process of its own, and what it counts."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["DIMENSIONS", "GPUS", "ITEM_MS", "SETTING", "backend", "gpu_flags", "server_stats"]

GPUS: Final = 4
LAUNCH_MS: Final = 4.0
ITEM_MS: Final = 0.5
DIMENSIONS: Final = 64
SETTING: Final = (
    f"Mock backend: {GPUS} GPUs, {LAUNCH_MS:g} ms per batch and {ITEM_MS:g} ms per item, over TLS on this machine. "
    "Compare steps of one run; absolute figures are the machine's."
)


def gpu_flags(gpus: int = GPUS, launch_ms: float = LAUNCH_MS) -> tuple[str, ...]:
    """What makes the mock GPU the ladder's, or one like it with other GPUs."""
    return ("--gpus", str(gpus), "--launch-ms", str(launch_ms), "--per-item-ms", str(ITEM_MS))


@contextmanager
def backend(*flags: str) -> Iterator[dict[str, Any]]:
    """The mock GPU in a process of its own, so that it does not share the interpreter with what is measured. Calling
    its `kill` ends it at once, with all connections."""
    command = [sys.executable, "-m", "netkit.testing.mock_gpu", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the mock GPU did not start")
            yield {**json.loads(line), "kill": process.kill}
        finally:
            process.terminate()


def server_stats(backend: dict[str, Any]) -> dict[str, Any]:
    """What it has counted so far; asking opens a connection and is a request too."""
    trust = ssl.create_default_context(cafile=backend["ca_file"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust))
    with opener.open(f"{backend['url']}/stats", timeout=10) as answer:
        stats: dict[str, Any] = json.load(answer)
    return stats
