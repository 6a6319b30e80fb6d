"""W9: what `cache`, `coalesce` and `batch` cost where they help nobody yet, and what a hit costs.

"no wire": over a transport that answers at once, what a hit in memory costs above the stack's own call there, which
is the stack's floor. Over HTTP/1.1: what a lone call through `coalesce` or `batch`, and one that `cache` does not
know, cost above the same session without them, in wall time.

Contenders take turns in short blocks. What counts is how far the lowest tenths of their blocks lie apart: other work
on the machine makes blocks longer, never shorter, and by milliseconds, where a plugin costs a tenth of one. The
quartiles are those of the differences within each turn.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import Load
from tests.benchmarks.faces import open_async, open_sync, open_wireless, open_wireless_tasks

TITLE = "W9 sharing answers: a hit over the stack's floor (CPU µs); a lone call over the same without (wall µs)"
SERVER = "nginx"
METRICS = ("plain_us", "hit_us", "hit_q1", "hit_q3", "coalesce_us", "coalesce_q1", "coalesce_q3",
           "batch_us", "batch_q1", "batch_q3", "miss_us", "miss_q1", "miss_q3")  # fmt: skip

BLOCK = 20
BLOCK_WIRED = 5
"""Calls in one block: short where the machine's other work would spoil a long one."""
OFF = {"retry": False, "pool": False, "http2": False}
NO_WIRE = " (no wire)"
TWINS = {
    "netkit.Session/trust_env off": "requests/trust_env off",
    "netkit.Client": "httpx",
    "netkit.httpx2.Client": "httpx2",
    "netkit.AsyncClient": "httpx",
    "netkit.httpx2.AsyncClient": "httpx2",
}
WIRED = ("netkit.Session", "netkit.Client", "netkit.AsyncClient", "netkit.httpx2.AsyncClient", "netkit.ClientSession")
ALWAYS = ["*"]
"""Whatever path the benchmark's server has."""

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": OFF,
    "coalesce": {**OFF, "coalesce": {"routes": ALWAYS}},
    "batch": {**OFF, "batch": {"routes": [["*", "openai"]]}},
    # A second is never over: each call finds nothing, asks, and remembers.
    "miss": {**OFF, "cache": {"routes": ALWAYS, "ttl": 1e-9}},
}


def cases(*, quick: bool) -> list[Case]:
    seconds = 2.0 if quick else 6.0
    wireless = [Case(face + NO_WIRE, 1, "plain", seconds=seconds) for face in TWINS]
    return wireless + [Case(face, 1, "plain", seconds=seconds * 2) for face in WIRED]


GOALS = [
    *(Goal(face + NO_WIRE, 1, "hit_us", at_most=60) for face in TWINS),
    *(Goal(face, 1, f"{name}_us", at_most=200) for name in ("coalesce", "batch", "miss") for face in WIRED),
]


def measure(load: Load) -> dict[str, Any]:
    """Client side."""
    if load.face.endswith(NO_WIRE):
        face = load.face.removesuffix(NO_WIRE)
        return asyncio.run(_tasks_without_wire(face, load)) if "Async" in face else _without_wire(face, load)
    if "Async" in load.face or load.face == "netkit.ClientSession":
        return asyncio.run(_with_tasks(load))
    return _with_threads(load)


_CACHE: dict[str, Any] = {**OFF, "cache": {"routes": ALWAYS}}


def _without_wire(face: str, load: Load) -> dict[str, Any]:
    calls = {
        "plain": open_wireless(TWINS[face], asynchronous=False),
        "hit": open_wireless(face, asynchronous=False, **_CACHE),
    }
    turns = _Turns(load.seconds, list(calls), BLOCK)
    while (order := turns.next()) is not None:
        turn = {}
        for name in order:
            call, started = calls[name], time.thread_time()
            for _ in range(BLOCK):
                call()
            turn[name] = (time.thread_time() - started) / BLOCK
        turns.add(turn)
    return turns.result() | {"sent": 0}


async def _tasks_without_wire(face: str, load: Load) -> dict[str, Any]:
    calls = {"plain": open_wireless_tasks(TWINS[face]), "hit": open_wireless_tasks(face, **_CACHE)}
    turns = _Turns(load.seconds, list(calls), BLOCK)
    while (order := turns.next()) is not None:
        turn = {}
        for name in order:
            call, started = calls[name], time.thread_time()
            for _ in range(BLOCK):
                await call()
            turn[name] = (time.thread_time() - started) / BLOCK
        turns.add(turn)
    return turns.result() | {"sent": 0}


def _with_threads(load: Load) -> dict[str, Any]:
    faces = {name: open_sync(load.face, load.url, load.ca, **plugins) for name, plugins in SETTINGS.items()}
    turns = _Turns(load.seconds, list(faces), BLOCK_WIRED)
    while (order := turns.next()) is not None:
        turn = {}
        for name in order:
            post, started = faces[name].json, time.perf_counter()
            for _ in range(BLOCK_WIRED):
                post()
            turn[name] = (time.perf_counter() - started) / BLOCK_WIRED
        turns.add(turn)
    for face in faces.values():
        face.close()
    return turns.result()


async def _with_tasks(load: Load) -> dict[str, Any]:
    faces = {name: await open_async(load.face, load.url, load.ca, **plugins) for name, plugins in SETTINGS.items()}

    async def block(post: Callable[[], Awaitable[bytes]]) -> float:
        started = time.perf_counter()
        for _ in range(BLOCK_WIRED):
            await post()
        return (time.perf_counter() - started) / BLOCK_WIRED

    turns = _Turns(load.seconds, list(faces), BLOCK_WIRED)
    while (order := turns.next()) is not None:
        turns.add({name: await block(faces[name].json) for name in order})
    for face in faces.values():
        await face.close()
    return turns.result()


class _Turns:
    """The order of blocks, turn by turn until the time is up, and their paired differences. The first is warm-up."""

    def __init__(self, seconds: float, names: list[str], block: int) -> None:
        self._until = time.perf_counter() + seconds
        self._random = random.Random(9)
        self._names = names
        self._block = block
        self._turns: list[dict[str, float]] = []

    def next(self) -> list[str] | None:
        if time.perf_counter() > self._until and len(self._turns) > 5:
            return None
        return self._random.sample(self._names, len(self._names))

    def add(self, turn: dict[str, float]) -> None:
        self._turns.append(turn)

    def result(self) -> dict[str, Any]:
        turns = self._turns[1:]
        result: dict[str, Any] = {
            "count": len(turns) * self._block,
            "sent": len(self._turns) * self._block * len(self._names),
            "errors": 0,
            "plain_us": self._tenth("plain") * 1e6,
        }
        for name in itertools.filterfalse("plain".__eq__, self._names):
            low, _, high = statistics.quantiles(((turn[name] - turn["plain"]) * 1e6 for turn in turns), n=4)
            result |= {f"{name}_us": (self._tenth(name) - self._tenth("plain")) * 1e6}
            result |= {f"{name}_q1": low, f"{name}_q3": high}
        return result

    def _tenth(self, name: str) -> float:
        return statistics.quantiles((turn[name] for turn in self._turns[1:]), n=10)[0]
