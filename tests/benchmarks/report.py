"""Results as tables: on the terminal with rich, for docs/benchmarks.md as Markdown, and as JSON."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.harness import PEERS, Outcome, Spread, Verdict

__all__ = ["as_json", "goal_rows", "header", "machine", "markdown", "result_rows", "show", "show_targets", "versions"]

_PACKAGES = ("requests", "urllib3", "httpx", "httpx2", "aiohttp", "h2", "ngh2", "granian")


def versions() -> str:
    """What was measured."""
    found = [f"{name} {_version(name)}" for name in _PACKAGES]
    if (PEERS / "bin" / "python").exists():
        code = "from importlib.metadata import version as v\nfor n in ('pyreqwest', 'pyqwest'): print(n, v(n))"
        done = subprocess.run([PEERS / "bin" / "python", "-c", code], capture_output=True, text=True)
        found += done.stdout.split("\n")[:-1]
    nginx = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr
    return ", ".join([*found, f"nginx {nginx.strip().rpartition('/')[2]}"])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "-"


def machine(calibration: Spread, loads: Sequence[float]) -> str:
    """The machine without its name."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}; "
        f"calibration loop {_spread(calibration)} ms, "
        f"load average before the runs {min(loads):.1f}-{max(loads):.1f}"
    )


def header(module: ModuleType) -> list[str]:
    return ["contender", "at once", *module.METRICS, "errors", "the server saw"]


def result_rows(module: ModuleType, outcomes: Sequence[Outcome]) -> list[list[str]]:
    rows = []
    for outcome in outcomes:
        front = [outcome.case.face, str(outcome.case.concurrency)]
        if outcome.left_out:
            rows.append([*front, *[""] * len(module.METRICS), "", f"left out: {outcome.left_out}"])
            continue
        errors = str(sum(result["errors"] for result in outcome.rounds))
        rows.append([*front, *(_spread(outcome.metric(name)) for name in module.METRICS), errors, outcome.protocol()])
    return rows


def goal_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    return [
        [
            verdict.goal.face,
            str(verdict.goal.concurrency),
            verdict.goal.metric,
            verdict.goal.words(),
            _spread(verdict.value) or "not measured",
            {True: "met", False: "missed", None: "-"}[verdict.met],
        ]
        for verdict in verdicts
    ]


GOAL_HEADER = ["contender", "at once", "metric", "target", "measured", ""]


def show(console: Console, module: ModuleType, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> None:
    for title, head, rows in (
        (module.TITLE, header(module), result_rows(module, outcomes)),
        ("targets (ratios within a round; median and range)", GOAL_HEADER, goal_rows(verdicts)),
    ):
        table = Table(title=title, title_justify="left")
        for name in head:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*row, style={"missed": "red", "met": "green"}.get(row[-1]))
        console.print(table)
    for outcome in outcomes:
        for problem in outcome.problems:
            console.print(f"! {outcome.case.face} x {outcome.case.concurrency}: {problem}", markup=False)


def show_targets(console: Console, rows: Sequence[Sequence[str]]) -> None:
    """The targets of all workloads in one table, at the end."""
    if not rows:
        return
    table = Table(title="all targets", title_justify="left")
    for name in ("", *GOAL_HEADER):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row, style={"missed": "red", "met": "green"}.get(row[-1]))
    console.print(table)


def markdown(module: ModuleType, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> str:
    lines = [f"## {module.TITLE}", ""]
    for head, rows in ((header(module), result_rows(module, outcomes)), (GOAL_HEADER, goal_rows(verdicts))):
        lines += [_line(head), _line(["---"] * len(head)), *map(_line, rows), ""]
    lines += [f"- {o.case.face} x {o.case.concurrency}: {problem}" for o in outcomes for problem in o.problems]
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "targets": [{**asdict(verdict), "met": verdict.met} for verdict in verdicts],
    }


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _spread(value: Spread | None) -> str:
    if value is None:
        return ""
    if value.low == value.high:
        return _number(value.median)
    return f"{_number(value.median)} ({_number(value.low)}-{_number(value.high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
