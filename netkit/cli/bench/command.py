"""The command line of `netkit bench`: what is wished for, said before it begins, printed after it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netkit.cli._extras import missing_extra
from netkit.cli._output import console, print_json
from netkit.cli.bench import ladder
from netkit.cli.bench.summary import HEAD, cells, page
from netkit.cli.demo.report import rich_table
from netkit.cli.doctor.batching import routes_of
from netkit.cli.doctor.target import Target, parse
from netkit.errors import ConfigError

__all__ = ["Wishes", "run"]

_QUICK_SECONDS = 15.0
_QUICK_STACKS = ("httpx",)
_SECONDS = 46.0
_WIDTH = 150


@dataclass(frozen=True)
class Wishes:
    """As the options of the command say; None: the default of `quick` or not."""

    url: str | None
    ca: str | None
    headers: Sequence[str]
    model: str | None
    rate: float | None
    calls: int | None
    concurrency: int
    rounds: int | None
    stacks: Sequence[str]
    steps: Sequence[int]
    peers: bool
    quick: bool
    as_json: bool
    report: Path | None
    yes: bool

    def plan(self) -> ladder.Plan:
        return ladder.Plan(
            calls=self.calls or (120 if self.quick else 300),
            concurrency=self.concurrency,
            rounds=self.rounds or (2 if self.quick else 3),
            rate=self.rate,
            seconds=_QUICK_SECONDS if self.quick else _SECONDS,
        )


def run(wishes: Wishes) -> int:
    """Measure and print. Returns 0, or 1 where a call failed or nobody agreed."""
    plan = wishes.plan()
    stacks = wishes.stacks or (_QUICK_STACKS if wishes.quick else ())
    taking_part, absent = ladder.contenders(stacks, wishes.steps, peers=wishes.peers)
    for name in absent:
        _say(f"left out: {name} is not installed")
    if not taking_part:
        raise ConfigError("bench: nobody is left to be measured")
    target = _target(wishes)
    if target is not None and not _agreed(target, plan, len(taking_part), asks=not wishes.yes):
        return 1
    try:
        with _server(wishes, target) as server:
            found = ladder.measure(plan, server, taking_part, _say)
    except ModuleNotFoundError as error:
        raise missing_extra("bench", error, "all") from error
    whole = target is None and not wishes.quick and not wishes.stacks and not wishes.steps and wishes.rate is None
    more, late = ladder.tables(_say) if whole else ([], [])
    setting = ladder.setting(plan, server, "" if target is None else target.shown)
    if not found.complete:
        setting += " The time was up before the last round."
    if late:
        setting += f" Not ended in time: {', '.join(late)}."
    if found.unreached:
        setting += f" Not reached: {', '.join(found.unreached)}."
    if wishes.report is not None:
        ladder.report_file(wishes.report, page(setting, found.rows, more))
    if wishes.as_json:
        print_json(
            {
                "setting": setting,
                "loop": "closed" if plan.rate is None else "open",
                "rounds": found.rounds,
                "complete": found.complete,
                "left_out": absent,
                "unreached": found.unreached,
                "late": late,
                "rows": [row.as_json() for row in found.rows],
                "tables": [{"title": title, "head": head, "rows": rows} for title, head, rows in more],
            }
        )
    else:
        _show(found, setting, more, wishes.report)
    return 1 if any(row.errors for row in found.rows) else 0


def _target(wishes: Wishes) -> Target | None:
    if wishes.url is None:
        for name, given in (("--ca", wishes.ca), ("--header", wishes.headers), ("--model", wishes.model)):
            if given:
                raise ConfigError(f"bench: {name} is for a server of yours: --url names it")
        return None
    target = parse(wishes.url, list(wishes.headers), command="bench")
    if wishes.ca is not None and not Path(wishes.ca).is_file():
        raise ConfigError(f"bench: --ca: {wishes.ca}: no such file")
    return target


def _server(wishes: Wishes, target: Target | None) -> AbstractContextManager[ladder.Server]:
    if target is None:
        return ladder.mock_server()
    query = target.path.partition("?")[2]
    url = target.origin + routes_of(target.path)[0] + (f"?{query}" if query else "")
    return nullcontext(
        ladder.Server(url, wishes.ca, dict(target.headers), wishes.model or "default", dimensions=None)
    )


def _agreed(target: Target, plan: ladder.Plan, count: int, *, asks: bool) -> bool:
    """Say what a real server is about to get; ask where somebody can answer."""
    most = count * plan.rounds * (plan.calls + 16)
    _say(f"{target.shown}: up to {most} embedding calls in about {plan.seconds:.0f} seconds.")
    if not asks or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _show(found: ladder.Report, setting: str, more: Sequence[Any], report: Path | None) -> None:
    out = console()
    out.width = max(out.width, _WIDTH)
    out.print(rich_table("Embeddings, one input per call", HEAD, [cells(row) for row in found.rows], left=2))
    out.print(setting, highlight=False)
    for title, head, rows in more:
        out.print(rich_table(title, head, rows, left=1))
    for row in found.rows:
        if row.error:
            out.print(f"! {row.stack} · {row.title}: {row.error}", markup=False, highlight=False)
    if report is not None:
        out.print(f"Charts: {report}", highlight=False)
