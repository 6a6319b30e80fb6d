"""Options, percentiles and the budget: plain values."""

from __future__ import annotations

import random
import threading

import pytest
from netkit_plugins.hedge import HedgeOptions
from netkit_plugins.hedge.target import BURST, Budget, Times


@pytest.mark.parametrize(
    "delay", ["p0", "p0.5", "p100", "95", "p", "p95.1234", "fast", -1.0, float("inf"), float("nan")]
)
def test_a_delay_that_means_nothing_is_refused(delay: object) -> None:
    with pytest.raises(ValueError, match="delay"):
        HedgeOptions(delay=delay)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("delay", "percentile"), [("p95", 95.0), ("p1", 1.0), ("p99.9", 99.9), (0.5, None), (0, None)]
)
def test_delays(delay: str | float, percentile: float | None) -> None:
    assert HedgeOptions(delay=delay).percentile == percentile


@pytest.mark.parametrize(
    "options", [{"min_delay": -1}, {"min_samples": 0}, {"max_extra_load": 1.1}, {"max_extra_load": -0.1}], ids=str
)
def test_other_options_that_cannot_work(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        HedgeOptions(**options)  # type: ignore[arg-type]


def test_a_percentile_is_the_nearest_rank() -> None:
    times, values = Times(95.0), [number / 100 for number in range(1, 101)]
    random.Random(7).shuffle(values)
    for value in values:
        times.add(value)
    assert times.percentile(20) == 0.95


def test_old_answers_are_forgotten() -> None:
    times = Times(95.0)
    for _ in range(300):
        times.add(9.0)
    assert times.percentile(1) == 9.0
    for _ in range(256):
        times.add(0.1)
    assert times.percentile(1) == 0.1
    # More than are kept are never asked for.
    assert times.percentile(10_000) == 0.1


def test_the_budget_starts_empty_and_is_capped() -> None:
    budget = Budget(0.05)
    assert [budget.earn() for _ in range(20)] == [False] * 19 + [True]
    assert (budget.take(), budget.take()) == (True, False)
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.take() for _ in range(100)) == BURST


def test_threads_never_overspend() -> None:
    budget, taken = Budget(0.1), []

    def work() -> None:
        for _ in range(500):
            budget.earn()
            if budget.take():
                taken.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 4000 * 0.1 - 2 * BURST <= len(taken) <= 4000 * 0.1
