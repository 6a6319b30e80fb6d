"""`netkit demo`: your own stacks against a mock GPU, one step of the ladder after the other."""

from __future__ import annotations

import argparse
import importlib.util
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from netkit.cli.demo.flow import ROUND_TRIP_MS, SETTINGS, STREAMS, FlowOutcome, measure
from netkit.cli.demo.ladder import STEPS, Outcome, Step, Workload
from netkit.cli.demo.pictures import CORNERS, PictureOutcome
from netkit.cli.demo.pictures import SETTINGS as PICTURE_SETTINGS
from netkit.cli.demo.pictures import measure as measure_pictures
from netkit.cli.demo.report import flow_table, page, pictures_table, table
from netkit.cli.demo.stacks import STACKS, Calls

__all__ = ["run"]

TABLE_WIDTH = 124
GPUS, LAUNCH_MS, ITEM_MS, DIMENSIONS = 8, 4.0, 0.5, 64
SETTING = (
    f"Mock backend: {GPUS} GPUs, {LAUNCH_MS:g} ms per batch and {ITEM_MS:g} ms per item, over TLS on this machine. "
    "Compare steps of one run; absolute figures are the machine's."
)


@contextmanager
def _backend(*flags: str) -> Iterator[dict[str, Any]]:
    """The mock GPU in a process of its own, so that it does not share the interpreter with what is measured."""
    command = [sys.executable, "-m", "netkit.testing.mock_gpu", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the mock GPU did not start")
            yield json.loads(line)
        finally:
            process.terminate()


def _server_stats(backend: dict[str, Any]) -> dict[str, Any]:
    trust = ssl.create_default_context(cafile=backend["ca_file"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust))
    with opener.open(f"{backend['url']}/stats", timeout=10) as answer:
        stats: dict[str, Any] = json.load(answer)
    return stats


def _measure(step: Step, stack: str, workload: Workload, backend: dict[str, Any], advance: Any) -> Outcome:
    before = _server_stats(backend)
    calls = Calls(workload, advance)
    started = time.perf_counter()
    STACKS[stack](step, workload, calls)
    seconds = time.perf_counter() - started
    after = _server_stats(backend)
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
    with _backend(*flags) as backend, Progress(*columns, console=console) as progress:
        for setting in SETTINGS:
            bar = progress.add_task(f"windows: {setting.title}"[:32], total=2 * STREAMS)
            advance = partial(progress.advance, bar)
            flows.append(measure(setting, backend["url"], backend["ca_file"], advance))
    Console(width=max(console.width, TABLE_WIDTH)).print(flow_table(flows))
    return flows


def _pictures(console: Any, columns: Any) -> list[PictureOutcome]:
    """Step 8, on httpx: photographs over a thin uplink, as they are and made fit first."""
    from rich.console import Console
    from rich.progress import Progress

    if importlib.util.find_spec("PIL") is None:
        console.print("pillow is not installed: step 8, pictures, is left out")
        return []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("pictures", total=len(PICTURE_SETTINGS) * len(CORNERS))
        outcomes = measure_pictures(partial(progress.advance, bar))
    Console(width=max(console.width, TABLE_WIDTH)).print(pictures_table(outcomes))
    return outcomes


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="netkit demo", description=__doc__)
    parser.add_argument("--calls", type=int, default=600, help="calls per stack and step (600)")
    parser.add_argument("--concurrency", type=int, default=32, help="calls at a time (32)")
    parser.add_argument("--stack", action="append", choices=list(STACKS), help="only this stack; repeatable")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="where the page is written")
    parser.add_argument("--no-flow", action="store_true", help="leave out step 4, flow control")
    parser.add_argument("--no-pictures", action="store_true", help="leave out step 8, pictures")
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
    gpu = ("--gpus", str(GPUS), "--launch-ms", str(LAUNCH_MS), "--per-item-ms", str(ITEM_MS))
    with _backend(*gpu) as backend, Progress(*columns, console=console) as progress:
        for stack in stacks:
            for step in STEPS:
                workload = Workload(
                    url=f"{backend['url']}/v1/embeddings",
                    ca_file=backend["ca_file"],
                    inputs=tuple(f"{stack} {step.number} text {number}" for number in range(options.calls)),
                    concurrency=options.concurrency,
                    dimensions=DIMENSIONS,
                )
                bar = progress.add_task(f"{stack}: {step.title}", total=options.calls)
                outcomes.append(_measure(step, stack, workload, backend, partial(progress.advance, bar)))
    Console(width=max(console.width, TABLE_WIDTH)).print(table(outcomes, STEPS))
    console.print(SETTING)
    flows = _flow_control(console, columns) if "httpx" in stacks and not options.no_flow else []
    pictures = _pictures(console, columns) if "httpx" in stacks and not options.no_pictures else []
    options.report.write_text(page(outcomes, STEPS, SETTING, flows, pictures), encoding="utf-8")
    console.print(f"Charts: {options.report}")
    failed = sum(outcome.errors for outcome in outcomes) + sum(flow.errors for flow in flows)
    failed += sum(outcome.errors for outcome in pictures)
    if failed:
        console.print(f"{failed} calls failed or gave a wrong vector")
    return 1 if failed else 0
