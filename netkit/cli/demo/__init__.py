"""`netkit demo`: your own stacks against a mock GPU, one step of the ladder after the other."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from netkit.cli.demo.backend import DIMENSIONS, GPUS, SETTING, gpu_flags, server_stats
from netkit.cli.demo.backend import backend as make_backend
from netkit.cli.demo.flow import ROUND_TRIP_MS, SETTINGS, STREAMS, FlowOutcome, measure
from netkit.cli.demo.knobs import TICKS, KnobOutcome
from netkit.cli.demo.knobs import measure as measure_knobs
from netkit.cli.demo.ladder import STEPS, Outcome, Step, Workload
from netkit.cli.demo.pictures import CORNERS, PictureOutcome
from netkit.cli.demo.pictures import SETTINGS as PICTURE_SETTINGS
from netkit.cli.demo.pictures import measure as measure_pictures
from netkit.cli.demo.replicas import CALLS as REPLICA_CALLS
from netkit.cli.demo.replicas import SETTINGS as REPLICA_SETTINGS
from netkit.cli.demo.replicas import ReplicaOutcome
from netkit.cli.demo.replicas import measure as measure_replicas
from netkit.cli.demo.report import (
    flow_table,
    knobs_table,
    page,
    pictures_table,
    replicas_table,
    scarce_table,
    table,
)
from netkit.cli.demo.scarce import CALLS as SCARCE_CALLS
from netkit.cli.demo.scarce import PAIR
from netkit.cli.demo.scarce import measure as measure_scarce
from netkit.cli.demo.stacks import STACKS, Calls

__all__ = ["run"]

T = TypeVar("T")

TABLE_WIDTH = 124


def _measure(step: Step, stack: str, workload: Workload, backend: dict[str, Any], advance: Any) -> Outcome:
    before = server_stats(backend)
    calls = Calls(workload, advance)
    started = time.perf_counter()
    STACKS[stack](step, workload, calls)
    seconds = time.perf_counter() - started
    after = server_stats(backend)
    return Outcome(
        step=step.number,
        stack=stack,
        seconds=seconds,
        latencies=tuple(calls.latencies),
        errors=calls.errors,
        # Asking for the statistics opens a connection too.
        connections=after["connections"] - before["connections"] - 1,
        utilisation=(after["busy"] - before["busy"]) / (GPUS * seconds),
        requests=after["requests"] - before["requests"] - 1,
    )


def _flow_control(console: Any, columns: Any) -> list[FlowOutcome]:
    """Step 4, on httpx: the same streams with narrow and with wide windows."""
    from rich.console import Console
    from rich.progress import Progress

    flags = ("--rtt-ms", str(ROUND_TRIP_MS), "--settings", f"3={STREAMS}")
    flows: list[FlowOutcome] = []
    with make_backend(*flags) as backend, Progress(*columns, console=console) as progress:
        for setting in SETTINGS:
            bar = progress.add_task(f"windows: {setting.title}"[:32], total=2 * STREAMS)
            advance = partial(progress.advance, bar)
            flows.append(measure(setting, backend["url"], backend["ca_file"], advance))
    Console(width=max(console.width, TABLE_WIDTH)).print(flow_table(flows))
    return flows


def _shown(
    console: Any,
    columns: Any,
    bars: Sequence[tuple[str, int, Callable[[Any], list[T]]]],
    made: Callable[[list[T]], Any],
) -> list[T]:
    """A step with servers of its own: for each bar (its text, how far it goes, what is measured meanwhile and moves
    it) the outcomes, and one table `made` of them all."""
    from rich.console import Console
    from rich.progress import Progress

    outcomes: list[T] = []
    with Progress(*columns, console=console) as progress:
        for text, total, work in bars:
            outcomes += work(partial(progress.advance, progress.add_task(text, total=total)))
    Console(width=max(console.width, TABLE_WIDTH)).print(made(outcomes))
    return outcomes


def _replicas(console: Any, columns: Any) -> list[ReplicaOutcome]:
    """Step 5, on httpx: one of two replicas is killed under load."""
    bar = ("a replica dies", len(REPLICA_SETTINGS) * REPLICA_CALLS, measure_replicas)
    return _shown(console, columns, [bar], replicas_table)


def _scarce(console: Any, columns: Any, stacks: Sequence[str]) -> list[Outcome]:
    """Step 6 where the GPU is the limit."""
    total = len(PAIR) * SCARCE_CALLS
    bars = [(f"{stack}: one GPU", total, partial(measure_scarce, stack)) for stack in stacks]
    return _shown(console, columns, bars, scarce_table)


def _pictures(console: Any, columns: Any) -> list[PictureOutcome]:
    """Step 8, on httpx: photographs over a thin uplink, as they are and made fit first."""
    if importlib.util.find_spec("PIL") is None:
        console.print("pillow is not installed: step 8, pictures, is left out")
        return []
    bar = ("pictures", len(PICTURE_SETTINGS) * len(CORNERS), measure_pictures)
    return _shown(console, columns, [bar], pictures_table)


def _knobs(console: Any, columns: Any) -> list[KnobOutcome]:
    """Beside the ladder, on httpx: a setting that finds itself."""
    return _shown(console, columns, [("adaptive", TICKS, measure_knobs)], knobs_table)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="netkit demo", description=__doc__)
    parser.add_argument("--calls", type=int, default=600, help="calls per stack and step (600)")
    parser.add_argument("--concurrency", type=int, default=32, help="calls at a time (32)")
    parser.add_argument("--stack", action="append", choices=list(STACKS), help="only this stack; repeatable")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="where the page is written")
    parser.add_argument("--no-flow", action="store_true", help="leave out step 4, flow control")
    parser.add_argument("--no-replicas", action="store_true", help="leave out step 5, a replica that dies")
    parser.add_argument("--no-scarce", action="store_true", help="leave out step 6 with one GPU alone")
    parser.add_argument("--no-pictures", action="store_true", help="leave out step 8, pictures")
    parser.add_argument("--no-adaptive", action="store_true", help="leave out the settings that find themselves")
    options = parser.parse_args(arguments)
    if options.calls < 1 or options.concurrency < 1:
        parser.error("--calls and --concurrency must be at least 1")
    return options


def run(arguments: Sequence[str]) -> int:
    """Run the ladder; prints a table, writes the page. Returns 0, or 1 when any call failed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    options = _parse(arguments)
    console = Console()
    wanted = options.stack or list(STACKS)
    stacks = [stack for stack in wanted if importlib.util.find_spec(stack) is not None]
    for stack in wanted:
        if stack not in stacks:
            console.print(f"{stack} is not installed: left out")
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with make_backend(*gpu_flags()) as backend, Progress(*columns, console=console) as progress:
        for stack in stacks:
            for step in STEPS:
                workload = Workload(
                    url=f"{backend['url']}/v1/embeddings",
                    ca_file=backend["ca_file"],
                    inputs=step.inputs(stack, options.calls),
                    concurrency=options.concurrency,
                    dimensions=DIMENSIONS,
                )
                bar = progress.add_task(f"{stack}: {step.title}", total=options.calls)
                outcomes.append(_measure(step, stack, workload, backend, partial(progress.advance, bar)))
    Console(width=max(console.width, TABLE_WIDTH)).print(table(outcomes, STEPS))
    console.print(SETTING)
    flows = _flow_control(console, columns) if "httpx" in stacks and not options.no_flow else []
    callers = _replicas(console, columns) if "httpx" in stacks and not options.no_replicas else []
    short = [] if options.no_scarce else _scarce(console, columns, stacks)
    pictures = _pictures(console, columns) if "httpx" in stacks and not options.no_pictures else []
    found = _knobs(console, columns) if "httpx" in stacks and not options.no_adaptive else []
    options.report.write_text(
        page(outcomes, STEPS, SETTING, flows, pictures, callers, found, short), encoding="utf-8"
    )
    console.print(f"Charts: {options.report}")
    failed = sum(outcome.errors for outcome in outcomes) + sum(flow.errors for flow in flows)
    failed += sum(outcome.errors for outcome in short)
    failed += sum(outcome.errors for outcome in pictures) + sum(outcome.failed for outcome in found)
    # Plain callers are bound to see the replica die; netkit's must not.
    failed += sum(each.failed for each, way in zip(callers, REPLICA_SETTINGS, strict=False) if way.plugins)
    if failed:
        console.print(f"{failed} calls failed or gave a wrong vector")
    return 1 if failed else 0
