"""Whether one row of measurements is larger than another by more than chance: the exact Mann-Whitney test.

H. B. Mann, D. R. Whitney: On a test of whether one of two random variables is stochastically larger than the other
(1947). It asks nothing of how the measurements are distributed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

__all__ = ["chance", "rounds_for"]


def chance(larger: Sequence[float], smaller: Sequence[float]) -> float:
    """The probability that rows which do not differ look at least as much as if `larger` were the larger one. Equal
    measurements speak against it."""
    wins = sum(one > other for one in larger for other in smaller)
    n, m = len(larger), len(smaller)
    as_good = sum(_arrangements(n, m, count) for count in range(wins, n * m + 1))
    return as_good / math.comb(n + m, n)


def rounds_for(significance: float) -> int:
    """Measurements of each kind with which the test can come below `significance` even if one pair of them is out of
    order; at least 4."""
    rounds = 4
    while 2 / math.comb(2 * rounds, rounds) > significance:
        rounds += 1
    return rounds


@cache
def _arrangements(n: int, m: int, wins: int) -> int:
    """In how many orders of n and m measurements the n win so many of the n·m comparisons."""
    if wins < 0 or wins > n * m:
        return 0
    if n == 0 or m == 0:
        return 1
    # The largest of all is one of the n, and wins against all m; or one of the m.
    return _arrangements(n - 1, m, wins - m) + _arrangements(n, m - 1, wins)
