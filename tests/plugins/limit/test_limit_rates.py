"""The buckets: what is saved up, what is owed, what is given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netkit_plugins.limit.rates import Rates, rates_of


def _rates(*args: float | None) -> Rates:
    rates = rates_of(*args)  # type: ignore[arg-type]
    assert rates is not None
    return rates


def test_no_rate_is_no_bucket() -> None:
    assert rates_of(None, None, None) is None


def test_a_burst_goes_at_once_then_the_rate_rules() -> None:
    rates = _rates(10.0, None, 3)
    assert [round(rates.reserve(100.0, 0), 6) for _ in range(6)] == [100.0, 100.0, 100.0, 100.1, 100.2, 100.3]


def test_without_a_burst_it_is_what_a_second_allows() -> None:
    rates = _rates(2.0, None, None)
    assert [rates.reserve(100.0, 0) for _ in range(4)] == [100.0, 100.0, 100.5, 101.0]
    slow = _rates(0.5, None, None)
    assert [slow.reserve(100.0, 0) for _ in range(2)] == [100.0, 102.0]


def test_quiet_time_is_saved_up_but_no_more_than_the_burst() -> None:
    rates = _rates(10.0, None, 2)
    for _ in range(2):
        rates.reserve(100.0, 0)
    assert [round(rates.reserve(500.0, 0), 6) for _ in range(3)] == [500.0, 500.0, 500.1]


def test_the_scarcer_of_both_rules() -> None:
    rates = _rates(100.0, 60.0, None)
    assert rates.reserve(100.0, 60.0) == 100.0
    assert rates.reserve(100.0, 10.0) == pytest.approx(110.0)


def test_more_than_a_minutes_tokens_go_when_the_bucket_is_full_and_are_owed() -> None:
    rates = _rates(None, 60.0, None)
    assert rates.reserve(100.0, 600.0) == 100.0
    assert rates.reserve(100.0, 1.0) == pytest.approx(641.0)


def test_what_was_not_used_comes_back() -> None:
    rates = _rates(1.0, 60.0, 1)
    assert rates.reserve(100.0, 60.0) == 100.0
    rates.adjust(0.0, -59.0)
    assert rates.reserve(100.0, 59.0) == pytest.approx(101.0)
    rates.adjust(-1.0, -59.0)
    assert rates.reserve(100.0, 0.0) == pytest.approx(101.0)


def test_what_was_used_on_top_is_owed() -> None:
    rates = _rates(None, 60.0, None)
    rates.reserve(100.0, 0.0)
    rates.adjust(0.0, 60.0)
    assert rates.reserve(0.0, 1.0) > 0.0


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 50)), min_size=1, max_size=60),
    st.floats(1, 50),
    st.integers(1, 20),
)
def test_no_window_ever_holds_more_than_the_rate_and_the_burst(
    steps: list[tuple[float, float]], rate: float, burst: int
) -> None:
    rates = _rates(rate, None, burst)
    now, dues = 100.0, []
    for passed, _ in steps:
        now = max(now + passed, dues[-1] if dues else 0.0)
        dues.append(rates.reserve(now, 0.0))
    assert dues == sorted(dues)
    for first in range(len(dues)):
        for last in range(first, len(dues)):
            assert last - first + 1 <= burst + rate * (dues[last] - dues[first]) + 1e-6
