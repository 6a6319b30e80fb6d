"""What the batch plugin counts: `netkit.stats(session).batch`."""

from __future__ import annotations

import msgspec

__all__ = ["BatchCounts", "BatchStats"]


class BatchStats(msgspec.Struct, frozen=True):
    """`batches`: requests that were sent for calls with inputs, those with one caller included. `items`: inputs in
    them; `mean_size` and `largest` of a batch. `in_flight`: batches now; `waiting`: inputs in queues now. `bisected`:
    batches that the server refused and that were sent again in parts. `max_items`: inputs that a batch may hold, the
    smallest number that a server named, else the configured one."""

    batches: int = 0
    items: int = 0
    mean_size: float = 0.0
    largest: int = 0
    in_flight: int = 0
    waiting: int = 0
    bisected: int = 0
    max_items: int = 0


class BatchCounts:
    """The counters, changed under the layer's lock."""

    __slots__ = ("batches", "bisected", "items", "largest")

    def __init__(self) -> None:
        self.batches = self.items = self.largest = self.bisected = 0

    def sent(self, items: int) -> None:
        """One request with so many inputs."""
        self.batches += 1
        self.items += items
        self.largest = max(self.largest, items)

    def snapshot(self, *, in_flight: int, waiting: int, max_items: int) -> BatchStats:
        return BatchStats(
            batches=self.batches,
            items=self.items,
            mean_size=self.items / self.batches if self.batches else 0.0,
            largest=self.largest,
            in_flight=in_flight,
            waiting=waiting,
            bisected=self.bisected,
            max_items=max_items,
        )
