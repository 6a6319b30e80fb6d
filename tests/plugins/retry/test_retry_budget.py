"""The budget: shares, the window, sleepers, threads, forks."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netkit_plugins.retry.budget import RetryBudget, budget_of


def reserve(budget: RetryBudget, now: float, ratio: float = 0.2, per_second: float = 0.0) -> bool:
    return budget.reserve(now, ratio=ratio, per_second=per_second)


def test_a_share_of_first_attempts_and_a_minimum() -> None:
    budget = RetryBudget()
    for _ in range(200):
        budget.count_call(100.0)
    assert sum(reserve(budget, 100.0, per_second=0.3) for _ in range(200)) == 43


def test_a_sleeper_counts_for_as_long_as_it_sleeps_and_ten_seconds_more() -> None:
    budget = RetryBudget()
    assert reserve(budget, 100.0, per_second=0.1)
    assert not reserve(budget, 150.0, per_second=0.1)
    budget.settle(150.0)
    assert not reserve(budget, 159.9, per_second=0.1)
    assert reserve(budget, 160.0, per_second=0.1)


def test_first_attempts_leave_the_window() -> None:
    budget = RetryBudget()
    for _ in range(5):
        budget.count_call(100.9)
    assert not reserve(budget, 110.0)
    for _ in range(5):
        budget.count_call(110.0)
    assert reserve(budget, 110.0)
    assert not reserve(budget, 110.0)


@given(st.lists(st.tuples(st.sampled_from(["call", "retry", "settle"]), st.floats(0, 3)), max_size=80))
def test_never_more_than_the_share(steps: list[tuple[str, float]]) -> None:
    budget, now, calls, retries, asleep = RetryBudget(), 1000.0, [], [], 0
    for step, wait in steps:
        now += wait
        if step == "call":
            calls.append(now)
            budget.count_call(now)
        elif step == "settle" and asleep:
            asleep -= 1
            retries.append(now)
            budget.settle(now)
        elif step == "retry":
            second = int(now)
            recent = sum(1 for at in calls if int(at) > second - 10)
            spent = asleep + sum(1 for at in retries if int(at) > second - 10)
            allowed = reserve(budget, now, ratio=0.5, per_second=0.1)
            assert allowed == (spent + 1 <= 0.5 * recent + 1.0 + 1e-9)
            asleep += allowed


def test_one_per_origin_and_process() -> None:
    assert budget_of("http://a") is budget_of("http://a")
    assert budget_of("http://a") is not budget_of("http://b")


def test_exact_under_threads() -> None:
    budget, allowed, lock = RetryBudget(), [0], threading.Lock()

    def work() -> None:
        mine = 0
        for _ in range(500):
            budget.count_call(100.0)
        for _ in range(500):
            mine += reserve(budget, 100.0, ratio=0.0, per_second=100.0)
        with lock:
            allowed[0] += mine

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allowed[0] == 1000
    assert "calls=8000" in repr(budget)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_anew() -> None:
    budget_of("http://a").count_call(100.0)
    child = os.fork()
    if child == 0:
        os._exit(0 if "calls=0" in repr(budget_of("http://a")) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
