"""`netkit bench`: the demo's ladder, warmed up, repeated in turn, against the mock GPU or a real URL.

Rules of this file:

- A B A B, never A A B B: what the machine does meanwhile hits every contender.
- Open loop: every contender of a round meets the same arrivals, and a latency counts from when the call was due, so
  that a server or client that falls behind cannot hide it.
- No run begins after the time is up, and every run ends by itself (`most_seconds`). What was not repeated as often as
  wished, or has not ended, says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from netkit.cli.bench.peers import PEERS, installed
from netkit.cli.bench.summary import Result, Row, row
from netkit.cli.demo import flow, pictures, replicas
from netkit.cli.demo.backend import DIMENSIONS, GPUS, SETTING, backend, gpu_flags, server_stats
from netkit.cli.demo.ladder import STEPS, Step, Workload
from netkit.cli.demo.report import FLOW_HEAD, FLOW_TITLE, flow_rows
from netkit.cli.demo.stacks import STACKS, Calls, Run
from netkit.errors import NetkitError

__all__ = [
    "Contender",
    "Plan",
    "Report",
    "Server",
    "contenders",
    "measure",
    "mock_server",
    "most_seconds",
    "report_file",
    "setting",
    "tables",
]

_WARM_UP: Final = 16
_TASKS: Final = 512
_THREADS: Final = 128
"""Callers that wait for their turn in an open loop; beyond them calls begin late, which counts as latency."""

_SHARE: Final = 0.7
"""Of a run's part of the time that is left to calls; the rest is warm-up and connecting."""

_LEAST: Final = 0.2
"""Seconds of a run in which calls are begun, however little time is left."""

_MOCK_TIMEOUT: Final = 4.0
"""Seconds after which a call to the mock has failed: hundreds of times what it takes."""

_PART: Final = 8.0
"""Seconds that each setting of a step with servers of its own may take."""

_START: Final = 2.0
"""Seconds until a mock GPU in a process of its own is there, on a busy machine."""


@dataclass(frozen=True)
class Contender:
    """A stack on one step of the ladder, or a peer (`step` None)."""

    stack: str
    title: str
    run: Run
    step: Step | None = None


@dataclass(frozen=True)
class Server:
    """Where calls go. `stats` asks the mock what it counted; None: it is somebody else's server."""

    url: str
    ca_file: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    model: str = "mock-embed"
    dimensions: int | None = DIMENSIONS
    stats: Callable[[], Mapping[str, Any]] | None = None
    timeout: float = 10.0


@dataclass(frozen=True)
class Plan:
    """`rate` calls per second, None: as fast as `concurrency` callers can. `seconds` for everything."""

    calls: int = 300
    concurrency: int = 32
    rounds: int = 3
    rate: float | None = None
    seconds: float = 46.0
    seed: int = 0

    def limit(self, contenders: int) -> float:
        """Seconds of one run in which calls are begun, when all of the time is still there."""
        return max(_LEAST, _SHARE * self.seconds / (self.rounds * max(1, contenders)))


def most_seconds(plan: Plan, *, timeout: float, whole: bool) -> float:
    """What all of it takes at most, with a server whose calls end within `timeout` seconds. `whole`: with the steps
    that have servers of their own.

    The last run may begin right before the time is up: its warm-up, its calls and the last of these. In an open loop
    that one may have begun `timeout` after it was due.
    """
    last = _LEAST + (2 if plan.rate is None else 3) * timeout
    settings = len(flow.SETTINGS) + len(replicas.SETTINGS) + len(pictures.SETTINGS)
    servers = 1 + 2 * len(replicas.SETTINGS)
    return _START + plan.seconds + last + (settings * _PART + servers * _START if whole else 0.0)


@dataclass
class Report:
    """`rows` in the order of the contenders; `complete` is False where the time was up before the last round, and
    `unreached` are those that had no turn at all."""

    rows: list[Row]
    rounds: int
    complete: bool
    unreached: list[str]


@contextlib.contextmanager
def mock_server() -> Iterator[Server]:
    """The ladder's mock GPU, in a process of its own."""
    with backend(*gpu_flags()) as running:
        yield Server(
            f"{running['url']}/v1/embeddings",
            running["ca_file"],
            stats=lambda: server_stats(running),
            timeout=_MOCK_TIMEOUT,
        )


def contenders(stacks: Sequence[str], steps: Sequence[int], *, peers: bool) -> tuple[list[Contender], list[str]]:
    """Who takes part, and who would but is not installed. Empty `stacks` or `steps`: all.

    Raises NetkitError for a name or a number that there is not.
    """
    numbers = [step.number for step in STEPS]
    for name in stacks:
        if name not in STACKS:
            raise NetkitError(f"bench: there is no stack {name!r}; known are {', '.join(STACKS)}")
    for number in steps:
        if number not in numbers:
            raise NetkitError(f"bench: step {number} is none of {', '.join(map(str, numbers))}")
    found, absent = [], []
    for name, run in STACKS.items():
        if stacks and name not in stacks:
            continue
        if importlib.util.find_spec(name) is None:
            absent.append(name)
            continue
        found += [Contender(name, step.title, run, step) for step in STEPS if not steps or step.number in steps]
    for peer in PEERS if peers else ():
        if installed(peer):
            found.append(Contender("peers", peer.name, peer.run))
        else:
            absent.append(peer.name)
    return found, absent


