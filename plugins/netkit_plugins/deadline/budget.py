"""The budget of one call, and the limits of its attempts as far as it goes. Pure, but for the clock it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from netkit import Timeout
from netkit_plugins.deadline.options import DeadlineOptions

__all__ = ["Budget", "Shrinking"]

LEAST: Final = 0.001
"""Seconds: a limit of 0 means something else to sockets."""


class Budget:
    """When a call's time is up: `ends` for all of it, `first_ends` for its first byte. Monotonic seconds, infinite
    without a limit."""

    __slots__ = ("ends", "first_ends")

    def __init__(self, options: DeadlineOptions, now: float) -> None:
        self.ends = math.inf if options.total is None else now + options.total
        self.first_ends = math.inf if options.first_byte is None else now + options.first_byte

    def head(self) -> tuple[float, str]:
        """When the head of an answer is due at the latest, and what is exceeded then."""
        if self.first_ends < self.ends:
            return self.first_ends, "first_byte"
        return self.ends, "deadline"


class Shrinking(Timeout, frozen=True):
    """The limits of an attempt, cut to what is left of the budget at the moment when an adapter asks."""

    ends: float = math.inf
    now: Callable[[], float] | None = None
    bounds_total: bool = False

    @classmethod
    def of(cls, given: Timeout, ends: float, now: Callable[[], float], *, bounds_total: bool) -> Shrinking:
        """`bounds_total`: an attempt is stopped by its own total, for want of anybody else who could."""
        return cls(given.connect, given.read, given.write, given.pool, given.total, ends, now, bounds_total)

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name not in _LIMITS or (name == "total" and not self.bounds_total):
            return value
        assert self.now is not None
        left = max(LEAST, self.ends - self.now())
        return left if value is None else min(value, left)


_LIMITS: Final = frozenset({"connect", "read", "write", "pool", "total"})
