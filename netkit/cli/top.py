"""`netkit top`: a running process's calls, pools, streams, batches and breakers, live."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from netkit import monitor
from netkit.cli._output import print_json
from netkit.errors import NetkitError

__all__ = ["run", "view"]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="netkit top",
        description="Look at a running process that has telemetry.top on, or was started by `netkit run --top`.",
    )
    parser.add_argument("pid", type=int, nargs="?", help="which process; without it the only one there is")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)")
    parser.add_argument("--once", action="store_true", help="look once and print")
    parser.add_argument("--json", action="store_true", help="print one look as JSON")
    options = parser.parse_args(arguments)
    if options.interval <= 0:
        parser.error("--interval must be above 0")
    return options


def run(arguments: Sequence[str]) -> int:
    """Show one process until interrupted, or until it is gone."""
    options = _parse(arguments)
    pid = options.pid if options.pid is not None else _only()
    last = _look(pid)
    if options.json:
        print_json(last)
        return 0
    console = Console()
    if options.once:
        console.print(view(last, None, 0.0))
        return 0
    taken = time.monotonic()
    with Live(view(last, None, 0.0), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(options.interval)
                try:
                    now = monitor.look(pid)
                except OSError:
                    console.print(f"process {pid} is gone")
                    return 0
                moment = time.monotonic()
                live.update(view(now, last, moment - taken), refresh=True)
                last, taken = now, moment
        except KeyboardInterrupt:
            return 0


def _only() -> int:
    found = monitor.running()
    if len(found) == 1:
        return found[0]
    if not found:
        raise NetkitError(
            "top: no process to look at; start one with `netkit run --top`, or set telemetry.top = true"
        )
    raise NetkitError(f"top: which of them? {', '.join(map(str, found))}")


def _look(pid: int) -> dict[str, Any]:
    try:
        return monitor.look(pid)
    except OSError as error:
        raise NetkitError(f"top: process {pid} cannot be looked at: {error.strerror or error}") from error


def view(now: Mapping[str, Any], last: Mapping[str, Any] | None, seconds: float) -> RenderableType:
    """One look as tables. `last` is the one `seconds` before it, None at the first: rates need two."""
    calls = Table(title=f"{now['program']} ({now['pid']})", title_justify="left")
    for column in ("stack", "calls", "calls/s", "in flight", "errors", "attempts", "P50 ms", "P95 ms", "P99 ms"):
        calls.add_column(column, justify="left" if column == "stack" else "right")
    for stack, total in now["stacks"].items():
        before = (last or {}).get("stacks", {}).get(stack, {}).get("requests")
        rate = "" if before is None or seconds <= 0 else f"{(total.get('requests', 0) - before) / seconds:.1f}"
        latency = total.get("latency", {})
        calls.add_row(
            stack,
            str(total.get("requests", 0)),
            rate,
            str(sum(session["requests"]["in_flight"] for session in total["live"])),
            str(total.get("errors", 0)),
            str(total.get("attempts", 0)),
            *(f"{latency.get(name, 0.0) * 1000:.1f}" for name in ("p50", "p95", "p99")),
        )
    parts = Table(title="what plugins report, summed over live sessions", title_justify="left")
    parts.add_column("stack")
    parts.add_column("part")
    parts.add_column("numbers")
    for stack, total in now["stacks"].items():
        for name, numbers in _parts(total["live"]).items():
            parts.add_row(stack, name, Text(", ".join(f"{key} {value:g}" for key, value in numbers.items())))
    states = [
        Text(f"{stack} breaker {key}: {state.get('state', state) if isinstance(state, Mapping) else state}")
        for stack, total in now["stacks"].items()
        for session in total["live"]
        for key, state in (session["plugins"].get("breakers") or {}).items()
    ]
    return Group(calls, parts, *states)


def _parts(sessions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for session in sessions:
        for name, report in (("pool", session["pool"]), *session["plugins"].items()):
            if not isinstance(report, Mapping):
                continue
            for key, value in report.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    numbers = found.setdefault(name, {})
                    numbers[key] = numbers.get(key, 0) + value
    return found
