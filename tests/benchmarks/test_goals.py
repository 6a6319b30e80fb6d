"""The benchmarks' data: a goal that names a contender which never runs would never be missed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import netkit.percentile
from tests.benchmarks.cases import Case, Goal
from tests.benchmarks.client import MODULES, percentile
from tests.benchmarks.harness import Outcome, judge


@pytest.mark.parametrize("workload", MODULES)
def test_goals_name_cases_that_run(workload: str) -> None:
    module = importlib.import_module(MODULES[workload])
    keys = [case.key for case in module.cases(quick=False)]
    assert len(keys) == len(set(keys))
    for goal in module.GOALS:
        assert (goal.face, goal.concurrency) in keys, goal
        assert goal.peer is None or (goal.peer, goal.concurrency) in keys, goal


def test_a_ratio_is_made_within_its_round() -> None:
    own, peer = Outcome(Case("own", 1, "h2")), Outcome(Case("peer", 1, "h2"))
    own.rounds = [{"cpu_us": 10.0}, {"cpu_us": 100.0}, {"cpu_us": 30.0}]
    peer.rounds = [{"cpu_us": 100.0}, {"cpu_us": 200.0}, {"cpu_us": 100.0}]
    (verdict,) = judge([Goal("own", 1, "cpu_us", "peer", at_most=0.29)], [own, peer])
    assert verdict.value is not None
    assert (verdict.value.median, verdict.value.low, verdict.value.high) == (0.3, 0.1, 0.5)
    assert verdict.met is False


def test_a_goal_without_its_peer_is_not_measured() -> None:
    own = Outcome(Case("own", 1, "h2"), rounds=[{"cpu_us": 10.0}])
    (verdict,) = judge([Goal("own", 1, "cpu_us", "peer", at_most=1.0)], [own])
    assert verdict.value is None
    assert verdict.met is None


def test_a_round_with_errors_makes_no_ratio() -> None:
    own, peer = Outcome(Case("own", 1, "h2")), Outcome(Case("peer", 1, "h2"))
    own.rounds = [{"cpu_us": 1.0, "errors": 9}, {"cpu_us": 40.0, "errors": 0}]
    peer.rounds = [{"cpu_us": 100.0, "errors": 0}, {"cpu_us": 100.0, "errors": 0}]
    ratio, errors = judge(
        [Goal("own", 1, "cpu_us", "peer", at_most=0.5), Goal("own", 1, "errors", at_most=0)], [own, peer]
    )
    assert ratio.value is not None
    assert ratio.value.low == 0.4
    assert errors.value is not None
    assert errors.value.high == 9
    assert errors.met is False


def test_what_peers_run_needs_no_netkit() -> None:
    """Their environment has none: it would leave every one of them out."""
    modules = ["tests.benchmarks.client", *(MODULES[workload] for workload in ("W1", "W2", "W3", "W4"))]
    program = f"import importlib, sys; sys.modules['netkit'] = None; [importlib.import_module(m) for m in {modules}]"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("count", [0, 1, 2, 7, 99, 100, 101])
def test_ranks_are_those_of_netkit(count: int) -> None:
    values = [float(7 * number % 101) for number in range(count)]
    for share in (0.0, 0.07, 0.5, 0.99, 1.0):
        assert percentile(values, share) == netkit.percentile.percentile(values, share)
