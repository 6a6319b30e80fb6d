"""Settings that are wrong, and one that is right: what fixed ones serve, and what `adaptive` makes of them.

`python -m tests.benchmarks.adaptive_settings [SECONDS [ROUNDS]]` prints the table of docs/adaptive.md. Numbers depend
on the machine. Each run is SECONDS of callers who call again as soon as they are answered; two thirds are for finding
out, the last third is measured. Runs with and without `adaptive` take turns.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import netkit
from netkit.testing import MockGPU

__all__ = ["ADAPTIVE", "Found", "measure"]

ADAPTIVE: Final[dict[str, Any]] = {
    "knobs": ["batch.max_items"],
    "bounds": {"batch.max_items": [1, 64]},
    "window": 0.5,
}
CALLERS: Final = 64


@dataclass(frozen=True)
class Found:
    """Inputs answered per second in the last third, failures in all, and where `max_items` ended."""

    rate: float
    failures: int
    max_items: int


async def measure(plugins: dict[str, Any], seconds: float, *, launch_ms: float, per_item_ms: float = 0.2) -> Found:
    """`CALLERS` tasks that embed one text after the other."""
    options = {"http": "1.1", "tls": False, "launch_ms": launch_ms, "per_item_ms": per_item_ms, "max_batch": 256}
    with MockGPU(**options) as gpu:
        plugins = {"http2": False, "pool": {"acquire_timeout": 30.0}, **plugins}
        async with netkit.AsyncClient(plugins=plugins, config=netkit.Config(), timeout=60.0) as client:
            begun = time.monotonic()
            ends: list[float] = []
            failures = 0

            async def caller(number: int) -> None:
                nonlocal failures
                while time.monotonic() - begun < seconds:
                    answer = await client.post(
                        f"{gpu.url}/v1/embeddings", json={"model": "mock-embed", "input": f"text {number}"}
                    )
                    failures += answer.status_code != 200
                    ends.append(time.monotonic() - begun)

            await asyncio.gather(*(caller(number) for number in range(CALLERS)))
            last = [end for end in ends if 2 / 3 * seconds <= end <= seconds]
            return Found(len(last) / (seconds / 3), failures, netkit.stats(client).plugins["batch"].max_items)


CASES: Final[tuple[tuple[str, float, int], ...]] = (
    ("`max_items = 4`, a launch costs 20 ms", 20.0, 4),
    ("`max_items = 64`, a launch costs 20 ms: right already", 20.0, 64),
    ("`max_items = 4`, a launch costs nothing", 0.0, 4),
)


def main(seconds: float = 60.0, rounds: int = 2) -> None:
    print("| | fixed, per second | with `adaptive` | `max_items` in the end | failures |\n|---|---|---|---|---|")
    for name, launch_ms, max_items in CASES:
        batch = {"batch": {"max_items": max_items, "max_in_flight": 1}}
        fixed: list[Found] = []
        moved: list[Found] = []
        for _ in range(rounds):
            fixed.append(asyncio.run(measure(batch, seconds, launch_ms=launch_ms)))
            moved.append(asyncio.run(measure({**batch, "adaptive": ADAPTIVE}, seconds, launch_ms=launch_ms)))
        rates = [median(each.rate for each in found) for found in (fixed, moved)]
        ended = ", ".join(str(each.max_items) for each in moved)
        failures = sum(each.failures for each in (*fixed, *moved))
        print(
            f"| {name} | {rates[0]:.0f} | {rates[1]:.0f} ({rates[1] / rates[0]:.2f} x) | {ended} | {failures} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:]))
