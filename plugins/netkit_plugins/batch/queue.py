"""Who waits for a batch, and when one is due: decisions on counts and times, under the layer's lock.

Rules of this file:

- Nothing here waits, sends or knows a runtime.
- First come, first served: a batch is taken from the front, and nothing overtakes.
- What is under way is entered in `under_way` before its inputs leave the queue: whoever takes a batch may be
  interrupted (Ctrl-C in the main thread) between any two steps, and `leave` finds what is left of it.
- A batch is due when it is full, when its first input has waited for `max_wait`, or when nothing is under way; but
  not while callers keep coming in that a busy process has held up: see `Group.gave_turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from netkit_plugins.batch.ticket import Ticket

__all__ = ["Batch", "Group", "Limits", "Unit"]


CROWDED: Final = 20
"""How many times `max_wait` a batch waits at most in a process that is busy."""

DRY_TURNS: Final = 3
"""Turns in a row that a busy process may take without anyone coming in, before nobody is expected any more: its
threads then compute something else."""

RETURN: Final = 0.005
"""Seconds in which the callers of a batch may come back with their next calls."""

BUSY_TURN: Final = 0.0002
"""Seconds: in a process that is not busy, a turn given away is back sooner."""


class Limits(msgspec.Struct):
    """What one batch may hold: see `BatchOptions`. One object for all groups of a layer; `wait` may change."""

    items: int
    bytes: int
    tokens: int
    wait: float
    in_flight: int


class Unit:
    """Inputs `start` to `stop` of one caller's call, which travel together."""

    __slots__ = ("bytes", "joined", "start", "stop", "ticket", "tokens")

    def __init__(self, ticket: Ticket, start: int, stop: int, joined: float) -> None:
        self.ticket = ticket
        self.start = start
        self.stop = stop
        self.joined = joined
        self.bytes = sum(ticket.inputs.sizes[start:stop])
        self.tokens = sum(ticket.inputs.tokens[start:stop])

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """Whether it is all that its caller asked for."""
        return self.size == len(self.ticket.inputs.items)

    def cut(self, limits: Limits, items: int) -> list[Unit]:
        """Pieces that fit into a batch each; an input that is too large by itself is a piece of its own."""
        room = limits.bytes - self.ticket.inputs.overhead
        if self.size == 1 or (self.size <= items and self.bytes <= room and self.tokens <= limits.tokens):
            return [self]
        pieces, start = [], self.start
        sizes, tokens = self.ticket.inputs.sizes, self.ticket.inputs.tokens
        used_bytes = used_tokens = 0
        for number in range(self.start, self.stop):
            used_bytes += sizes[number]
            used_tokens += tokens[number]
            if number > start and (number - start >= items or used_bytes > room or used_tokens > limits.tokens):
                pieces.append(Unit(self.ticket, start, number, self.joined))
                start, used_bytes, used_tokens = number, sizes[number], tokens[number]
        pieces.append(Unit(self.ticket, start, self.stop, self.joined))
        return pieces

    def __repr__(self) -> str:
        return f"<Unit {self.start}:{self.stop} of {self.ticket!r}>"


class Batch:
    """Units that go out as one request. `task` is the work that sends it, None until it is spawned."""

    __slots__ = ("given_up", "over", "started", "taker", "task", "units")

    def __init__(self, units: list[Unit], taker: Ticket | None) -> None:
        self.units = units
        self.taker = taker
        """The caller who is to have it sent; None where that is done by work of its own, which nothing interrupts."""
        self.task: Any = None
        self.started = False
        """Its sending has begun; before that it can be dropped without a trace."""
        self.over = False
        """It is answered: its task, which may send another batch by now, is none of its business any more."""
        self.given_up = False
        """Its task was told to stop."""

    @property
    def size(self) -> int:
        return sum(unit.size for unit in self.units)

    def is_left_by(self, ticket: Ticket) -> bool:
        """Whether `ticket` took it and has not had it sent."""
        return self.taker is ticket and self.task is None and not self.started and not self.over

    @property
    def wanted(self) -> bool:
        """Whether any of its callers is still there."""
        return any(not unit.ticket.done for unit in self.units)

    def __repr__(self) -> str:
        return f"<Batch of {self.size} for {len(self.units)} callers>"


