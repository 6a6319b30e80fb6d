"""The options of `[tool.netkit.hedge]`."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final

from netkit.pure import PURE_PATHS

__all__ = ["HedgeOptions"]

_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)")


@dataclasses.dataclass(frozen=True)
class HedgeOptions:
    """When a second copy is sent, and of what. Times in seconds.

    delay: "p95" (any from "p1" to "p99.9"): when a call has taken longer for its head than 95 of 100 recent ones to
        the same route; or a number of seconds, 0 for both copies at once.
    min_delay: a percentile below it counts as this much: what is quick anyway is not worth a copy.
    min_samples: answers to a route that must have been seen before a percentile counts; until then no copy is sent.
    max_extra_load: copies per call that could be hedged, at most, per origin; 0 sends none.
    routes: path patterns (`*`, `?`, `[...]`, without the query) of calls that may run twice whatever their method.
    safe_methods: hedge GET, HEAD and OPTIONS on every route.
    idempotent: hedge PUT and DELETE, too. The slower copy may reach its replica after the caller went on.
    """

    delay: str | float = "p95"
    min_delay: float = 0.01
    min_samples: int = 20
    max_extra_load: float = 0.05
    routes: tuple[str, ...] = PURE_PATHS
    safe_methods: bool = True
    idempotent: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.delay, str):
            if self.percentile is None or self.percentile < 1:
                raise ValueError(f'delay must be seconds or "p1" to "p99.9", got {self.delay!r}')
        elif not (self.delay >= 0 and math.isfinite(self.delay)):
            raise ValueError(f"delay must be ≥ 0, got {self.delay:g}")
        if not (self.min_delay >= 0 and math.isfinite(self.min_delay)):
            raise ValueError(f"min_delay must be ≥ 0, got {self.min_delay:g}")
        if self.min_samples < 1:
            raise ValueError(f"min_samples must be ≥ 1, got {self.min_samples}")
        if not 0 <= self.max_extra_load <= 1:
            raise ValueError(f"max_extra_load must be from 0 to 1, got {self.max_extra_load:g}")

    @property
    def percentile(self) -> float | None:
        """`delay` as a percentile from 1 to 99.9, None where it is seconds."""
        found = _PERCENTILE.fullmatch(self.delay) if isinstance(self.delay, str) else None
        return None if found is None else float(found[1])
