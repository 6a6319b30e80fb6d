"""Calls at a steady rate, whether or not the ones before have come back, and what became of each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from netkit.percentile import percentile

__all__ = ["Call", "Outcome", "Timeline", "summarise", "sustain"]

Call = Callable[[str], Any]
WORKERS: Final = 128


class Outcome(NamedTuple):
    """One call: when it began and ended, in seconds since the start, and whether it was answered 200."""

    began: float
    ended: float
    ok: bool


class Timeline(NamedTuple):
    """The fault lasts from `begins` to `ends`; calls are begun until `over`. Seconds since the start."""

    begins: float
    ends: float
    over: float


async def sustain(call: Call, urls: Sequence[str], *, is_async: bool, rate: float, seconds: float) -> list[Outcome]:
    """Begin `rate` calls per second for `seconds`, the URLs in turn; returns when all have ended."""
    started = time.monotonic()
    outcomes: list[Outcome] = []
    turns = itertools.cycle(urls)

    def note(began: float, status: int) -> None:
        outcomes.append(Outcome(began - started, time.monotonic() - started, status == 200))

    def block(url: str) -> None:
        began, status = time.monotonic(), 0
        try:
            status = call(url)
        except Exception:  # noqa: BLE001 - whatever it was, the call has failed
            pass
        note(began, status)

    async def suspend(url: str) -> None:
        began, status = time.monotonic(), 0
        try:
            status = await call(url)
        except Exception:  # noqa: BLE001 - whatever it was, the call has failed
            pass
        note(began, status)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(WORKERS) as pool:
        pending = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(started + number / rate - time.monotonic())
            url = next(turns)
            pending.append(loop.create_task(suspend(url)) if is_async else loop.run_in_executor(pool, block, url))
        await asyncio.gather(*pending)
    return outcomes


def summarise(outcomes: Sequence[Outcome], requests: int, timeline: Timeline) -> dict[str, float]:
    """`success` of all calls, `load` (requests that the servers saw per call), `p99` in seconds over all calls, and
    `recovery`: for how many seconds after the fault's end calls still failed."""
    late = [outcome.ended - timeline.ends for outcome in outcomes if not outcome.ok]
    return {
        "calls": len(outcomes),
        "success": sum(outcome.ok for outcome in outcomes) / len(outcomes),
        "load": requests / len(outcomes),
        "p99": percentile((outcome.ended - outcome.began for outcome in outcomes), 0.99),
        "recovery": max(0.0, *late) if late else 0.0,
    }
