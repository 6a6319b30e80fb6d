"""`netkit demo`: runs the ladder for real, and says what it measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netkit.cli.demo import knobs, pictures, replicas, run, scarce
from netkit.cli.demo.ladder import STEPS, Outcome
from netkit.cli.demo.report import page


def test_the_ladder_runs_on_every_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    assert (
        run(
            [
                "--calls",
                "24",
                "--concurrency",
                "4",
                "--no-flow",
                "--no-replicas",
                "--no-scarce",
                "--no-pictures",
                "--no-adaptive",
                "--report",
                str(report),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    for stack in ("requests", "httpx", "aiohttp"):
        rows = [line.split() for line in printed.splitlines() if line.split()[:1] == [stack] and ":" not in line]
        assert [int(row[1]) for row in rows] == [step.number for step in STEPS]
        # Step 1 opens a connection for each call; the pool opens at most one per caller.
        connections = [int(cells[-3 if len(cells) and cells[-1] == "0" else -4]) for cells in rows]
        assert connections[0] == 24
        assert connections[1] <= 4
        assert connections[2] == 1
        # Batches are fewer requests than there are calls; the other steps send each call.
        requests = [int(cells[-4 if cells[-1] == "0" else -5]) for cells in rows]
        assert requests[:3] == [24, 24, 24]
        assert 1 <= requests[-1] < 24
    text = report.read_text(encoding="utf-8")
    assert text.count("<svg") == 5
    assert not re.search(r"(src|href)=", text)


def test_photographs_are_understood_as_well_and_sent_faster() -> None:
    steps: list[int] = []
    plain, small = pictures.measure(lambda: steps.append(1))
    assert len(steps) == 2 * len(pictures.CORNERS)
    for outcome in (plain, small):
        assert (outcome.right, outcome.errors) == (len(pictures.CORNERS), 0)
    assert small.sent * 20 < plain.sent
    text = page([], STEPS, "setting", (), [plain, small])
    assert "224x224 JPEG" in text
    assert [len(row) for row in pictures.rows([plain, small])] == [len(pictures.HEAD)] * 2


def test_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(["--calls", "0"])
    assert stopped.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_an_outcome_without_success_has_zero_figures() -> None:
    empty = Outcome(step=1, stack="x", seconds=1.0, latencies=(), errors=3, connections=3, utilisation=0.0)
    assert (empty.rate, empty.mean, empty.percentile(0.99)) == (0.0, 0.0, 0.0)
    assert "x" in page([empty], STEPS[:1], "setting")


def test_a_replica_that_dies_costs_netkits_callers_nothing() -> None:
    plain, ours = replicas.measure(lambda: None)
    assert plain.failed > 0
    assert (ours.failed, len(ours.latencies)) == (0, replicas.CALLS)
    assert [row[0] for row in replicas.rows([plain, ours])] == [setting.title for setting in replicas.SETTINGS]


def test_settings_are_tried_beside_fixed_ones() -> None:
    ticks: list[int] = []
    outcomes = knobs.measure(lambda: ticks.append(1), seconds=0.9)
    assert len(ticks) == knobs.TICKS
    for outcome, setting in zip(outcomes, knobs.SETTINGS, strict=True):
        # Who wins, seconds tell: the benchmark's business.
        assert min(outcome.fixed, outcome.moved) > 0
        assert (outcome.start, outcome.failed) == (setting.max_items, 0)
        assert 2 <= outcome.end <= 64
    assert all(len(row) == len(knobs.HEAD) for row in knobs.rows(outcomes))
    assert "right already" in page([], STEPS, "setting", found=outcomes)


def test_batches_relieve_a_gpu_that_is_short() -> None:
    single, batched = scarce.measure("httpx", lambda: None)
    assert (single.errors, batched.errors) == (0, 0)
    assert len(single.latencies) == len(batched.latencies) == scarce.CALLS
    assert single.requests == scarce.CALLS
    assert batched.requests < scarce.CALLS / 3
    assert all(len(row) == len(scarce.HEAD) for row in scarce.rows([single, batched]))
    assert "one GPU" in page([], STEPS, "setting", short=[single, batched])
