"""One queue for one key: who goes now, who is next, and how long the first in line still has to wait.

Example::

    ticket = Ticket(priority, number, tokens, now)
    if not lane.enter(ticket, now):
        lane.join(ticket, most=1000)
        while (seconds := lane.poll(ticket, now, event.set)) != 0:
            …                                 # wait for the event, `seconds` at most; `ASK`: see `reserved`
    lane.answered(ticket)                     # the head is there
    lane.release()                            # the body has ended

Rules of this file:

- Only the first in line is let go, and only by itself: it asks again when its time has come or when it was woken.
  Whoever changes what it waits for, or who is first, wakes the first.
- A newcomer never overtakes: while somebody waits, it joins.
- The first holds a reservation of the rates. It belongs to the place, not to the caller: the next one takes it over.
- What can happen anywhere, also in the garbage collector in the middle of a locked section of this very thread, never
  waits for the lock: it leaves word in `_later`, and whoever holds the lock does it on the way out.
- Callers are woken outside the lock. It knows no runtime.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from netkit_plugins.limit.ramp import Ramp
from netkit_plugins.limit.rates import Rates
from netkit_plugins.limit.shared import SharedRates
from netkit_plugins.limit.width import Width
from netkit_plugins.limit.word import Word

__all__ = ["ASK", "Lane", "Ticket"]

ASK: Final = -1.0
"""The first has to reserve its turn elsewhere, and bring it to `reserved`."""

SOON = 1e-6
"""Seconds that are not worth a wait."""
RECENT = 5.0
"""Seconds after a pause in which those who come first still come one by one."""


class Ticket:
    """One attempt and its place in line: the smaller (priority, number), the earlier."""

    __slots__ = ("joined", "number", "priority", "ramp", "tokens", "wake")

    def __init__(self, priority: int, number: int, tokens: float, joined: float) -> None:
        self.priority = priority
        self.number = number
        self.tokens = tokens
        self.joined = joined
        self.wake: Callable[[], None] | None = None
        self.ramp: Ramp | None = None
        """The way back on which it went, None for an ordinary day."""

    def __lt__(self, other: Ticket) -> bool:
        return (self.priority, self.number) < (other.priority, other.number)


class Lane:
    """Safe from any thread. Times are monotonic seconds."""

    def __init__(self, origin: str, word: Word, rates: Rates | SharedRates | None, width: Width) -> None:
        self.origin = origin
        self.word = word
        self.width = width
        self.rates = rates
        self._lock = threading.Lock()
        self._later: deque[Callable[[], None]] = deque()
        self._line: list[Ticket] = []
        self._due: float | None = None
        self._due_tokens = 0.0
        self._ramp: Ramp | None = None
        self._seen_pause = 0.0
        self.in_use = 0
        self.unanswered = 0
        self.unanswered_tokens = 0.0
        self.waited = 0.0
        """Seconds that callers spent in line, in all."""

    @property
    def queued(self) -> int:
        return len(self._line)

    @property
    def is_idle(self) -> bool:
        return not self._line and self.in_use == 0

    def enter(self, ticket: Ticket, now: float) -> bool:
        """Go at once if nobody waits and nothing stands against it."""
        with self._lock:
            admitted = not self._line and 0 <= self._wait(now, ticket.tokens) <= SOON
            if admitted:
                self._go(ticket, now)
        self._settle()
        return admitted

    def join(self, ticket: Ticket, most: float) -> bool:
        """A place in line; False where `most` wait already."""
        with self._lock:
            admitted = len(self._line) < most
            if admitted:
                bisect.insort(self._line, ticket)
            else:
                self._drop_reservation()
        self._settle()
        return admitted

    def poll(self, ticket: Ticket, now: float, wake: Callable[[], None]) -> float:
        """0.0: go. `ASK`: reserve first. Else the seconds to wait before asking again, infinity for until `wake` is
        called."""
        woken = None
        with self._lock:
            ticket.wake = wake
            if not self._line or self._line[0] is not ticket:
                seconds = math.inf
            else:
                seconds = self._wait(now, ticket.tokens)
                if 0 <= seconds <= SOON:
                    seconds = 0.0
                    del self._line[0]
                    self.waited += now - ticket.joined
                    self._go(ticket, now)
                    woken = self._first()
        if woken is not None:
            woken()
        self._settle()
        return seconds

    def reserved(self, ticket: Ticket, due: float) -> None:
        """`ticket` has reserved its turn elsewhere; it goes back if somebody else is first by now."""
        with self._lock:
            kept = bool(self._line) and self._line[0] is ticket and self._due is None
            if kept:
                self._due, self._due_tokens = due, ticket.tokens
        if not kept:
            self.adjust(-1.0, -ticket.tokens)
        self._settle()

    def leave(self, ticket: Ticket, now: float) -> None:
        """Wait no more. Does nothing for a ticket that has gone."""
        self._do(lambda: self._remove(ticket, now))

    def answered(self, ticket: Ticket, *, success: bool = False) -> None:
        """An attempt is not unanswered any more."""
        self._do(lambda: self._count_answer(ticket, success))

    def release(self) -> None:
        """An attempt that went is over: its place is free."""
        self._do(self._count_release)

    def resize(self, most: float) -> None:
        """Another number of attempts at once; where it is smaller, those under way go on."""
        self._do(lambda: setattr(self.width, "limit", most))

    def adjust(self, requests: float, tokens: float) -> None:
        """An attempt cost more than was reserved, or less."""
        if self.rates is not None:
            self.rates.adjust(requests, tokens)

    def _wait(self, now: float, tokens: float) -> float:
        """Seconds until the first may go."""
        if self.in_use >= self.width.limit:
            return math.inf
        word, ramp = self.word, self._ramp
        if word.paused_until != self._seen_pause:
            self._seen_pause = word.paused_until
            if now < word.paused_until + RECENT:
                ramp = self._ramp = Ramp(max(self.in_use, 10))
        seconds = word.wait(now, tokens)
        if seconds > 0:
            return seconds
        if ramp is not None:
            seconds = ramp.wait(now)
            if seconds > 0:
                return seconds
        rates = self.rates
        if rates is None:
            return 0.0
        if self._due is None:
            if isinstance(rates, SharedRates):
                return ASK
            self._due = rates.reserve(now, tokens)
        elif tokens != self._due_tokens:
            rates.adjust(0.0, tokens - self._due_tokens)
        self._due_tokens = tokens
        return max(0.0, self._due - now)

    def _go(self, ticket: Ticket, now: float) -> None:
        self._due = None
        self.word.spend(now, ticket.tokens)
        self.in_use += 1
        self.unanswered += 1
        self.unanswered_tokens += ticket.tokens
        ticket.ramp = self._ramp
        if self._ramp is not None:
            self._ramp.release(now)
            if self._ramp.is_over and not self._line:
                self._ramp = None

    def _do(self, change: Callable[[], None]) -> None:
        self._later.append(change)
        self._settle()

    def _settle(self) -> None:
        # Whoever loses the race for the lock may leave: the holder looks at `_later` after letting it go.
        while self._later and self._lock.acquire(False):
            try:
                while self._later:
                    self._later.popleft()()
                woken = self._first()
            finally:
                self._lock.release()
            if woken is not None:
                woken()

    def _first(self) -> Callable[[], None] | None:
        return self._line[0].wake if self._line else None

    def _remove(self, ticket: Ticket, now: float) -> None:
        place = bisect.bisect_left(self._line, ticket)
        if place < len(self._line) and self._line[place] is ticket:
            del self._line[place]
            self.waited += now - ticket.joined
        self._drop_reservation()

    def _drop_reservation(self) -> None:
        """Where nobody is left to take the place, what was reserved for it goes back."""
        if not self._line and self._due is not None:
            self._due = None
            self.adjust(-1.0, -self._due_tokens)

    def _count_answer(self, ticket: Ticket, success: bool) -> None:
        self.unanswered -= 1
        self.unanswered_tokens = max(0.0, self.unanswered_tokens - ticket.tokens) if self.unanswered else 0.0
        if ticket.ramp is not None:
            ticket.ramp.answer(success)

    def _count_release(self) -> None:
        self.in_use -= 1

    def __repr__(self) -> str:
        return f"<Lane {self.origin} in_use={self.in_use} queued={self.queued} {self.width!r}>"
