"""W4: uploads of 1 MiB bodies, 16 at once, from threads and from tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Clock, Load, h2load
from tests.benchmarks.faces import open_async, open_sync

TITLE = "W4 upload of 1 MiB bodies, 16 at once (CPU µs per MiB)"
SERVER = "nginx"
METRICS = ("cpu_us", "rate")
BODY = bytes(range(256)) * 4096
AT_ONCE = 16
ASYNC = " (async)"


def cases(*, quick: bool) -> list[Case]:
    faces = [
        "requests", "netkit.Session", "httpx2", "netkit.httpx2.Client", "bare engine", "pyreqwest",
        *(
            face + ASYNC
            for face in ("aiohttp", "netkit.ClientSession", "httpx", "netkit.AsyncClient", "httpx2",
                         "netkit.httpx2.AsyncClient", "bare engine", "pyreqwest")
        ),
        "h2load",
    ]  # fmt: skip
    return [
        Case(
            face, AT_ONCE, "h2", seconds=0.7 if quick else 1.5, environment="peers" if "pyreqwest" in face else "main"
        )
        for face in faces
    ]


GOALS = [
    Goal("netkit.Session", AT_ONCE, "cpu_us", "requests", at_most=0.9),
    Goal("netkit.ClientSession" + ASYNC, AT_ONCE, "cpu_us", "aiohttp" + ASYNC, at_most=0.7),
    Goal("netkit.AsyncClient" + ASYNC, AT_ONCE, "cpu_us", "httpx" + ASYNC, at_most=0.7),
    Goal("netkit.httpx2.AsyncClient" + ASYNC, AT_ONCE, "cpu_us", "httpx2" + ASYNC, at_most=0.7),
]


def measure(load: Load) -> dict[str, Any]:
    """Client side."""
    if load.face == "h2load":
        return h2load(load, body=BODY)
    if load.face.endswith(ASYNC):
        return asyncio.run(_with_tasks(load, load.face.removesuffix(ASYNC)))
    return _with_threads(load)


def _with_threads(load: Load) -> dict[str, Any]:
    face = open_sync(load.face, load.url, load.ca, **load.plugins)
    errors: list[str] = []
    done: list[int] = []

    def caller(deadline: float) -> None:
        while True:
            try:
                face.upload(BODY)
                done.append(1)
            except Exception as error:
                errors.append(repr(error))
            if time.perf_counter() > deadline:
                return

    def round_of_callers(deadline: float) -> None:
        threads = [threading.Thread(target=caller, args=(deadline,)) for _ in range(load.concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    round_of_callers(0.0)
    warm = len(done)
    clock = Clock()
    round_of_callers(time.perf_counter() + load.seconds)
    result = _result(clock, len(done) - warm, errors, len(done))
    face.close()
    return result


async def _with_tasks(load: Load, name: str) -> dict[str, Any]:
    face = await open_async(name, load.url, load.ca, **load.plugins)
    errors: list[str] = []
    done = 0

    async def caller(deadline: float) -> None:
        nonlocal done
        while True:
            try:
                await face.upload(BODY)
                done += 1
            except Exception as error:
                errors.append(repr(error))
            if time.perf_counter() > deadline:
                return

    await asyncio.gather(*(caller(0.0) for _ in range(load.concurrency)))
    warm = done
    clock = Clock()
    deadline = time.perf_counter() + load.seconds
    await asyncio.gather(*(caller(deadline) for _ in range(load.concurrency)))
    result = _result(clock, done - warm, errors, done)
    await face.close()
    return result


def _result(clock: Clock, count: int, errors: list[str], sent: int) -> dict[str, Any]:
    cpu, wall = clock.spent()
    return {
        "count": count,
        "sent": sent,
        "cpu_us": cpu / max(1, count) * 1e6,
        "rate": count / wall,
        "errors": len(errors),
        "error": errors[0] if errors else "",
    }
