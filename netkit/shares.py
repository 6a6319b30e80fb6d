"""`usage` of a merged call, shared out among its callers, and summed again where one caller's inputs were split.

Rule of this file: the shares of a number add up to that number, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["share", "total"]


def share(usage: Any, weights: Sequence[int]) -> list[Any]:
    """One piece of `usage` for each weight.

    Integers are shared by largest remainder, so that no token is lost or counted twice; floats in proportion; tables
    field by field; what is no number (a text, null, a list) is everybody's. Weights that are all 0 count as equal.

    Example: `share({"total_tokens": 10}, [1, 2])` gives `[{"total_tokens": 3}, {"total_tokens": 7}]`.
    """
    if isinstance(usage, Mapping):
        columns = {name: share(value, weights) for name, value in usage.items()}
        return [{name: column[number] for name, column in columns.items()} for number in range(len(weights))]
    if isinstance(usage, bool) or not isinstance(usage, (int, float)):
        return [usage] * len(weights)
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    if isinstance(usage, float):
        return [usage * weight / whole for weight in weights]
    pieces = [usage * weight // whole for weight in weights]
    remainders = [usage * weight % whole for weight in weights]
    # The largest remainders round up; of equal ones the last, so that the outcome depends on nothing else.
    for number in sorted(range(len(weights)), key=lambda n: (remainders[n], n), reverse=True)[: usage - sum(pieces)]:
        pieces[number] += 1
    return pieces


def total(usages: Sequence[Any]) -> Any:
    """The sum of several calls' `usage`: numbers add up, tables field by field; of anything else the first stands."""
    first = usages[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for usage in usages if isinstance(usage, Mapping) for name in usage)
        return {
            name: total([usage[name] for usage in usages if isinstance(usage, Mapping) and name in usage])
            for name in names
        }
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        return first
    return sum(value for value in usages if isinstance(value, (int, float)) and not isinstance(value, bool))
