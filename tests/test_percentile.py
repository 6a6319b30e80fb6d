"""Nearest rank: the smallest value that at least the share of all values do not exceed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netkit.percentile import nearest_rank, percentile


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.01, 1), (0.07, 7), (0.29, 29), (0.5, 50), (0.57, 57), (0.99, 99), (1.0, 100)]
)
def test_of_a_hundred_the_rank_is_the_percentage(share: float, expected: int) -> None:
    assert nearest_rank(range(1, 101), share) == expected
    assert percentile(reversed(range(1, 101)), share) == expected


def test_of_nothing_and_of_one() -> None:
    assert percentile([], 0.5) == 0.0
    assert [percentile([7.0], share) for share in (0.0, 0.5, 1.0)] == [7.0] * 3
    assert percentile([1.0, 2.0], 0.5) == 1.0
    assert percentile([1.0, 2.0], 0.51) == 2.0


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=300), st.integers(0, 100))
def test_it_is_the_smallest_value_that_the_share_does_not_exceed(values: list[int], hundredths: int) -> None:
    share = Fraction(hundredths, 100)
    found = percentile(values, hundredths / 100)
    enough = [each for each in values if sum(other <= each for other in values) >= share * len(values)]
    assert found == min(enough)
