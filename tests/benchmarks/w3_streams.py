"""W3: token streams, 100 events each 10 ms apart, all started at once on a client without a connection."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Clock, Load, percentile
from tests.benchmarks.faces import open_async

TITLE = "W3 token streams, 100 events 10 ms apart, cold start (CPU µs per event; ms to the first event)"
SERVER = "granian"
METRICS = ("cpu_us", "p50_ms", "p99_ms", "wall_s")
EVENTS = 100
GAP_MS = 10


def cases(*, quick: bool) -> list[Case]:
    levels = (200,) if quick else (200, 1000)
    faces = [
        "aiohttp", "netkit.ClientSession", "httpx2", "netkit.httpx2.AsyncClient", "netkit.AsyncClient",
        "httpx2/http2", "bare engine", "pyreqwest", "pyqwest",
    ]  # fmt: skip
    path = f"stream?events={EVENTS}&gap={GAP_MS}"
    return [
        Case(face, level, path, environment="peers" if face in ("pyreqwest", "pyqwest") else "main")
        for level in levels
        for face in faces
    ]


GOALS = [
    goal
    for level in (200, 1000)
    for goal in (
        Goal("netkit.httpx2.AsyncClient", level, "cpu_us", "httpx2", at_most=0.35),
        Goal("netkit.AsyncClient", level, "cpu_us", "httpx2", at_most=0.35),
        Goal("netkit.ClientSession", level, "cpu_us", "aiohttp", at_most=0.8),
        Goal("netkit.httpx2.AsyncClient", level, "p99_ms", "pyreqwest", at_most=1.0),
        Goal("netkit.ClientSession", level, "p99_ms", "pyreqwest", at_most=1.0),
        Goal("netkit.httpx2.AsyncClient", level, "errors", at_most=0),
        Goal("netkit.ClientSession", level, "errors", at_most=0),
    )
]


def measure(load: Load) -> dict[str, Any]:
    """Client side."""
    return asyncio.run(_measure(load))


async def _measure(load: Load) -> dict[str, Any]:
    face = await open_async(load.face, load.url, load.ca, **load.plugins)
    first: list[float] = []
    errors: list[str] = []
    events = 0

    async def reader() -> None:
        nonlocal events
        seen = 0

        def on_chunk(chunk: bytes) -> None:
            nonlocal seen
            if not seen:
                first.append(time.perf_counter() - began)
            seen += chunk.count(b"\n\n")

        try:
            await face.stream(load.url, on_chunk)
            if seen != EVENTS:
                raise RuntimeError(f"{seen} events of {EVENTS}")
        except Exception as error:
            errors.append(repr(error))
        events += seen

    clock = Clock()
    began = time.perf_counter()
    await asyncio.gather(*(reader() for _ in range(load.concurrency)))
    cpu, wall = clock.spent()
    await face.close()
    return {
        "count": events,
        "sent": load.concurrency - len(errors),
        "cpu_us": cpu / max(1, events) * 1e6,
        "p50_ms": percentile(first, 0.5) * 1e3,
        "p99_ms": percentile(first, 0.99) * 1e3,
        "wall_s": wall,
        "errors": len(errors),
        "error": errors[0] if errors else "",
    }
