"""The options of `[tool.netkit.adaptive]`."""

from __future__ import annotations

import dataclasses
import math

__all__ = ["KNOBS", "AdaptiveOptions"]

KNOBS = (
    "batch.max_items",
    "batch.max_wait",
    "pool.max_connections",
    "limit.concurrency",
    "retry.budget_ratio",
)


@dataclasses.dataclass(frozen=True)
class AdaptiveOptions:
    """What is moved, how far, and on what evidence.

    knobs: "plugin.option" of each setting that may be moved; those of plugins that are off, or that have nothing to
        move ("limit.concurrency" without a number), are left out.
    bounds: knob → (lowest, highest); without it the knob's own, see docs/adaptive.md.
    window: seconds that are measured at a time; of them, those without any call under way do not count.
    min_calls: answers that a window needs; it goes on for up to ten times `window` to get them, else it says nothing.
    significance: the chance that a trial of two equal settings is taken for a win, from 0.0001 to 0.1. The smaller,
        the more windows a trial takes.
    """

    knobs: tuple[str, ...] = KNOBS
    bounds: tuple[tuple[str, tuple[float, float]], ...] = ()
    window: float = 1.0
    min_calls: int = 30
    significance: float = 0.01

    def __post_init__(self) -> None:
        if not self.knobs:
            raise ValueError("knobs must name at least one setting")
        for name in self.knobs:
            plugin, dot, option = name.partition(".")
            if not (plugin and dot and option):
                raise ValueError(f'knobs: {name!r} must be "plugin.option"')
        for name, (lowest, highest) in self.bounds:
            if name not in self.knobs:
                raise ValueError(f"bounds: {name} is not among knobs")
            if not (0 <= lowest <= highest and math.isfinite(highest)):
                raise ValueError(f"bounds: {name} must be from 0 to a larger number, got {lowest:g} to {highest:g}")
        if not (self.window > 0 and math.isfinite(self.window)):
            raise ValueError(f"window must be > 0, got {self.window:g}")
        if self.min_calls < 1:
            raise ValueError(f"min_calls must be ≥ 1, got {self.min_calls}")
        if not 0.0001 <= self.significance <= 0.1:
            raise ValueError(f"significance must be from 0.0001 to 0.1, got {self.significance:g}")