class Group:
    """Calls that may be merged with each other."""

    __slots__ = (
        "_arrived",
        "_bytes",
        "_crowd",
        "_dry",
        "_items",
        "_limits",
        "_seen",
        "_tokens",
        "_watched",
        "busy_until",
        "items",
        "keeper",
        "opener",
        "soloist",
        "under_way",
        "units",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.items = limits.items
        """Inputs in one batch: the configured number, or less where the server said so."""
        self.units: deque[Unit] = deque()
        self._items = self._bytes = self._tokens = 0
        self._arrived = self._seen = self._dry = 0
        self._crowd: bool | None = None
        self._watched: float | None = None
        self.under_way: set[Batch | Ticket] = set()
        """Batches, and callers whose call goes by itself: each holds a slot."""
        self.opener: Ticket | None = None
        """The first caller on the idle route, while it lets others of the same moment come in before it goes."""
        self.soloist: int | None = None
        """The thread that made the last call, if that had the route to itself: it need not look around again. None
        for tasks, to which that costs next to nothing."""
        self.keeper: Ticket | None = None
        """The caller who watches the clock for all: the one at the front, where a timer can release anything."""
        self.busy_until = 0.0
        """Callers of a batch that has just ended tend to come back together: until then the route is not idle."""

    @property
    def in_flight(self) -> int:
        return len(self.under_way)

    @property
    def is_idle(self) -> bool:
        return not self.units and not self.under_way

    def join(self, ticket: Ticket, units: Iterable[Unit], now: float) -> bool:
        """Queue a caller's units. True: it is the opener, who looks around once and then calls `open`."""
        opens = self.is_idle and now >= self.busy_until
        if opens:
            self.opener = ticket
        self._arrived += 1
        for unit in units:
            self.units.append(unit)
            self._items += unit.size
            self._bytes += unit.bytes
            self._tokens += unit.tokens
        return opens

    def open(self, ticket: Ticket, now: float) -> bool:
        """The opener has looked around. True: nobody else came, and its call, taken from the queue, is in flight."""
        if self.opener is ticket:
            self.opener = None
            # Where others came, more may be about to.
            self.busy_until = now
        alone = not self.under_way and len(self.units) == 1 and self.units[0].ticket is ticket
        if alone:
            self.under_way.add(ticket)
            self._pop()
        return alone

    def new_keeper(self) -> Ticket | None:
        """Who has to be told to watch the clock from now on, or another time on it; None when nothing has changed."""
        due = self.due
        keeper = None if due is None else self.units[0].ticket
        changed = keeper is not self.keeper or due != self._watched
        self.keeper, self._watched = keeper, due
        return keeper if changed else None

    @property
    def due(self) -> float | None:
        """When the front of the queue has waited long enough; None while nothing waits that a timer could release."""
        if not self.units or self.opener is not None or self.in_flight >= self._limits.in_flight:
            return None
        full_wait = self.units[0].joined + self._limits.wait
        return full_wait if self.under_way else min(full_wait, self.busy_until)

    def take(self, now: float, taker: Ticket | None) -> Batch | None:
        """The next batch, counted as in flight from now on; None when none is due."""
        if not self.units or self.in_flight >= self._limits.in_flight:
            return None
        full = (
            self._items >= self.items
            or self._tokens > self._limits.tokens
            or self._bytes + self.units[0].ticket.inputs.overhead > self._limits.bytes
        )
        if not full:
            if self.opener is not None:
                return None
            front = self.units[0].joined
            if (self.under_way or front < self.busy_until) and not self._waited_enough(now):
                return None
        batch = Batch(self._front(), taker)
        self.under_way.add(batch)
        for _ in batch.units:
            self._pop()
        self._crowd, self._dry = None, 0
        return batch

    def _waited_enough(self, now: float) -> bool:
        """Whether the first input's time is up, and nobody is about to come in.

        In a process that computes more than it waits, the callers of the next batch are runnable but have not had
        their turn, and `max_wait` would say nothing about the load. So the keeper gives others a turn when the time
        is up, and goes on as long as that brings somebody in, up to `CROWDED` times the wait.
        """
        due = self.due
        assert due is not None
        if now < due:
            return False
        return self._crowd is False or now >= self.units[0].joined + CROWDED * self._limits.wait

    def gave_turn(self, seconds: float) -> None:
        """The keeper has given others a turn, and had its own back after so long."""
        self._dry = 0 if self._arrived != self._seen else self._dry + 1
        self._seen = self._arrived
        self._crowd = not self._dry or (seconds >= BUSY_TURN and self._dry < DRY_TURNS)

    def _front(self) -> list[Unit]:
        taken: list[Unit] = []
        items = tokens = 0
        size = self.units[0].ticket.inputs.overhead
        for unit in self.units:
            items, size, tokens = items + unit.size, size + unit.bytes, tokens + unit.tokens
            if taken and (items > self.items or size > self._limits.bytes or tokens > self._limits.tokens):
                break
            taken.append(unit)
        return taken

    def _pop(self) -> None:
        unit = self.units.popleft()
        self._items -= unit.size
        self._bytes -= unit.bytes
        self._tokens -= unit.tokens

    def went(self, ticket: Ticket) -> None:
        """The call that `ticket` made by itself is over, if there is one."""
        self.under_way.discard(ticket)

    def ended(self, batch: Batch, now: float) -> None:
        """A batch is answered, failed or given up."""
        self.under_way.discard(batch)
        if len(batch.units) > 1:
            self.busy_until = now + min(self._limits.wait, RETURN)

    def leave(self, ticket: Ticket) -> list[Batch]:
        """Take what waits for `ticket` out of the queue. Gives the batches that it took and has not had sent."""
        if self.opener is ticket:
            self.opener = None
        left = [each for each in self.under_way if isinstance(each, Batch) and each.is_left_by(ticket)]
        taken = {unit for batch in left for unit in batch.units}
        self.units = deque(unit for unit in self.units if unit.ticket is not ticket and unit not in taken)
        # Counted anew, and told anew who keeps the watch: the caller may have been interrupted at either.
        self._items = sum(unit.size for unit in self.units)
        self._bytes = sum(unit.bytes for unit in self.units)
        self._tokens = sum(unit.tokens for unit in self.units)
        self.keeper = self._watched = None
        return left

    @property
    def waiting(self) -> int:
        """Inputs in the queue."""
        return self._items

    def __repr__(self) -> str:
        return f"<Group waiting={self._items} in_flight={self.in_flight}{' opening' if self.opener else ''}>"
