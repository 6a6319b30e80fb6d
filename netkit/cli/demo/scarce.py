"""Step 6 once more, where batching matters most: with one GPU and a larger model, which takes its time for each batch
however small it is.

With the ladder's four fast GPUs the callers of this machine are the limit, and what batching saves there is requests
and GPU time. Here the GPU is the limit: its vectors per second are what a batch multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from netkit.cli.demo.backend import DIMENSIONS, ITEM_MS, backend, gpu_flags, server_stats
from netkit.cli.demo.ladder import STEPS, Outcome, Step, Workload
from netkit.cli.demo.stacks import STACKS, Calls

__all__ = ["CALLS", "HEAD", "PAIR", "TITLE", "measure", "rows"]

CALLS: Final = 128
CONCURRENCY: Final = 64
LAUNCH_MS: Final = 20.0
PAIR: Final = tuple(step for step in STEPS if step.title in ("HTTP/2", "batching"))
TITLE: Final = (
    f"6 batching where the GPU is what is short: one GPU, {LAUNCH_MS:g} ms per batch and {ITEM_MS:g} ms per item "
    f"({CALLS} calls, {CONCURRENCY} at a time)"
)
HEAD: Final = ("stack", "step", "vectors/s", "P50", "P99", "reqs", "GPU", "errors", "change")


def measure(stack: str, advance: Callable[[], None]) -> list[Outcome]:
    """The same calls over HTTP/2, one by one and batched, each on a GPU of its own."""
    outcomes = []
    for step in PAIR:
        with backend(*gpu_flags(1, LAUNCH_MS)) as server:
            workload = Workload(
                url=f"{server['url']}/v1/embeddings",
                ca_file=server["ca_file"],
                inputs=step.inputs(f"{stack} scarce", CALLS),
                concurrency=CONCURRENCY,
                dimensions=DIMENSIONS,
                warm_up=step.inputs(f"{stack} warm-up", 8),
            )
            outcomes.append(_run(stack, step, workload, server, advance))
    return outcomes


def _run(stack: str, step: Step, workload: Workload, server: dict[str, Any], advance: Callable[[], None]) -> Outcome:
    before: dict[str, Any] = {}
    calls = Calls(workload, advance, lambda: before.update(server_stats(server)))
    STACKS[stack](step, workload, calls)
    after = server_stats(server)
    return Outcome(
        step=step.number,
        stack=stack,
        seconds=calls.seconds,
        latencies=tuple(calls.latencies),
        errors=calls.errors,
        # Asking for the statistics opens a connection too.
        connections=after["connections"] - before["connections"] - 1,
        utilisation=(after["busy"] - before["busy"]) / calls.seconds,
        requests=after["requests"] - before["requests"] - 1,
    )


def rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """A row for each stack and step; `change` is against the same stack's calls one by one."""
    titles = {step.number: step.title for step in PAIR}
    single = {outcome.stack: outcome.rate for outcome in outcomes if outcome.step == PAIR[0].number}
    return [
        [
            outcome.stack,
            titles[outcome.step],
            f"{outcome.rate:,.0f}",
            f"{outcome.percentile(0.5) * 1e3:.1f}",
            f"{outcome.percentile(0.99) * 1e3:.1f}",
            f"{outcome.requests:,}",
            f"{outcome.utilisation:.0%}",
            str(outcome.errors),
            "" if outcome.step == PAIR[0].number else f"{outcome.rate / (single[outcome.stack] or 1):.1f}x",
        ]
        for outcome in outcomes
    ]
