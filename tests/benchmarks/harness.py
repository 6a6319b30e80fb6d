"""Running contenders in turn, each in a process of its own, and boiling the rounds down.

Rules of this file:

- A B A B, never A A B B: what the machine does meanwhile hits all of them.
- A ratio is made within one round; its median over the rounds is what a goal is held against.
- What cannot run, fails, or does not match what the server saw, is reported; nothing is dropped silently.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.servers import REPOSITORY, Granian, Nginx, Seen, die_with_parent

__all__ = ["PEERS", "Outcome", "Spread", "Verdict", "calibrate", "judge", "run", "spread"]

PEERS = REPOSITORY / ".compat" / "bench"
"""The virtual environment of libraries that have no place in netkit's own."""

_STEERING = (
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some rounds."""

    median: float
    low: float
    high: float


@dataclass
class Outcome:
    """What the rounds of one contender gave."""

    case: Case
    rounds: list[dict[str, Any]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_out: str = ""

    def metric(self, name: str) -> Spread | None:
        values = [result[name] for result in self.rounds if name in result]
        return spread(values) if values else None

    def protocol(self) -> str:
        """What the server saw in the last round: protocols and connections."""
        return f"{self.seen[-1].words()}, {self.seen[-1].connections} conn." if self.seen else ""


@dataclass(frozen=True)
class Verdict:
    """A goal and what was measured; no value when a side of it is missing."""

    goal: Goal
    value: Spread | None

    @property
    def met(self) -> bool | None:
        return None if self.value is None else self.goal.met(self.value.median)


def spread(values: Iterable[float]) -> Spread:
    every = list(values)
    return Spread(statistics.median(every), min(every), max(every))


def calibrate() -> float:
    """CPU milliseconds of a fixed piece of Python: the machine's noise, seen from inside."""
    started = time.process_time()
    total = 0
    for number in range(300_000):
        total += number % 7 * len(str(number))
    assert total
    return (time.process_time() - started) * 1e3


def run(
    workload: str,
    module: ModuleType,
    server: Nginx | Granian,
    *,
    rounds: int,
    quick: bool,
    faces: Callable[[str], bool],
    note: Callable[[str], None],
) -> list[Outcome]:
    """Every case of one workload, `rounds` times, in turn."""
    outcomes = [Outcome(case) for case in module.cases(quick=quick) if faces(case.face)]
    for number in range(rounds):
        for outcome in outcomes:
            if outcome.left_out:
                continue
            case = outcome.case
            note(f"{workload} round {number + 1}/{rounds}: {case.face} x {case.concurrency}")
            server.begin()
            result = _client(workload, case, server)
            if "missing" in result:
                outcome.left_out = result["missing"]
                continue
            seen = server.seen(result.get("sent", 0))
            outcome.seen.append(seen)
            outcome.rounds.append(result)
            if "broke" in result:
                outcome.problems.append(result["broke"])
            if result["errors"]:
                outcome.problems.append(f"{result['errors']} errors, first: {result['error'][:160]}")
            elif seen.requests < result["sent"] or seen.failures:
                outcome.problems.append(
                    f"the server saw {seen.requests} requests of {result['sent']}, {seen.failures} failed"
                )
            elif seen.most_open < result.get("open", 0):
                outcome.problems.append(f"the server had {seen.most_open} streams open of {result['open']}")
    return outcomes


def _client(workload: str, case: Case, server: Nginx | Granian) -> dict[str, Any]:
    python = Path(sys.executable)
    if case.environment == "peers":
        python = PEERS / "bin" / "python"
        if not python.exists():
            return {"missing": "no environment for peers: python -m tests.benchmarks --peers makes it"}
    command = [
        str(python), "-m", "tests.benchmarks.client", "--workload", workload, "--face", case.face,
        "--concurrency", str(case.concurrency), "--seconds", str(case.seconds),
        "--url", server.url(case.target), "--ca", str(server.certificates / "ca.pem"),
        "--plugins", json.dumps(case.plugins),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name.upper() not in _STEERING}
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        return {"missing": "did not end within 180 s"}
    if not done.stdout:
        return {"missing": f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if done.returncode:
        # It had its result and broke down on the way out: both are told.
        result["broke"] = f"exit status {done.returncode}: {done.stderr.strip().partition(chr(10))[0][:160]}"
    return result


def judge(goals: Iterable[Goal], outcomes: Iterable[Outcome]) -> list[Verdict]:
    """Each goal that concerns a case of these outcomes."""
    known = {outcome.case.key: outcome for outcome in outcomes}
    return [Verdict(goal, _value(goal, known)) for goal in goals if (goal.face, goal.concurrency) in known]


def _value(goal: Goal, known: dict[tuple[str, int], Outcome]) -> Spread | None:
    own = known[goal.face, goal.concurrency].rounds
    peer = known.get((goal.peer or goal.face, goal.concurrency))
    values = []
    for mine, theirs in zip(own, peer.rounds if peer else [], strict=False):
        # What failed has not done the work: its CPU says nothing.
        failed = goal.metric != "errors" and (mine.get("errors") or theirs.get("errors"))
        if failed or goal.metric not in mine:
            continue
        if goal.peer is None:
            values.append(mine[goal.metric])
        elif theirs.get(goal.metric):
            values.append(mine[goal.metric] / theirs[goal.metric])
    return spread(values) if values else None
