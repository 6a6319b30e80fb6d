"""What the rounds of one contender come to: medians and how far they spread, as a table, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import html
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from netkit.cli.demo.report import Bar, chart, document, html_table
from netkit.percentile import percentile

__all__ = ["HEAD", "Result", "Row", "Spread", "cells", "page", "row"]


class Spread(NamedTuple):
    """Median, least and greatest of the rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """One round of one contender. Times in seconds; what only the mock can count is None elsewhere."""

    calls: int
    seconds: float
    latencies: tuple[float, ...]
    errors: int
    error: str | None = None
    requests: int | None = None
    connections: int | None = None
    utilisation: float | None = None

    @property
    def rate(self) -> float:
        """Calls that succeeded per second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Row:
    """One contender. `gain`: its rate divided by that of its stack's first step in the same round; None for peers
    and first steps. Latencies in seconds."""

    stack: str
    step: int | None
    title: str
    rounds: int
    calls: int
    errors: int
    error: str | None
    rate: Spread
    p50: Spread
    p95: Spread
    p99: Spread
    gain: Spread | None
    requests: Spread | None
    connections: Spread | None
    utilisation: Spread | None

    def as_json(self) -> dict[str, Any]:
        """Spreads as `{"median", "low", "high"}`."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value._asdict() if isinstance(value, Spread) else value for name, value in found.items()}


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def row(stack: str, step: int | None, title: str, results: Sequence[Result], first: Sequence[Result]) -> Row:
    """The rounds of one contender, and those of what it is compared with (none: nothing)."""

    def of(value: Callable[[Result], float | None]) -> Spread | None:
        return _spread(value(result) for result in results)

    ratios = [mine.rate / other.rate for mine, other in zip(results, first, strict=False) if other.rate]
    nothing = Spread(0.0, 0.0, 0.0)
    return Row(
        stack,
        step,
        title,
        rounds=len(results),
        calls=sum(result.calls for result in results),
        errors=sum(result.errors for result in results),
        error=next((result.error for result in results if result.error), None),
        rate=of(lambda result: result.rate) or nothing,
        p50=of(lambda result: percentile(result.latencies, 0.5)) or nothing,
        p95=of(lambda result: percentile(result.latencies, 0.95)) or nothing,
        p99=of(lambda result: percentile(result.latencies, 0.99)) or nothing,
        gain=_spread(ratios),
        requests=of(lambda result: result.requests),
        connections=of(lambda result: result.connections),
        utilisation=of(lambda result: result.utilisation),
    )


HEAD = (
    "stack",
    "step",
    "calls/s",
    "range",
    "P50 ms",
    "P95",
    "P99",
    "range",
    "at server",
    "conns",
    "GPU",
    "errors",
    "vs 1",
)


def cells(found: Row) -> list[str]:
    """One line of the table."""
    return [
        found.stack,
        found.title if found.step is None else f"{found.step} {found.title}",
        f"{found.rate.median:,.0f}",
        f"{found.rate.low:,.0f}-{found.rate.high:,.0f}",
        *(f"{spread.median * 1e3:.1f}" for spread in (found.p50, found.p95, found.p99)),
        f"{found.p99.low * 1e3:.0f}-{found.p99.high * 1e3:.0f}",
        "" if found.requests is None else f"{found.requests.median:,.0f}",
        "" if found.connections is None else f"{found.connections.median:,.0f}",
        "" if found.utilisation is None else f"{found.utilisation.median:.0%}",
        str(found.errors),
        "" if found.gain is None else f"{found.gain.median:.1f}x",
    ]


_CHARTS: tuple[tuple[str, str, Callable[[Row], Spread | None], float], ...] = (
    ("Throughput", "calls/s", lambda row: row.rate, 1),
    ("P50 latency", "ms", lambda row: row.p50, 1e3),
    ("P99 latency", "ms", lambda row: row.p99, 1e3),
    ("Requests at the server", "requests", lambda row: row.requests, 1),
    ("GPU busy", "%", lambda row: row.utilisation, 100),
)


def page(
    setting: str, rows: Sequence[Row], more: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = ()
) -> str:
    """The report: one self-contained document. `more` are further tables: (title, head, rows)."""
    parts = [f"<p>{html.escape(setting)}</p>", html_table(HEAD, [cells(found) for found in rows])]
    for title, unit, value, factor in _CHARTS:
        bars = [_bar(found, spread, factor) for found in rows if (spread := value(found)) is not None]
        if bars:
            parts.append(f"<h2>{title}</h2><figure>{chart(bars, unit)}</figure>")
    parts += [f"<h2>{html.escape(title)}</h2>{html_table(head, lines)}" for title, head, lines in more]
    failed = [f"{found.stack} {found.title}: {found.error}" for found in rows if found.error]
    if failed:
        parts.append(f"<h2>First errors</h2><ul>{''.join(f'<li>{html.escape(text)}</li>' for text in failed)}</ul>")
    return document("netkit bench", "netkit, measured", "".join(parts))


def _bar(found: Row, spread: Spread, factor: float) -> Bar:
    label = found.title if found.step is None else f"{found.stack} · {found.title}"
    value, low, high = (number * factor for number in spread)
    return Bar(label, value, found.step is None or found.step == 1, low, high)
