"""What the server does in a storm, drawn from one seeded generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from netkit.testing import faults

__all__ = ["weather"]


def weather(seed: int) -> list[Any]:
    """Faults that each hit a few requests in a hundred, for ever."""
    rng = random.Random(seed)

    def chance(share: float) -> Callable[[Any], bool]:
        return lambda exchange: rng.random() < share

    def reset(code: int, at: Any) -> Any:
        return faults.ResetStream(code=code, at=at, when=chance(0.01), times=None)

    return [
        *(reset(code, "request") for code in (2, 7, 8, 11)),
        reset(2, "head"),
        faults.GoAway(when=chance(0.01), times=None),
        faults.GoAway(when=chance(0.005), times=None, two_step=True, gap=0.01),
        faults.CutBody(when=chance(0.01), times=None, after_bytes=100, how="reset"),
        faults.ResetBeforeHeaders(when=chance(0.003), times=None),
        faults.SettingsChange(settings={3: 4}, when=chance(0.01), times=None),
        faults.SettingsChange(settings={3: 64}, when=chance(0.02), times=None),
        faults.SettingsChange(settings={4: 1024}, when=chance(0.01), times=None),
        faults.SettingsChange(settings={4: 1 << 20}, when=chance(0.02), times=None),
        faults.Status(503, when=chance(0.01), times=None, headers={"retry-after": "0"}),
        faults.Latency(uniform=(0.0, 0.02), seed=seed, when=chance(0.2)),
    ]
