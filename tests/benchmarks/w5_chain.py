"""W5: what the chain costs above the plain call, over HTTP/1.1 at concurrency 1.

The plain session, netkit's with every plugin off, and netkit's with five layers that do nothing take turns in one
process, in short blocks; the median of the differences within each turn is the cost. Noise that lasts longer than
a turn cancels. The same over a transport that answers at once ("no wire") shows the cost without the noise of
sockets: CPU in system calls varies by more than a layer costs.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Load
from tests.benchmarks.faces import open_async, open_sync, open_wireless

TITLE = "W5 cost of the chain over the plain call, HTTP/1.1, concurrency 1 (CPU µs per call)"
SERVER = "nginx"
METRICS = ("plain_us", "chain_us", "chain_q1", "chain_q3", "five_us", "five_q1", "five_q3")

BLOCK = 20
OFF = {"retry": False, "pool": False, "http2": False}
IDLE = tuple(f"idle{number}" for number in range(1, 6))
TWINS = {
    "netkit.Session": "requests",
    "netkit.Session/trust_env off": "requests/trust_env off",
    "netkit.Client": "httpx",
    "netkit.httpx2.Client": "httpx2",
    "netkit.AsyncClient": "httpx",
    "netkit.httpx2.AsyncClient": "httpx2",
    "netkit.ClientSession": "aiohttp",
}


NO_WIRE = " (no wire)"
WIRELESS = tuple(face for face in TWINS if face not in ("netkit.Session", "netkit.ClientSession"))
"""aiohttp has no seam for such a transport; with `trust_env` on, netkit.Session saves more than the chain costs."""


def cases(*, quick: bool) -> list[Case]:
    wired = [Case(face, 1, "plain", seconds=4.0 if quick else 12.0) for face in TWINS]
    return wired + [Case(face + NO_WIRE, 1, "plain", seconds=1.5 if quick else 4.0) for face in WIRELESS]


GOALS = [
    goal
    for face in (*TWINS, *(face + NO_WIRE for face in WIRELESS))
    for goal in (Goal(face, 1, "chain_us", at_most=10), Goal(face, 1, "five_us", at_most=40))
]


@dataclass(frozen=True)
class _NoOptions:
    """A layer without options."""


def _register_idle_layers() -> None:
    import netkit
    from netkit.plugins import registry

    async def idle(request: Any, send: Any) -> Any:
        return await send(request)

    class Plugin:
        @netkit.hookimpl
        def netkit_register(self, register: Any) -> None:
            for name in IDLE:
                register(name, lambda options, context: idle, options=_NoOptions)

    registry().register(Plugin(), "benchmark-idle-layers")


def measure(load: Load) -> dict[str, Any]:
    """Client side."""
    _register_idle_layers()
    off = {**OFF, **dict.fromkeys(IDLE, False)}
    five = {**OFF, **dict.fromkeys(IDLE, True)}
    if load.face.endswith(NO_WIRE):
        return _without_wire(load.face.removesuffix(NO_WIRE), load, off, five)
    if "Async" in load.face or load.face == "netkit.ClientSession":
        return asyncio.run(_with_tasks(load, off, five))
    faces = {
        "plain": open_sync(TWINS[load.face], load.url, load.ca),
        "chain": open_sync(load.face, load.url, load.ca, **off),
        "five": open_sync(load.face, load.url, load.ca, **five),
    }

    def block(name: str) -> float:
        post = faces[name].json
        started = time.process_time()
        for _ in range(BLOCK):
            post()
        return (time.process_time() - started) / BLOCK

    turns = _Turns(load.seconds)
    while (order := turns.next()) is not None:
        turns.add({name: block(name) for name in order})
    for face in faces.values():
        face.close()
    return turns.result()


async def _with_tasks(load: Load, off: dict[str, Any], five: dict[str, Any]) -> dict[str, Any]:
    faces = {
        "plain": await open_async(TWINS[load.face], load.url, load.ca),
        "chain": await open_async(load.face, load.url, load.ca, **off),
        "five": await open_async(load.face, load.url, load.ca, **five),
    }

    async def block(post: Callable[[], Awaitable[bytes]]) -> float:
        started = time.process_time()
        for _ in range(BLOCK):
            await post()
        return (time.process_time() - started) / BLOCK

    turns = _Turns(load.seconds)
    while (order := turns.next()) is not None:
        turns.add({name: await block(faces[name].json) for name in order})
    for face in faces.values():
        await face.close()
    return turns.result()


def _without_wire(face: str, load: Load, off: dict[str, Any], five: dict[str, Any]) -> dict[str, Any]:
    settings = {"plain": (TWINS[face], {}), "chain": (face, off), "five": (face, five)}
    calls = {
        name: open_wireless(base, asynchronous="Async" in face, **plugins)
        for name, (base, plugins) in settings.items()
    }

    def block(name: str) -> float:
        call = calls[name]
        started = time.thread_time()
        for _ in range(BLOCK):
            call()
        return (time.thread_time() - started) / BLOCK

    turns = _Turns(load.seconds)
    while (order := turns.next()) is not None:
        turns.add({name: block(name) for name in order})
    return turns.result() | {"sent": 0}


class _Turns:
    """The order of blocks, turn by turn until the time is up, and their paired differences. The first is warm-up."""

    def __init__(self, seconds: float) -> None:
        self._until = time.perf_counter() + seconds
        self._random = random.Random(5)
        self._turns: list[dict[str, float]] = []

    def next(self) -> list[str] | None:
        if time.perf_counter() > self._until and len(self._turns) > 5:
            return None
        if len(self._turns) % 10 == 0:
            gc.collect()
        return self._random.sample(["plain", "chain", "five"], 3)

    def add(self, turn: dict[str, float]) -> None:
        self._turns.append(turn)

    def result(self) -> dict[str, Any]:
        turns = self._turns[1:]
        result: dict[str, Any] = {
            "count": len(turns) * BLOCK,
            "sent": len(self._turns) * BLOCK * 3,
            "errors": 0,
            "plain_us": statistics.median(turn["plain"] for turn in turns) * 1e6,
        }
        for name in ("chain", "five"):
            low, middle, high = statistics.quantiles(((turn[name] - turn["plain"]) * 1e6 for turn in turns), n=4)
            result |= {f"{name}_us": middle, f"{name}_q1": low, f"{name}_q3": high}
        return result
