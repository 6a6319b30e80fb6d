"""`netkit bench faults`: every fault against every contender, each with two replicas of its own."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from netkit.cli._extras import missing_extra
from netkit.cli._output import console, print_json, table
from netkit.cli.bench.contenders import CONTENDERS, Contender, plugins_for
from netkit.cli.bench.load import Outcome, Timeline, summarise, sustain
from netkit.cli.bench.scenarios import SCENARIOS, Scenario
from netkit.errors import NetkitError

__all__ = ["measure", "run"]

BEFORE: Final = 0.3
AFTER: Final = 0.5
"""Seconds of calls before and after the fault."""

LIBRARIES: Final = {"urllib3 Retry": "urllib3", "httpx-retries": "httpx_retries", "aiohttp-retry": "aiohttp_retry"}


def run(
    *,
    stacks: Sequence[str] | None,
    scenarios: Sequence[str] | None,
    seconds: float,
    rate: float,
    as_json: bool,
) -> None:
    """Measure and print. Raises NetkitError for a name that nobody has, or a package that is missing."""
    wanted = _named(stacks, sorted({contender.stack for contender in CONTENDERS}), "stack")
    faults = _named(scenarios, [scenario.name for scenario in SCENARIOS], "fault")
    contenders = [contender for contender in CONTENDERS if contender.stack in wanted]
    _look_for_packages(contenders)
    rows = []
    for scenario in SCENARIOS:
        if scenario.name in faults:
            for stack in wanted:
                together = [contender for contender in contenders if contender.stack == stack]
                rows += measure(scenario, together, seconds=seconds, rate=rate)
    if as_json:
        print_json({"seconds": seconds, "rate": rate, "plugins": sorted(plugins_for(())), "rows": rows})
    else:
        _show(rows)


def measure(
    scenario: Scenario, contenders: Sequence[Contender], *, seconds: float, rate: float
) -> list[dict[str, Any]]:
    """One fault against these contenders, all at the same time, so that the machine's mood is the same for each."""
    timeline = Timeline(BEFORE, BEFORE + seconds, BEFORE + seconds + AFTER)
    results: dict[str, dict[str, Any]] = {}
    failures: list[BaseException] = []

    def work(contender: Contender) -> None:
        try:
            results[contender.name] = _one(scenario, contender, timeline, rate)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(contender,)) for contender in contenders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [
        {"fault": scenario.name, "stack": each.stack, "contender": each.name, **results[each.name]}
        for each in contenders
    ]


def _one(scenario: Scenario, contender: Contender, timeline: Timeline, rate: float) -> dict[str, Any]:
    from netkit.testing import MockGPU

    with ExitStack() as stack:
        replicas = [stack.enter_context(MockGPU(tls=False, http="1.1", gpus=8, launch_ms=2)) for _ in range(2)]
        urls = [replica.url for replica in replicas]

        async def calls() -> list[Outcome]:
            async with contender.open(urls) as call:
                # Imports and first connections are not what is measured.
                await sustain(call, urls, is_async=contender.is_async, rate=100.0, seconds=0.1)
                for replica in replicas:
                    replica.log.clear()
                with _later(scenario, replicas, timeline):
                    return await sustain(call, urls, is_async=contender.is_async, rate=rate, seconds=timeline.over)

        outcomes = asyncio.run(calls())
        return summarise(outcomes, sum(len(replica.log.requests) for replica in replicas), timeline)


@contextmanager
def _later(scenario: Scenario, replicas: Sequence[Any], timeline: Timeline) -> Iterator[None]:
    """Let the fault come and go by the timeline while the body runs."""
    started, over = time.monotonic(), threading.Event()

    def happen() -> None:
        if not over.wait(timeline.begins):
            with scenario.happens(replicas):
                over.wait(started + timeline.ends - time.monotonic())

    thread = threading.Thread(target=happen)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _named(given: Sequence[str] | None, known: Sequence[str], what: str) -> list[str]:
    for name in given or ():
        if name not in known:
            raise NetkitError(f"bench faults: there is no {what} {name!r}; known are {', '.join(known)}")
    return [name for name in known if not given or name in given]


def _look_for_packages(contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        for module in (contender.stack, LIBRARIES.get(contender.name)):
            try:
                if module is not None:
                    importlib.import_module(module)
            except ModuleNotFoundError as error:
                extra = "dev" if module in LIBRARIES.values() else contender.stack
                raise missing_extra("bench faults", error, extra) from error


def _show(rows: Sequence[dict[str, Any]]) -> None:
    out = console()
    made = table("fault", "", "success", "requests/call", "P99 ms", "recovery s")
    last = None
    for row in rows:
        if last is not None and (row["fault"], row["stack"]) != last:
            made.add_section()
        made.add_row(
            row["fault"] if last is None or row["fault"] != last[0] else "",
            row["contender"],
            f"{row['success']:.1%}",
            f"{row['load']:.2f}",
            f"{row['p99'] * 1000:.0f}",
            f"{row['recovery']:.2f}",
        )
        last = (row["fault"], row["stack"])
    out.print(made)
    out.print()
    for scenario in SCENARIOS:
        if any(row["fault"] == scenario.name for row in rows):
            out.print(f"{scenario.name}: {scenario.summary}.", highlight=False)
    out.print(f"netkit runs with: {', '.join(plugins_for(()))}.", highlight=False)
