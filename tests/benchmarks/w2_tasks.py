"""W2: small JSON POSTs over TLS from asyncio tasks that share one client."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Clock, Load, h2load, percentile
from tests.benchmarks.faces import open_async

TITLE = "W2 small JSON POST over TLS, asyncio tasks (CPU µs per request)"
SERVER = "nginx"
METRICS = ("cpu_us", "p50_ms", "p99_ms", "rate")


def cases(*, quick: bool) -> list[Case]:
    levels = (100,) if quick else (100, 1000)
    faces = [
        "aiohttp", "netkit.ClientSession", "httpx/http2", "netkit.AsyncClient",
        "httpx2/http2", "netkit.httpx2.AsyncClient", "bare engine", "pyreqwest", "h2load",
    ]  # fmt: skip
    return [
        Case(face, level, "h2", seconds=1.0 if quick else 2.0, environment="peers" if face == "pyreqwest" else "main")
        for level in levels
        for face in faces
        if not (face == "httpx/http2" and level == 1000)  # it does not get through the warm-up in a minute
    ]


GOALS = [
    Goal("netkit.AsyncClient", 100, "cpu_us", "httpx/http2", at_most=0.25),
    Goal("netkit.httpx2.AsyncClient", 100, "cpu_us", "httpx2/http2", at_most=0.20),
    Goal("netkit.ClientSession", 100, "cpu_us", "aiohttp", at_most=0.8),
    Goal("bare engine", 100, "rate", "h2load", at_least=0.5),
    Goal("netkit.httpx2.AsyncClient", 1000, "cpu_us", "httpx2/http2", at_most=0.20),
    Goal("netkit.ClientSession", 1000, "cpu_us", "aiohttp", at_most=0.8),
]


def measure(load: Load) -> dict[str, Any]:
    """Client side: every task posts until the time is up."""
    if load.face == "h2load":
        return h2load(load)
    return asyncio.run(_measure(load))


async def _measure(load: Load) -> dict[str, Any]:
    face = await open_async(load.face, load.url, load.ca, **load.plugins)
    latencies: list[float] = []
    errors: list[str] = []
    sent = 0

    async def caller(deadline: float, *, at_least: int = 0, record: bool = True) -> None:
        nonlocal sent
        now = time.perf_counter()
        while now < deadline or at_least > 0:
            at_least -= 1
            sent += 1
            try:
                await face.json()
            except Exception as error:
                errors.append(repr(error))
            then, now = now, time.perf_counter()
            if record:
                latencies.append(now - then)

    await asyncio.gather(*(caller(0.0, at_least=3, record=False) for _ in range(load.concurrency)))
    clock = Clock()
    deadline = time.perf_counter() + load.seconds
    await asyncio.gather(*(caller(deadline) for _ in range(load.concurrency)))
    cpu, wall = clock.spent()
    await face.close()
    return {
        "count": len(latencies),
        "sent": sent,
        "cpu_us": cpu / len(latencies) * 1e6,
        "rate": len(latencies) / wall,
        "p50_ms": percentile(latencies, 0.5) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
        "errors": len(errors),
        "error": errors[0] if errors else "",
    }
