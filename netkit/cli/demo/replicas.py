"""Step 5 of the ladder, a replica that dies: two of them under load, one is killed, and what callers see.

Why it matters: a server that is gone costs each caller who is sent there a failure, or a time-out, until somebody
leaves it out. Here one in two calls was meant for it.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from netkit.cli.demo.backend import backend, gpu_flags
from netkit.cli.demo.bounded import run_within
from netkit.percentile import percentile

__all__ = ["CALLS", "HEAD", "SETTINGS", "TITLE", "ReplicaOutcome", "ReplicaSetting", "measure", "rows"]

CALLS: Final = 400
AT_ONCE: Final = 16
KILLED_AFTER: Final = CALLS // 4


class ReplicaSetting(msgspec.Struct, frozen=True):
    """`plugins` of netkit beside `balance`, which gets the replicas; None: plain httpx, which takes turns by hand."""

    title: str
    plugins: Mapping[str, Any] | None


SETTINGS: Final = (
    ReplicaSetting("httpx, in turns", None),
    ReplicaSetting("netkit: balance, retry, breaker", {"retry": {"backoff_initial": 0.01}, "breaker": True}),
)
HEAD: Final = ("callers", "calls", "answered", "failed", "P50 ms", "P99 ms", "seconds")
TITLE: Final = f"5 replicas: one of two is killed after {KILLED_AFTER} of {CALLS} calls, {AT_ONCE} at a time (httpx)"


class ReplicaOutcome(msgspec.Struct, frozen=True):
    """What callers saw. Seconds; `latencies` has one entry for each call that was answered."""

    title: str
    seconds: float
    latencies: tuple[float, ...]
    failed: int


def rows(outcomes: Sequence[ReplicaOutcome]) -> list[list[str]]:
    """A row of the table for each outcome."""
    return [
        [
            outcome.title,
            str(len(outcome.latencies) + outcome.failed),
            str(len(outcome.latencies)),
            str(outcome.failed),
            *(f"{percentile(outcome.latencies, share) * 1e3:.1f}" for share in (0.5, 0.99)),
            f"{outcome.seconds:.2f}",
        ]
        for outcome in outcomes
    ]


def measure(advance: Callable[[], None], seconds: float | None = None) -> list[ReplicaOutcome]:
    """Each setting against two replicas of its own; `advance` is called after each call. Raises TimeoutError when one
    has not ended within `seconds`; None: it may take its time."""
    return [_one(setting, advance, seconds) for setting in SETTINGS]


def _one(setting: ReplicaSetting, advance: Callable[[], None], seconds: float | None) -> ReplicaOutcome:
    with backend(*gpu_flags()) as first, backend(*gpu_flags()) as second:
        return run_within(_measure(setting, first, second, advance), seconds)


async def _measure(
    setting: ReplicaSetting, first: Mapping[str, Any], second: Mapping[str, Any], advance: Callable[[], None]
) -> ReplicaOutcome:
    import httpx

    import netkit

    trust = ssl.create_default_context(cafile=first["ca_file"])
    trust.load_verify_locations(second["ca_file"])
    urls = [first["url"], second["url"]]
    client: httpx.AsyncClient
    turns: Iterator[str]
    if setting.plugins is None:
        client, turns = httpx.AsyncClient(verify=trust, timeout=10), itertools.cycle(urls)
    else:
        plugins = {**setting.plugins, "balance": {"endpoints": urls}}
        client, turns = netkit.AsyncClient(verify=trust, timeout=10, plugins=plugins), itertools.repeat(urls[0])
    numbers = iter(range(CALLS))
    latencies: list[float] = []
    failed = 0

    async def caller() -> None:
        nonlocal failed
        for number in numbers:
            if number == KILLED_AFTER:
                second["kill"]()
            began = time.perf_counter()
            try:
                body = {"model": "m", "input": f"text {number}"}
                answer = await client.post(f"{next(turns)}/v1/embeddings", json=body)
                answer.raise_for_status()
            except httpx.HTTPError:
                failed += 1
            else:
                latencies.append(time.perf_counter() - began)
            advance()

    async with client:
        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        seconds = time.perf_counter() - started
    return ReplicaOutcome(setting.title, seconds, tuple(latencies), failed)
