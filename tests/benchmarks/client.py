"""One contender under one load, in a process of its own; prints one line of JSON.

python -m tests.benchmarks.client --workload W1 --face netkit.Session --concurrency 32 --url https://… --ca ca.pem

Peers have an environment without netkit: what they run (this module, workloads 1 to 4) imports none of it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Clock", "Load", "h2load", "percentile"]

MODULES = {
    "W1": "tests.benchmarks.w1_threads",
    "W2": "tests.benchmarks.w2_tasks",
    "W3": "tests.benchmarks.w3_streams",
    "W4": "tests.benchmarks.w4_uploads",
    "W5": "tests.benchmarks.w5_chain",
    "W6": "tests.benchmarks.w6_open_streams",
    "W8": "tests.benchmarks.w8_pictures",
    "W9": "tests.benchmarks.w9_sharing",
}


@dataclass(frozen=True)
class Load:
    """What a client is asked to do."""

    face: str
    concurrency: int
    seconds: float
    url: str
    ca: str
    plugins: dict[str, Any] = field(default_factory=dict)


class Clock:
    """CPU and wall time of this process from here on; CPU is the kernel's own count, of all threads."""

    def __init__(self) -> None:
        self._cpu, self._wall = _cpu(), time.perf_counter()

    def spent(self) -> tuple[float, float]:
        """(CPU seconds, wall seconds)."""
        return _cpu() - self._cpu, time.perf_counter() - self._wall


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(values: Iterable[float], share: float) -> float:
    """As `netkit.percentile`: nearest rank, 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(round(share * len(ordered), 6)) - 1)] if ordered else 0.0


def h2load(load: Load, body: bytes | None = None) -> dict[str, Any]:
    """The same load from h2load, nghttp2's client in C: what the machine and the server allow."""
    import shutil
    import tempfile

    from tests.benchmarks.faces import HEADERS, PAYLOAD

    if shutil.which("h2load") is None:
        return {"missing": "h2load is not installed"}
    connections = -(-load.concurrency // 100)
    with tempfile.NamedTemporaryFile() as file:
        file.write(json.dumps(PAYLOAD).encode() if body is None else body)
        file.flush()
        fields = [flag for pair in HEADERS.items() for flag in ("-H", ": ".join(pair))]
        command = ["h2load", "-c", str(connections), "-m", str(load.concurrency // connections), "-d", file.name]
        count = 0

        def run(requests: int) -> tuple[float, float, str]:
            nonlocal count
            count += requests
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(
                [*command, "-n", str(requests), "-H", "content-type: application/json", *fields, load.url],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, done.stdout

        trial = 10 * load.concurrency
        _, wall, _ = run(trial)
        requests = max(trial, int(trial / wall * load.seconds))
        cpu, wall, output = run(requests)
    failed = re.search(r"(\d+) failed, (\d+) errored", output)
    return {
        "count": requests,
        "sent": count,
        "cpu_us": cpu / requests * 1e6,
        "rate": requests / wall,
        "errors": sum(map(int, failed.groups())) if failed else requests,
        "error": "" if failed else output[-200:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", required=True, choices=MODULES)
    parser.add_argument("--face", required=True)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--url", required=True)
    parser.add_argument("--ca", default="")
    parser.add_argument("--plugins", default="{}", help="JSON, for netkit's faces")
    arguments = vars(parser.parse_args())
    workload = importlib.import_module(MODULES[arguments.pop("workload")])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    load = Load(**{**arguments, "plugins": json.loads(arguments["plugins"])})
    try:
        result = workload.measure(load)
    except ImportError as error:
        result = {"missing": str(error)}
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
