"""Who may use a connection now, and who is next: slots per origin, handed on in the order of asking.

Example::

    queue = SlotQueue(max_connections=2)
    slots = queue.take("https://host/path")       # None: nothing free
    ticket = queue.join("https://host/path", event.set)
    …                                             # wait until event is set, or give up:
    slots = queue.leave(ticket)                   # the slot if it was handed over, else None
    slots.release()

Rules of this file:

- A free slot and a caller waiting for it never exist together: whoever frees one hands it on in the same step.
- A slot is released from anywhere, also by the garbage collector in the middle of a locked section of this very
  thread. So `release` never waits for the lock: it leaves the slot in `_returned`, and whoever holds the lock settles
  it on the way out.
- Callers are woken outside the lock.
- It knows no runtime: a ticket carries what wakes its owner.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from netkit import fork
from netkit.errors import FailureKind, QueueFull
from netkit.urls import origin_of

__all__ = ["SlotQueue", "Slots", "Ticket"]

MAX_KNOWN: Final = 4096
"""URLs and origins remembered; beyond it those without traffic are forgotten."""


class Slots:
    """The slots of one origin."""

    __slots__ = ("generation", "in_use", "origin", "release", "waiting")

    def __init__(self, origin: str, generation: int, queue: SlotQueue) -> None:
        self.origin = origin
        self.generation = generation
        self.in_use = 0
        self.waiting: OrderedDict[Ticket, None] = OrderedDict()
        # Made once: the plain path must not build a callback for each call.
        self.release: Callable[[], None] = partial(queue.give_back, self)

    def __repr__(self) -> str:
        return f"<Slots {self.origin} in_use={self.in_use} waiting={len(self.waiting)}>"


class Ticket:
    """A place in the queue."""

    __slots__ = ("granted", "number", "slots", "wake")

    def __init__(self, slots: Slots, number: int, wake: Callable[[], None]) -> None:
        self.slots = slots
        self.number = number
        self.wake = wake
        self.granted = False


class SlotQueue:
    """The limits of one session. Safe from any thread; a forked child starts with nothing in use."""

    def __init__(self, max_connections: int, max_connections_total: int | None = None, max_queue: int = 1000) -> None:
        self._limit = max_connections
        self._total_limit = max_connections_total
        self._max_queue = max_queue
        self._generation = 0
        self._start()
        fork.register(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._returned: deque[Slots] = deque()
        self._origins: dict[str, Slots] = {}
        self._by_url: dict[str, Slots] = {}
        self._numbers = 0
        self.in_use = 0
        self.queued = 0

    def after_fork_in_child(self) -> None:
        """The parent's exchanges are not this process's: what is released of them here counts for nothing."""
        self._generation += 1
        self._start()

    def take(self, url: str) -> Slots | None:
        """A slot for the origin of `url`, if one is free."""
        with self._lock:
            slots = self._by_url.get(url)
            if slots is None:
                slots = self._find(url)
            free = slots.in_use < self._limit and (self._total_limit is None or self.in_use < self._total_limit)
            if free:
                slots.in_use += 1
                self.in_use += 1
        if self._returned:
            self._settle_returned()
        return slots if free else None

    def join(self, url: str, wake: Callable[[], None]) -> Ticket:
        """A place at the end of the queue; granted at once where a slot became free. Raises QueueFull."""
        with self._lock:
            slots = self._by_url.get(url)
            if slots is None:
                slots = self._find(url)
            full = len(slots.waiting) >= self._max_queue
            if not full:
                self._numbers += 1
                ticket = Ticket(slots, self._numbers, wake)
                slots.waiting[ticket] = None
                self.queued += 1
                # Between `take` and now one may have become free.
                granted = self._grant(slots)
        if self._returned:
            self._settle_returned()
        if full:
            raise QueueFull(
                f"{self._max_queue} callers wait for a connection to {slots.origin} already (pool.max_queue)",
                kind=FailureKind.POOL,
            )
        for other in granted:
            other.wake()
        return ticket

    def leave(self, ticket: Ticket) -> Slots | None:
        """Stop waiting: the slots of which one is now the caller's, or None when none was handed over."""
        with self._lock:
            granted = ticket.granted
            if not granted and ticket.slots.waiting.pop(ticket, ticket) is None:
                self.queued -= 1
        if self._returned:
            self._settle_returned()
        return ticket.slots if granted else None

    def give_back(self, slots: Slots) -> None:
        """Free one slot; the next in line has it before anyone else can ask."""
        self._returned.append(slots)
        self._settle_returned()

    @property
    def limit(self) -> int:
        """Slots of each origin."""
        return self._limit

    def resize(self, max_connections: int) -> None:
        """Another number of slots for each origin. Where it is smaller, what is in use stays in use until it ends."""
        granted: list[Ticket] = []
        with self._lock:
            self._limit = max_connections
            for slots in list(self._origins.values()):
                if slots.waiting:
                    granted += self._grant(slots)
        if self._returned:
            self._settle_returned()
        for ticket in granted:
            ticket.wake()

    def _settle_returned(self) -> None:
        # Whoever loses the race for the lock may leave: the holder looks at `_returned` after letting it go.
        while self._returned and self._lock.acquire(False):
            granted: list[Ticket] | None = None
            try:
                while self._returned:
                    slots = self._returned.popleft()
                    if slots.generation != self._generation:
                        continue
                    slots.in_use -= 1
                    self.in_use -= 1
                    if self.queued:
                        granted = [*(granted or ()), *self._grant(slots)]
            finally:
                self._lock.release()
            for ticket in granted or ():
                ticket.wake()

    def _grant(self, slots: Slots) -> list[Ticket]:
        """Hand free slots to those who wait longest. Called with the lock held."""
        granted: list[Ticket] = []
        while True:
            if self._total_limit is None:
                origin: Slots | None = slots if slots.waiting and slots.in_use < self._limit else None
            else:
                origin = self._longest_waiting() if self.in_use < self._total_limit else None
            if origin is None:
                return granted
            ticket, _ = origin.waiting.popitem(last=False)
            ticket.granted = True
            self.queued -= 1
            origin.in_use += 1
            self.in_use += 1
            granted.append(ticket)

    def _longest_waiting(self) -> Slots | None:
        """The origin with room whose first waiter came first."""
        able = [slots for slots in self._origins.values() if slots.waiting and slots.in_use < self._limit]
        return min(able, key=lambda slots: next(iter(slots.waiting)).number, default=None)

    def _find(self, url: str) -> Slots:
        origin = origin_of(url)
        if len(self._origins) >= MAX_KNOWN:
            self._origins = {name: slots for name, slots in self._origins.items() if slots.in_use or slots.waiting}
            self._by_url = {}
        if len(self._by_url) >= MAX_KNOWN:
            self._by_url = {}
        slots = self._origins.get(origin)
        if slots is None:
            slots = self._origins[origin] = Slots(origin, self._generation, self)
        self._by_url[url] = slots
        return slots

    def __repr__(self) -> str:
        return f"<SlotQueue in_use={self.in_use} queued={self.queued} origins={len(self._origins)}>"