def measure(plan: Plan, server: Server, taking_part: Sequence[Contender], note: Callable[[str], None]) -> Report:
    """All rounds. `note` hears of each run before it begins. Raises NetkitError where the first calls all fail."""
    began = time.monotonic()
    limit = plan.limit(len(taking_part))
    results: dict[int, list[Result]] = {number: [] for number in range(len(taking_part))}
    complete = True
    for turn in range(plan.rounds):
        for number, contender in enumerate(taking_part):
            left = began + plan.seconds - time.monotonic()
            if left < 0:
                complete = False
                break
            note(f"round {turn + 1}/{plan.rounds}: {contender.stack} · {contender.title}")
            found = _run(plan, server, contender, turn, min(limit, max(_LEAST, left)))
            if not turn and not number and not found.latencies:
                raise NetkitError(f"bench: no call succeeded: {found.error or 'none was answered in time'}")
            results[number].append(found)
    first = {contender.stack: number for number, contender in reversed(list(enumerate(taking_part)))}
    rows = []
    for number, contender in enumerate(taking_part):
        if not results[number]:
            continue
        against = None if contender.step is None else first[contender.stack]
        compared = [] if against is None or against == number else results[against]
        step = None if contender.step is None else contender.step.number
        rows.append(row(contender.stack, step, contender.title, results[number], compared))
    unreached = [f"{each.stack} · {each.title}" for number, each in enumerate(taking_part) if not results[number]]
    return Report(rows, max(map(len, results.values()), default=0), complete, unreached)


def _run(plan: Plan, server: Server, contender: Contender, turn: int, limit: float) -> Result:
    workload = _workload(plan, server, contender, turn, limit)
    begun: dict[str, Any] = {}

    def begins() -> None:
        if server.stats is not None:
            begun.update(server.stats())

    before = {} if server.stats is None else server.stats()
    calls = Calls(workload, lambda: None, begins)
    contender.run(contender.step or Step(0, contender.title, "", None), workload, calls)
    made = Result(
        len(calls.latencies) + calls.errors, calls.seconds, tuple(calls.latencies), calls.errors, calls.error
    )
    if server.stats is None:
        return made
    after = server.stats()
    return Result(
        made.calls, made.seconds, made.latencies, made.errors, made.error,
        # Asking twice for the statistics is two connections, and one request within the measured time.
        requests=after["requests"] - begun["requests"] - 1,
        connections=after["connections"] - before["connections"] - 2,
        utilisation=(after["busy"] - begun["busy"]) / (GPUS * made.seconds) if made.seconds else 0.0,
    )  # fmt: skip


def _workload(plan: Plan, server: Server, contender: Contender, turn: int, limit: float) -> Workload:
    name = f"{contender.stack} {contender.title} {turn}"
    step = contender.step or STEPS[0]
    starts = None if plan.rate is None else _arrivals(plan.rate, min(limit, plan.calls / plan.rate), plan.seed + turn)
    count = plan.calls if starts is None else len(starts)
    callers = plan.concurrency
    if starts is not None:
        callers = min(max(1, count), _THREADS if contender.stack == "requests" else _TASKS)
    return Workload(
        url=server.url,
        ca_file=server.ca_file,
        inputs=step.inputs(name, count),
        concurrency=callers,
        dimensions=server.dimensions,
        model=server.model,
        headers=server.headers,
        warm_up=tuple(f"{name} warm-up {number}" for number in range(min(_WARM_UP, plan.calls))),
        starts=starts,
        limit=limit,
        timeout=server.timeout,
        checked=server.stats is not None,
    )


def _arrivals(rate: float, seconds: float, seed: int) -> tuple[float, ...]:
    """Poisson arrivals: seconds since the beginning; at least one."""
    draw = random.Random(seed)
    moments = [draw.expovariate(rate)]
    while (after := moments[-1] + draw.expovariate(rate)) < seconds:
        moments.append(after)
    return tuple(moments)


Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, head, rows."""


def tables(note: Callable[[str], None]) -> tuple[list[Table], list[str]]:
    """The steps that have servers and measures of their own, once each, and what of them did not end in time."""
    found: list[Table] = []
    late: list[str] = []
    if importlib.util.find_spec("httpx") is None:
        return found, late

    def flows() -> Table:
        with backend("--rtt-ms", str(flow.ROUND_TRIP_MS), "--settings", f"3={flow.STREAMS}") as running:
            made = [
                flow.measure(setting, running["url"], running["ca_file"], lambda: None, _PART)
                for setting in flow.SETTINGS
            ]
        return FLOW_TITLE, FLOW_HEAD, flow_rows(made)

    def dying() -> Table:
        return replicas.TITLE, replicas.HEAD, replicas.rows(replicas.measure(lambda: None, _PART))

    def photographs() -> Table:
        return pictures.TITLE, pictures.HEAD, pictures.rows(pictures.measure(lambda: None, _PART))

    steps = [("step 4, flow control", flows), ("step 5, a replica that dies", dying)]
    if importlib.util.find_spec("PIL") is not None:
        steps.append(("step 8, pictures", photographs))
    for title, work in steps:
        note(title)
        try:
            found.append(work())
        except TimeoutError:
            late.append(title)
    return found, late


def setting(plan: Plan, server: Server, shown: str) -> str:
    """What was measured, in a sentence or two; `shown` is the URL as it may be printed."""
    loop = (
        f"closed loop, {plan.concurrency} callers"
        if plan.rate is None
        else f"open loop, {plan.rate:g} calls/s, Poisson arrivals, latency from when a call was due"
    )
    where = SETTING if server.stats is not None else f"Server: {shown}."
    return f"{where} {loop[0].upper()}{loop[1:]}; median and range of {plan.rounds} rounds in turn."


def report_file(path: Path, text: str) -> None:
    """Write the page. Raises NetkitError where that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NetkitError(f"bench: {path}: cannot be written ({error.strerror or error})") from error
