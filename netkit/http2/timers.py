"""One loop timer for many deadlines: arming and disarming cost a dictionary entry each.

Rules of this file:

- Deadlines are rounded up to a fiftieth of their delay (at least 2 ms), so that few distinct ones exist.
- An item is on the wheel at most once. What expires is asked, and says how long it wants to go on.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from time import monotonic
from typing import Protocol

__all__ = ["Timed", "Wheel"]


class Timed(Protocol):
    """What can be put on a wheel. `timer` belongs to the wheel and starts as None."""

    timer: float | None

    def expired(self, now: float) -> float | None:
        """The deadline has come: act, or return the seconds after which to be asked again."""


class Wheel:
    """The deadlines of one event loop."""

    __slots__ = ("_armed", "_buckets", "_handle", "_heap", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._buckets: dict[float, dict[Timed, None]] = {}
        self._heap: list[float] = []
        self._handle: asyncio.TimerHandle | None = None
        self._armed = math.inf

    def arm(self, item: Timed, delay: float) -> None:
        """Ask `item` after `delay` seconds, at most a fiftieth (or 2 ms) late. Replaces its earlier deadline."""
        if item.timer is not None:
            self.disarm(item)
        if delay == math.inf:
            return
        grain = delay * 0.02 if delay > 0.1 else 0.002
        key = math.ceil((monotonic() + delay) / grain) * grain
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = {}
            heapq.heappush(self._heap, key)
            if key < self._armed:
                self._schedule(key)
        bucket[item] = None
        item.timer = key

    def disarm(self, item: Timed) -> None:
        """Forget `item`'s deadline, if it has one."""
        if item.timer is not None:
            self._buckets[item.timer].pop(item, None)
            item.timer = None

    def _schedule(self, key: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = key
        self._handle = self.loop.call_later(max(0.0, key - monotonic()), self._fire)

    def _fire(self) -> None:
        self._handle, self._armed = None, math.inf
        now = monotonic() + 0.0005
        heap, buckets = self._heap, self._buckets
        while heap and (heap[0] <= now or not buckets[heap[0]]):
            due = list(buckets.pop(heapq.heappop(heap)))
            for item in due:
                item.timer = None
            for item in due:
                # An earlier one may have ended this item, or given it a new deadline.
                again = item.expired(now) if item.timer is None else None
                if again is not None:
                    self.arm(item, max(again, 0.0))
        if heap and heap[0] < self._armed:
            self._schedule(heap[0])

    def clear(self) -> None:
        """Drop every deadline and the loop's timer."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._armed = None, math.inf
        for bucket in self._buckets.values():
            for item in bucket:
                item.timer = None
        self._buckets.clear()
        self._heap.clear()

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def __repr__(self) -> str:
        return f"<Wheel {len(self)} deadlines>"
