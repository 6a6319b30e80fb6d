"""What the server tells about itself: Stats, and the routes /stats, /metrics, /health."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from .exchange import Answer, Exchange
from .gpus import GpuStats

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["Stats", "mount", "stats_of"]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. Times are seconds; `gpus` has one entry per GPU, the other GPU figures are sums over them.

    `utilisation`: busy time / time between the first batch's start and the last one's end, over all GPUs.
    `gaps`: how often a GPU stood idle for at least 1 ms between two batches; `gap_total`, `gap_longest`: how long.
    """

    utilisation: float
    batches: int
    items: int
    busy: float
    gaps: int
    gap_total: float
    gap_longest: float
    queued: int
    peak_queued: int
    rejected: int
    """Requests refused because the queue was full."""
    streams: int
    peak_streams: int
    requests: int
    open_requests: int
    peak_requests: int
    """Most requests open at the same moment."""
    connections: int
    """Accepted since the start."""
    open_connections: int
    gpus: list[GpuStats]

    @property
    def items_per_batch(self) -> float:
        """Mean batch size; 0 when nothing ran."""
        return self.items / self.batches if self.batches else 0.0


def stats_of(backend: Backend) -> Stats:
    """The snapshot of one server. Safe from any thread."""
    gpus = backend.gpus
    each = gpus.stats()
    return Stats(
        utilisation=gpus.utilisation(),
        batches=sum(g.batches for g in each),
        items=sum(g.items for g in each),
        busy=sum(g.busy for g in each),
        gaps=sum(g.gaps for g in each),
        gap_total=sum(g.gap_total for g in each),
        gap_longest=max(g.gap_longest for g in each),
        queued=gpus.queued,
        peak_queued=gpus.peak_queued,
        rejected=gpus.rejected,
        streams=gpus.streams,
        peak_streams=gpus.peak_streams,
        requests=backend.requests,
        open_requests=backend.open,
        peak_requests=backend.peak,
        connections=backend.accepted,
        open_connections=len(backend.connections),
        gpus=each,
    )


def mount(backend: Backend, route: Callable[..., None]) -> None:
    """Add these routes."""

    def stats(exchange: Exchange) -> Answer:
        return Answer.json(stats_of(backend))

    def metrics(exchange: Exchange) -> Answer:
        return Answer(
            200,
            [("content-type", "text/plain; version=0.0.4; charset=utf-8")],
            _prometheus(stats_of(backend)).encode(),
        )

    def health(exchange: Exchange) -> Answer:
        return Answer.json({"status": "ok"})

    route("/stats", stats, methods=("GET",))
    route("/metrics", metrics, methods=("GET",))
    route("/health", health, methods=("GET",))


_COUNTERS = {"batches", "items", "busy", "gaps", "gap_total", "rejected", "requests", "connections"}


def _prometheus(stats: Stats) -> str:
    """Exposition format 0.0.4; the two names that vLLM's dashboards read come along."""
    lines = []
    for name, value in msgspec.structs.asdict(stats).items():
        if name == "gpus":
            continue
        counter = name in _COUNTERS
        full = f"mock_gpu_{name}" + ("_total" if counter and not name.endswith("_total") else "")
        lines += [f"# TYPE {full} {'counter' if counter else 'gauge'}", f"{full} {value}"]
    lines += [
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running {stats.open_requests - stats.queued}",
    ]
    lines += ["# TYPE vllm:num_requests_waiting gauge", f"vllm:num_requests_waiting {stats.queued}"]
    return "\n".join(lines) + "\n"
