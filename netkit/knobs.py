"""Settings that may be moved while a session works: what a layer offers, and what a controller gets to see.

Example: a layer with a limit that can change::

    def knobs(self):
        return [Knob("concurrency", get=lambda: self._limit, set=self._resize, lowest=1, highest=self._limit)]

`context.knobs()` gives all of them in this session by their full names ("limit.concurrency").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

__all__ = ["Knob"]


@dataclasses.dataclass(frozen=True)
class Knob:
    """One number that a layer lets others move.

    `name` is that of the option. `get()` tells the present value, `set(value)` makes another one count from the next
    decision on: it must be quick, safe from any thread, and never wait for a caller. `lowest` and `highest` are
    the bounds where nobody configured others. `grain` is the smallest change that means anything; every value that
    is set is a multiple of it. `patience`: seconds for which callers wait where the value is too low, before they
    get an error; None where nobody is turned away.
    """

    name: str
    get: Callable[[], float]
    set: Callable[[float], None]
    lowest: float
    highest: float
    grain: float = 1.0
    patience: float | None = None

    def __post_init__(self) -> None:
        if not (self.lowest <= self.highest and self.grain > 0):
            raise ValueError(f"knob {self.name}: bounds {self.lowest:g} to {self.highest:g}, grain {self.grain:g}")
