"""The demo's table on the terminal, and its page: one self-contained HTML file with charts."""

from __future__ import annotations

import html
import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from netkit.cli.demo import knobs, pictures, replicas, scarce
from netkit.cli.demo.flow import ROUND_TRIP_MS, STREAMS, FlowOutcome
from netkit.cli.demo.knobs import KnobOutcome
from netkit.cli.demo.ladder import Outcome, Step
from netkit.cli.demo.pictures import PictureOutcome
from netkit.cli.demo.replicas import ReplicaOutcome
from netkit.percentile import percentile

__all__ = [
    "FLOW_HEAD",
    "FLOW_TITLE",
    "HEAD",
    "Bar",
    "chart",
    "document",
    "flow_rows",
    "flow_table",
    "html_table",
    "knobs_table",
    "page",
    "pictures_table",
    "replicas_table",
    "rich_table",
    "scarce_table",
    "table",
]


def _change(outcome: Outcome, first: Outcome) -> str:
    return "" if outcome is first or not first.rate else f"{outcome.rate / first.rate:.1f}x"


def _rows(outcomes: Sequence[Outcome], steps: Sequence[Step]) -> list[list[str]]:
    titles = {step.number: step.title for step in steps}
    first = {outcome.stack: outcome for outcome in reversed(outcomes)}
    return [
        [
            outcome.stack,
            f"{outcome.step} {titles[outcome.step]}",
            f"{outcome.rate:,.0f}",
            f"{outcome.mean * 1e3:.1f}",
            *(f"{outcome.percentile(share) * 1e3:.1f}" for share in (0.5, 0.95, 0.99)),
            f"{outcome.requests:,}",
            str(outcome.connections),
            f"{outcome.utilisation:.0%}",
            str(outcome.errors),
            _change(outcome, first[outcome.stack]),
        ]
        for outcome in sorted(outcomes, key=lambda outcome: (list(first)[::-1].index(outcome.stack), outcome.step))
    ]


HEAD = ("stack", "step", "req/s", "mean ms", "P50", "P95", "P99", "reqs", "conns", "GPU", "errors", "vs 1")


def table(outcomes: Sequence[Outcome], steps: Sequence[Step]) -> Any:
    """A rich table; one row for each stack and step."""
    return rich_table("Embeddings, one input per call (latencies in ms)", HEAD, _rows(outcomes, steps), left=2)


def rich_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> Any:
    """A table for the terminal; the first `left` columns are text."""
    from rich.box import SIMPLE
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=SIMPLE)
    for position, name in enumerate(head):
        made.add_column(name, justify="left" if position < left else "right", no_wrap=True)
    previous = ""
    for row in rows:
        if previous and left > 1 and row[0] != previous:
            made.add_section()
        previous = row[0]
        made.add_row(*row)
    return made


FLOW_HEAD = ("windows", "MB/s", "1st token P50", "P99", "gap P99", "CPU s", "conns", "errors")
FLOW_TITLE = f"4 flow control: {STREAMS} streams at once, round trip {ROUND_TRIP_MS} ms (httpx; times in ms)"


def flow_rows(flows: Sequence[FlowOutcome]) -> list[list[str]]:
    """A row of the table for each setting of the windows."""
    return [
        [
            flow.title,
            f"{flow.throughput / 1e6:.1f}",
            f"{percentile(flow.first_tokens, 0.5) * 1e3:.0f}",
            f"{percentile(flow.first_tokens, 0.99) * 1e3:.0f}",
            f"{percentile(flow.gaps, 0.99) * 1e3:.0f}",
            f"{flow.cpu:.2f}",
            str(flow.connections),
            str(flow.errors),
        ]
        for flow in flows
    ]


