"""Percentiles by nearest rank: always a value that occurred, never one in between.

R. J. Hyndman and Y. Fan, "Sample Quantiles in Statistical Packages" (1996), definition 1: the smallest value that at
least this share of all values do not exceed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["nearest_rank", "percentile"]


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The value at `share` (from 0.0 to 1.0, 0.99 for P99) of values in rising order; 0.0 of nothing."""
    if not ordered:
        return 0.0
    # 0.07 * 100 is 7.000000000000001 to a float: rounded, else the rank would be one too high.
    return ordered[max(0, math.ceil(round(share * len(ordered), 6)) - 1)]


def percentile(values: Iterable[float], share: float) -> float:
    """The same of values in any order."""
    return nearest_rank(sorted(values), share)
