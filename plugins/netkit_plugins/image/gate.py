"""How much picture work runs at once: a number of workers, and the memory that decoded pictures may take.

Rules of this file:

- First come, first served: a large picture is not overtaken for ever by small ones.
- A place is given back when its work has ended, not when its caller stopped waiting: a thread cannot be cancelled,
  and its memory is in use until it is done.
- Nothing waits under the lock; an event is set outside of it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from netkit import Runtime, fork

__all__ = ["Gate", "forget_gates", "gate_of"]

T = TypeVar("T")


class _Place:
    """One caller's place: waiting until `granted`, then in use until its work has ended."""

    __slots__ = ("_gate", "_generation", "abandoned", "cost", "granted", "released", "running", "wake")

    def __init__(self, gate: Gate, generation: int, cost: int, wake: Callable[[], None]) -> None:
        self._gate = gate
        self._generation = generation
        self.cost = cost
        self.wake = wake
        self.granted = self.running = self.abandoned = self.released = False

    def run(self, function: Callable[..., T], *args: Any) -> T | None:
        """Do the work, in whatever thread, and give the place back. Not begun once the caller has left: None."""
        with self._gate._lock:
            if self.abandoned:
                return None
            self.running = True
        try:
            return function(*args)
        finally:
            self._gate._release(self, self._generation)

    def abandon(self) -> None:
        """The caller leaves: the place is free now, or once the work that has begun ends."""
        with self._gate._lock:
            self.abandoned = True
            if self.running:
                return
        self._gate._release(self, self._generation)


class Gate:
    """At most `workers` pieces of work and `memory` bytes at a time; what needs more than all of it runs alone.
    One gate serves any number of threads and loops."""

    def __init__(self, workers: int, memory: int) -> None:
        self._workers = workers
        self._memory = memory
        self._generation = 0
        self._start()
        fork.register(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Place] = deque()
        self.in_use = 0
        self.memory_in_use = 0

    def after_fork_in_child(self) -> None:
        """The parent's work is not done here."""
        self._generation += 1
        self._start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, runtime: Runtime, cost: int, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)` off the caller's loop, when there is room for `cost` bytes."""
        event = runtime.event()
        with self._lock:
            place = _Place(self, self._generation, cost, event.set)
            self._waiting.append(place)
            woken = self._admit()
        _wake(woken)
        try:
            if not place.granted:
                await event.wait()
            result = await runtime.offload(place.run, function, *args)
        except BaseException:
            place.abandon()
            raise
        return result  # type: ignore[return-value]

    def _fits(self, cost: int) -> bool:
        return self.in_use == 0 or (self.in_use < self._workers and self.memory_in_use + cost <= self._memory)

    def _admit(self) -> list[_Place]:
        """Grant what fits, in order. Called under the lock; the caller wakes what it returns."""
        granted = []
        while self._waiting and self._fits(self._waiting[0].cost):
            place = self._waiting.popleft()
            place.granted = True
            self.in_use += 1
            self.memory_in_use += place.cost
            granted.append(place)
        return granted

    def _release(self, place: _Place, generation: int) -> None:
        with self._lock:
            if place.released or generation != self._generation:
                return
            place.released = True
            if place.granted:
                self.in_use -= 1
                self.memory_in_use -= place.cost
            elif place in self._waiting:
                self._waiting.remove(place)
            woken = self._admit()
        _wake(woken)

    def __repr__(self) -> str:
        return f"<Gate in_use={self.in_use}/{self._workers} memory={self.memory_in_use}/{self._memory}>"


def _wake(places: list[_Place]) -> None:
    for place in places:
        place.wake()


_gates: dict[tuple[int, int], Gate] = {}
_gates_lock = threading.Lock()


def gate_of(workers: int, memory: int) -> Gate:
    """This process's gate for these limits: ten sessions with the same limits do not take ten times as much."""
    with _gates_lock:
        return _gates.setdefault((workers, memory), Gate(workers, memory))


def forget_gates() -> None:
    """Start anew: in a forked child (layers there keep theirs, which are fresh), and between tests."""
    global _gates, _gates_lock
    _gates, _gates_lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=forget_gates)
