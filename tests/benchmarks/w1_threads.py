"""W1: small JSON POSTs over TLS from threads that share one session."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Clock, Load, percentile
from tests.benchmarks.faces import open_sync

TITLE = "W1 small JSON POST over TLS, threads (CPU µs per request)"
SERVER = "nginx"
METRICS = ("cpu_us", "p50_ms", "p99_ms", "rate")


def cases(*, quick: bool) -> list[Case]:
    levels = (1, 32) if quick else (1, 32, 100)
    faces = [
        "requests", "netkit.Session", "requests/trust_env off", "netkit.Session/trust_env off",
        "httpx", "netkit.Client", "httpx2", "netkit.httpx2.Client", "bare engine", "pyreqwest",
    ]  # fmt: skip
    return [
        Case(face, level, "h2", seconds=0.7 if quick else 1.5, environment="peers" if face == "pyreqwest" else "main")
        for level in levels
        for face in faces
    ]


GOALS = [
    Goal("netkit.Session", 32, "cpu_us", "requests", at_most=0.33),
    Goal("netkit.Session/trust_env off", 32, "cpu_us", "requests/trust_env off", at_most=0.33),
    Goal("netkit.Session", 1, "p50_ms", "requests", at_most=0.5),
    Goal("netkit.Client", 32, "cpu_us", "httpx", at_most=0.30),
    Goal("netkit.httpx2.Client", 32, "cpu_us", "httpx2", at_most=0.30),
]


def measure(load: Load) -> dict[str, Any]:
    """Client side: every thread posts until the time is up."""
    face = open_sync(load.face, load.url, load.ca, **load.plugins)
    latencies: list[list[float]] = []
    errors: list[str] = []
    ready, go = threading.Barrier(load.concurrency + 1), threading.Barrier(load.concurrency + 1)
    warm = [0] * load.concurrency
    deadline = 0.0

    def caller(index: int) -> None:
        mine: list[float] = []
        latencies.append(mine)
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until or warm[index] < 5:
            warm[index] += 1
            try:
                face.json()
            except Exception as error:
                errors.append(repr(error))
        ready.wait()
        go.wait()
        now = time.perf_counter()
        while now < deadline:
            try:
                face.json()
            except Exception as error:
                errors.append(repr(error))
            then, now = now, time.perf_counter()
            mine.append(now - then)

    threads = [threading.Thread(target=caller, args=(index,)) for index in range(load.concurrency)]
    for thread in threads:
        thread.start()
    ready.wait()
    deadline = time.perf_counter() + load.seconds
    clock = Clock()
    go.wait()
    for thread in threads:
        thread.join()
    cpu, wall = clock.spent()
    face.close()
    every = [value for mine in latencies for value in mine]
    return {
        "count": len(every),
        "sent": len(every) + sum(warm),
        "cpu_us": cpu / len(every) * 1e6,
        "rate": len(every) / wall,
        "p50_ms": percentile(every, 0.5) * 1e3,
        "p99_ms": percentile(every, 0.99) * 1e3,
        "errors": len(errors),
        "error": errors[0] if errors else "",
    }
