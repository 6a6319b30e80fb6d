"""The GPUs: each runs one batch at a time; batches wait in one FIFO queue; token streams have slots.

A batch (one embedding request) takes `launch + items * per_item` seconds of one GPU. Times are kept on a virtual
clock: a batch that waited starts exactly when its predecessor ended, however late the timer fired, so that
throughput is that of the model and not of the event loop.

What is reported:
- utilisation: seconds spent in batches / (GPUs * seconds from the first start to the last end).
- starvation gaps: times between two batches of one GPU in which it had nothing to do (only those of at least 1 ms
  count). A client that keeps the GPU fed shows none.
Token streams hold a slot and do not count as busy time: decoding shares the GPU.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["GpuStats", "Gpus", "QueueFull"]

_SHORTEST_GAP = 0.001


class QueueFull(Exception):
    """More work waits than the queue holds. `retry_after` is the time in seconds that the queue needs to empty."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"queue full, retry after {retry_after:.3f} s")
        self.retry_after = retry_after


class GpuStats(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: counts, seconds, and gaps between batches."""

    batches: int
    items: int
    busy: float
    gaps: int
    gap_total: float
    gap_longest: float


class _Job:
    __slots__ = ("cost", "done", "enqueued", "items", "started")

    def __init__(self, items: int, cost: float, now: float, done: asyncio.Future[None]) -> None:
        self.items = items
        self.cost = cost
        self.enqueued = now
        self.started = now
        self.done = done


class _Gpu:
    __slots__ = ("batches", "busy", "gap_longest", "gap_total", "gaps", "items", "last_end", "running")

    def __init__(self) -> None:
        self.reset()
        self.running: _Job | None = None

    def reset(self) -> None:
        self.batches = self.items = self.gaps = 0
        self.busy = self.gap_total = self.gap_longest = 0.0
        self.last_end: float | None = None

    def account(self, items: int, start: float, cost: float) -> None:
        if self.last_end is not None and start - self.last_end >= _SHORTEST_GAP:
            gap = start - self.last_end
            self.gaps += 1
            self.gap_total += gap
            self.gap_longest = max(self.gap_longest, gap)
        self.batches += 1
        self.items += items
        self.busy += cost
        self.last_end = start + cost


class Gpus:
    """All GPUs of one server and the queue before them. Belongs to the server's loop."""

    def __init__(
        self, count: int, *, launch: float, per_item: float, queue_size: int | None, max_streams: int | None
    ) -> None:
        self._gpus = [_Gpu() for _ in range(count)]
        self._launch = launch
        self._per_item = per_item
        self._queue: deque[_Job] = deque()
        self._queue_size = queue_size
        self._slots = None if max_streams is None else max_streams * count
        self._stream_waiters: deque[asyncio.Future[None]] = deque()
        self.streams = self.peak_streams = self.peak_queued = self.rejected = 0
        self._first_start: float | None = None

    @property
    def queued(self) -> int:
        """Batches and streams that wait."""
        return len(self._queue) + len(self._stream_waiters)

    def cost(self, items: int) -> float:
        """Seconds that a batch of so many items takes."""
        return self._launch + items * self._per_item

    def run_free_batch(self, items: int) -> bool:
        """Run a batch that costs no time, at once. False if it does cost time: then await `batch`."""
        if self._launch or self._per_item:
            return False
        now = time.monotonic()
        self._first_start = self._first_start or now
        self._gpus[0].account(items, now, 0.0)
        return True

    async def batch(self, items: int) -> float:
        """Wait for a GPU, then for the batch to end. Returns the seconds spent waiting in the queue.

        A caller that is cancelled while it waits leaves the queue; a batch that runs is run to its end.

        Raises:
            QueueFull: the queue is full.
        """
        if self.run_free_batch(items):
            return 0.0
        loop = asyncio.get_running_loop()
        job = _Job(items, self.cost(items), time.monotonic(), loop.create_future())
        idle = next((gpu for gpu in self._gpus if gpu.running is None), None)
        if idle is not None:
            self._start(loop, idle, job, job.enqueued)
        else:
            self._admit()
            self._queue.append(job)
            self.peak_queued = max(self.peak_queued, self.queued)
        try:
            await job.done
        except asyncio.CancelledError:
            if job in self._queue:
                self._queue.remove(job)
            raise
        return job.started - job.enqueued

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[None]:
        """Hold one stream slot. First come, first served.

        Raises:
            QueueFull: too many wait already.
        """
        if self._slots is not None and (self.streams >= self._slots or self._stream_waiters):
            self._admit()
            await self._wait_for_slot()
        else:
            self.streams += 1
        self.peak_streams = max(self.peak_streams, self.streams)
        try:
            yield
        finally:
            self._release_slot()

    def stats(self) -> list[GpuStats]:
        return [
            GpuStats(
                batches=gpu.batches,
                items=gpu.items,
                busy=gpu.busy,
                gaps=gpu.gaps,
                gap_total=gpu.gap_total,
                gap_longest=gpu.gap_longest,
            )
            for gpu in self._gpus
        ]

    def utilisation(self) -> float:
        """Between 0 and 1; 0 when nothing ran."""
        ends = [gpu.last_end for gpu in self._gpus if gpu.last_end is not None]
        if self._first_start is None or not ends:
            return 0.0
        wall = max(ends) - self._first_start
        return min(1.0, sum(gpu.busy for gpu in self._gpus) / (wall * len(self._gpus))) if wall > 0 else 0.0

    def reset(self) -> None:
        """Forget what was counted."""
        for gpu in self._gpus:
            gpu.reset()
        self._first_start = None
        self.peak_queued = self.rejected = 0
        self.peak_streams = self.streams

    def _admit(self) -> None:
        if self._queue_size is not None and self.queued >= self._queue_size:
            self.rejected += 1
            waiting = sum(job.cost for job in self._queue) or self.cost(1)
            raise QueueFull(waiting / len(self._gpus))

    def _start(self, loop: asyncio.AbstractEventLoop, gpu: _Gpu, job: _Job, at: float) -> None:
        gpu.running = job
        job.started = at
        self._first_start = at if self._first_start is None else self._first_start
        gpu.account(job.items, at, job.cost)
        delay = at + job.cost - time.monotonic()
        loop.call_later(max(0.0, delay), self._finish, loop, gpu, job)

    def _finish(self, loop: asyncio.AbstractEventLoop, gpu: _Gpu, job: _Job) -> None:
        gpu.running = None
        if not job.done.done():
            job.done.set_result(None)
        while self._queue:
            following = self._queue.popleft()
            if not following.done.done():
                self._start(loop, gpu, following, max(job.started + job.cost, following.enqueued))
                return

    async def _wait_for_slot(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream_waiters.append(waiter)
        self.peak_queued = max(self.peak_queued, self.queued)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release_slot()  # the slot was handed over at the moment of the cancellation
            elif waiter in self._stream_waiters:
                self._stream_waiters.remove(waiter)
            raise

    def _release_slot(self) -> None:
        self.streams -= 1
        while self._stream_waiters:
            waiter = self._stream_waiters.popleft()
            if not waiter.done():
                self.streams += 1
                waiter.set_result(None)
                return
