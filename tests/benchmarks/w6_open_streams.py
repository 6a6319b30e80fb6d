"""W6: many streams open at the same time in one process: memory for each, and the time to open them all."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Clock, Load
from tests.benchmarks.faces import open_async

TITLE = "W6 streams open at once (KiB of resident memory per stream; seconds to open all)"
SERVER = "granian"
METRICS = ("kib", "own_kib", "open_s", "cpu_us")
WIDE = {"http2": {"max_connections": 400}, "pool": {"acquire_timeout": 120.0, "max_queue": None}}
"""Streams beyond max_connections x max_streams would wait for a free one, and none gets free here."""


def cases(*, quick: bool) -> list[Case]:
    size = 2_000 if quick else 10_000
    own = [
        Case(face, size, "hold", plugins=WIDE)
        for face in ("bare engine", "netkit.httpx2.AsyncClient", "netkit.AsyncClient", "netkit.ClientSession")
    ]
    # A connection each, at some 300 KiB: the peer is measured at a tenth, which is what it costs per stream.
    peers = [Case("aiohttp", size // 10, "hold")]
    return own + peers + ([] if quick else [Case("netkit.httpx2.AsyncClient", 30_000, "hold", plugins=WIDE)])


GOALS = [
    *(
        goal
        for face in ("netkit.httpx2.AsyncClient", "netkit.AsyncClient", "netkit.ClientSession")
        for goal in (
            Goal(face, 10_000, "own_kib", at_most=20.0),
            Goal(face, 10_000, "errors", at_most=0),
        )
    ),
    Goal("netkit.httpx2.AsyncClient", 30_000, "errors", at_most=0),
]


def measure(load: Load) -> dict[str, Any]:
    """Client side."""
    return asyncio.run(_measure(load))


async def _measure(load: Load) -> dict[str, Any]:
    plugins = {} if load.face == "bare engine" else load.plugins
    face = await open_async(load.face, load.url, load.ca, **plugins)
    errors: list[str] = []
    held: list[Any] = []

    async def opener() -> None:
        try:
            held.append(await face.hold(load.url))
        except Exception as error:
            errors.append(repr(error))

    _, leave = await face.hold(load.url)
    await leave()
    gc.collect()
    before, clock, began = _resident_kib(), Clock(), time.perf_counter()
    # A caller of ten thousand streams starts them in some order, not all within one turn of the loop.
    for start in range(0, load.concurrency, 500):
        await asyncio.gather(*(opener() for _ in range(min(500, load.concurrency - start))))
    opened = time.perf_counter() - began
    cpu, _ = clock.spent()
    gc.collect()
    kib = (_resident_kib() - before) / max(1, len(held))
    result = {
        "count": len(held),
        "sent": load.concurrency + 1,
        "open": len(held),
        "kib": kib,
        "own_kib": kib - _response_kib(load.face),
        "open_s": opened,
        "cpu_us": cpu / max(1, len(held)) * 1e6,
        "errors": len(errors),
        "error": errors[0] if errors else "",
    }
    for _, leave in held:
        await leave()
    await face.close()
    return result


def _resident_kib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def _response_kib(face: str) -> float:
    """What the stack's own request and response objects weigh, without any transport."""
    if "httpx2" in face:
        import httpx2 as stack
    elif face == "netkit.AsyncClient":
        import httpx as stack  # type: ignore[no-redef]
    else:
        return 0.0
    client = stack.AsyncClient()
    url, headers = "https://127.0.0.1:40000/hold", [(b"content-type", b"text/event-stream"), (b"date", b"x" * 29)]

    def made() -> Any:
        return stack.Response(200, headers=headers, request=client.build_request("GET", url))

    made()
    gc.collect()
    before = _resident_kib()
    kept = [made() for _ in range(3000)]
    return (_resident_kib() - before) / len(kept)
