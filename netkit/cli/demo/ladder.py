"""The ladder: each step adds one thing that the field recommends, and is measured against step 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from netkit.percentile import percentile

__all__ = ["STEPS", "Outcome", "Step", "Workload"]


class Step(msgspec.Struct, frozen=True):
    """One rung. `plugins` is what netkit is given; None means the plain stack with a new connection per call."""

    number: int
    title: str
    lesson: str
    plugins: Mapping[str, Any] | None
    times_each: int = 1
    """How often each input occurs."""

    def inputs(self, prefix: str, calls: int) -> tuple[str, ...]:
        """What `calls` calls of this step ask for, each input as often as the others."""
        different = max(1, calls // self.times_each)
        return tuple(f"{prefix} {self.number} text {number % different}" for number in range(calls))


STEPS: Final = (
    Step(
        1,
        "a connection per call",
        "Every call pays for TCP and TLS before the GPU hears of it.",
        None,
    ),
    Step(
        2,
        "pool",
        "Connections are kept; a fair queue hands them out.",
        {"http2": False, "pool": True},
    ),
    Step(
        3,
        "HTTP/2",
        "Many calls share a few connections; the first one negotiates for all.",
        {"http2": True, "pool": True},
    ),
    Step(
        6,
        "batching",
        "Calls that differ only in their input become one: the GPU is paid for its launch once, not for each call. "
        "Where this machine's callers are the limit, as here, it saves requests and GPU time; what it brings where "
        "the GPU is the limit stands in the table of its own.",
        {"http2": True, "pool": True, "batch": True},
    ),
    Step(
        7,
        "cache, single-flight",
        "Inputs come again, eight times each here: identical calls at once share an answer, later ones are known.",
        {"http2": True, "pool": True, "batch": True, "cache": True, "coalesce": True},
        times_each=8,
    ),
)


class Workload(msgspec.Struct, frozen=True):
    """What every step sends: `inputs` one by one to `url`, `concurrency` at a time, trusting `ca_file` (None: what
    the system trusts). Times in seconds.

    `warm_up` goes first and is not measured. `starts` says when each input is due, from the beginning on (an open
    loop, whose latencies count from there); None: as soon as a caller is free (a closed loop). After `limit` no call
    is begun. `checked`: the server is the mock, whose vectors are known.
    """

    url: str
    ca_file: str | None
    inputs: tuple[str, ...]
    concurrency: int
    dimensions: int | None
    model: str = "mock-embed"
    headers: Mapping[str, str] = {}
    warm_up: tuple[str, ...] = ()
    starts: tuple[float, ...] | None = None
    limit: float = math.inf
    timeout: float = 30.0
    checked: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """What one stack did on one step. Seconds; `latencies` has one entry per call that succeeded."""

    step: int
    stack: str
    seconds: float
    latencies: tuple[float, ...]
    errors: int
    connections: int
    utilisation: float
    requests: int = 0
    """What the server counted; fewer than the calls where they were merged."""

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    @property
    def mean(self) -> float:
        return sum(self.latencies) / len(self.latencies) if self.latencies else 0.0

    def percentile(self, share: float) -> float:
        """The nearest-rank percentile of the latencies; 0.0 when nothing succeeded."""
        return percentile(self.latencies, share)


Advance = Callable[[], None]
"""Called after each call: how a progress bar moves."""