def flow_table(flows: Sequence[FlowOutcome]) -> Any:
    """A rich table; one row for each setting of the windows."""
    return rich_table(FLOW_TITLE, FLOW_HEAD, flow_rows(flows), left=1)


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #6a737d; --line: #d9dee3; --bar: #2f6fde; --first: #b6bec8;
        --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #98a2ad; --line: #343b43; --bar: #6b9cf5;
        --first: #5a636d; --back: #15181c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 64rem;
       margin: 3rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p, li, figcaption { color: var(--soft); } strong { color: var(--ink); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
figure { margin: 1rem 0; } .scroll { overflow-x: auto; }
svg { width: 100%; height: auto; } text { fill: var(--ink); font: 13px system-ui, sans-serif; }
text.soft { fill: var(--soft); } rect.bar { fill: var(--bar); } rect.first { fill: var(--first); }
path.range { stroke: var(--ink); stroke-width: 2; }
"""


class Bar(NamedTuple):
    """One bar; `plain` is what the others are compared with. `low` and `high`, where they differ, become a line."""

    label: str
    value: float
    plain: bool = False
    low: float | None = None
    high: float | None = None


def chart(bars: Sequence[Bar], unit: str) -> str:
    """Horizontal bars, one below the other, as SVG."""
    largest = max((bar.value if bar.high is None else bar.high for bar in bars), default=0) or 1
    height, parts = 26, []
    for position, bar in enumerate(bars):
        top, size = position * height, bar.value
        width = max(2.0, 480 * size / largest)
        shown = f"{size:,.0f}" if float(size).is_integer() else f"{size:,.1f}"
        ends = width
        parts.append(
            f'<text x="0" y="{top + 17}">{html.escape(bar.label)}</text>'
            f'<rect class="{"first" if bar.plain else "bar"}" x="250" y="{top + 4}" width="{width:.1f}" '
            f'height="18" rx="3"/>'
        )
        if bar.low is not None and bar.high is not None and bar.low < bar.high:
            left, right = (250 + 480 * end / largest for end in (bar.low, bar.high))
            ends = max(width, right - 250)
            parts.append(f'<path class="range" d="M{left:.1f} {top + 13}H{right:.1f}"/>')
        parts.append(f'<text class="soft" x="{258 + ends:.1f}" y="{top + 17}">{shown} {unit}</text>')
    return (
        f'<svg viewBox="0 0 860 {height * len(bars)}" role="img" aria-label="bars in {unit}">{"".join(parts)}</svg>'
    )


def _bars(outcomes: Sequence[Outcome], steps: Sequence[Step], value: Any, unit: str) -> str:
    titles = {step.number: step.title for step in steps}
    labelled = [
        Bar(f"{outcome.stack} · {titles[outcome.step]}", value(outcome), outcome.step == 1) for outcome in outcomes
    ]
    return chart(labelled, unit)


def replicas_table(outcomes: Sequence[ReplicaOutcome]) -> Any:
    """A rich table; one row for each kind of caller."""
    return rich_table(replicas.TITLE, replicas.HEAD, replicas.rows(outcomes), left=1)


def pictures_table(outcomes: Sequence[PictureOutcome]) -> Any:
    """A rich table; one row for each setting of the pictures."""
    return rich_table(pictures.TITLE, pictures.HEAD, pictures.rows(outcomes), left=1)


def knobs_table(outcomes: Sequence[KnobOutcome]) -> Any:
    """A rich table; one row for each setting that adaptive began with."""
    return rich_table(knobs.TITLE, knobs.HEAD, knobs.rows(outcomes), left=1)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls where the page is narrow."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def scarce_table(outcomes: Sequence[Outcome]) -> Any:
    """A rich table; two rows for each stack."""
    return rich_table(scarce.TITLE, scarce.HEAD, scarce.rows(outcomes), left=2)


def page(
    outcomes: Sequence[Outcome],
    steps: Sequence[Step],
    setting: str,
    flows: Sequence[FlowOutcome] = (),
    photographs: Sequence[PictureOutcome] = (),
    callers: Sequence[ReplicaOutcome] = (),
    found: Sequence[KnobOutcome] = (),
    short: Sequence[Outcome] = (),
) -> str:
    """The whole report as one HTML document without any outside reference."""
    lessons = "".join(
        f"<li><strong>Step {step.number}, {html.escape(step.title)}.</strong> {html.escape(step.lesson)}</li>"
        for step in steps
    )
    charts = "".join(
        f"<h2>{title}</h2><figure>{_bars(outcomes, steps, value, unit)}</figure>"
        for title, value, unit in (
            ("Throughput", lambda outcome: outcome.rate, "requests/s"),
            ("P99 latency", lambda outcome: outcome.percentile(0.99) * 1e3, "ms"),
            ("Requests at the server", lambda outcome: float(outcome.requests), "requests"),
            ("Connections opened", lambda outcome: float(outcome.connections), "connections"),
            ("GPU busy", lambda outcome: outcome.utilisation * 100, "%"),
        )
    )
    flow = f"<h2>{html.escape(FLOW_TITLE)}</h2>{html_table(FLOW_HEAD, flow_rows(flows))}" if flows else ""
    if callers:
        flow += f"<h2>{html.escape(replicas.TITLE)}</h2>{html_table(replicas.HEAD, replicas.rows(callers))}"
    if short:
        flow += f"<h2>{html.escape(scarce.TITLE)}</h2>{html_table(scarce.HEAD, scarce.rows(short))}"
    if photographs:
        flow += f"<h2>{html.escape(pictures.TITLE)}</h2>{html_table(pictures.HEAD, pictures.rows(photographs))}"
    if found:
        flow += f"<h2>{html.escape(knobs.TITLE)}</h2>{html_table(knobs.HEAD, knobs.rows(found))}"
    about = html.escape(f"netkit {version('netkit-http')}, Python {platform.python_version()}. {setting}")
    body = f"<p>{about}</p><ol>{lessons}</ol>{html_table(HEAD, _rows(outcomes, steps))}{charts}{flow}"
    return document("netkit demo", "netkit, step by step", body)


def document(title: str, heading: str, body: str) -> str:
    """One HTML document without any outside reference; `body` is HTML."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{html.escape(heading)}</h1>{body}</body></html>\n"
    )
