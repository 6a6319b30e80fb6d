"""Single-flight: one call under way for a key, and everybody who asks for the same meanwhile.

Example::

    flights = Flights(context.runtime)

    async def work():                       # sends, reads; (the leader's response, what others may have of it)
        response = await send(flights.apart(request))
        return response, await take(request, response, max_bytes=1 << 20)

    response = await flights.share(key, request.timeout, work)
    if response is None:                    # it cannot be shared: a stream, a very long body
        response = await send(request)

In loops the call runs in a task of its own, so that whoever began it may leave; when the last caller leaves it is
cancelled. In threads, where nobody is cancelled from outside, whoever began it runs it, and no thread is started.

Rules of this file:

- A flight is gone from the table before anyone is told how it ended: whoever asks then sends anew.
- Flights are shared within one place (`Runtime.place`): one loop, or all threads.
- What ended by one caller's own limits (its timeouts, its cancellation) is told to nobody who would wait longer: of
  those the most patient one sends again, for all of them.
- Every decision is made under the lock, every wait and every cancellation outside of it.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import msgspec

from netkit import fork
from netkit.answers import Answer, copy_of_error
from netkit.errors import FailureKind, NetkitError, PluginError, QueueFull, TransportError, Verdict
from netkit.messages import Request, Response, Timeout
from netkit.runtime import Event, Runtime, Spawned
from netkit.stats import Counter

__all__ = ["Flights"]

Work: TypeAlias = Callable[[], Coroutine[Any, Any, "tuple[Response, Answer | None]"]]

_LIMITS: Final = {
    FailureKind.CONNECT_TIMEOUT: "connect",
    FailureKind.READ_TIMEOUT: "read",
    FailureKind.WRITE_TIMEOUT: "write",
    FailureKind.POOL: "pool",
    FailureKind.DEADLINE: "total",
}
"""Failures that come of the limits of whoever began, and the limit by which another's patience is measured."""

_WORTH: Final = 0.1
"""A caller who has waited for all but this share of its limit is told of the timeout: one more call would only begin
to be cut short."""


class _Ticket:
    """One caller. `ending` is how it ends for this one, None as long as it is open."""

    __slots__ = ("ending", "flight", "since", "timeout", "work")

    def __init__(self, work: Work, timeout: Timeout, since: float) -> None:
        self.work = work
        self.timeout = timeout
        self.since = since
        self.flight: _Flight
        self.ending: _Ending | None = None

    def left(self, kind: FailureKind | None, now: float) -> float:
        """Seconds for which it would wait on after a failure of this kind (None: a cancellation), 0.0 for none."""
        left = math.inf
        for name in {"total", _LIMITS.get(kind, "total") if kind else "total"}:
            limit = getattr(self.timeout, name)
            if limit is not None:
                rest = limit - (now - self.since)
                left = min(left, rest if rest > _WORTH * limit else 0.0)
        return left


class _Ending:
    """`own`: the response of whoever began. `answer`: what others may have. `error`: it failed. Nothing: it is not to
    be shared."""

    __slots__ = ("answer", "error", "own", "shared")

    def __init__(
        self,
        own: Response | None = None,
        answer: Answer | None = None,
        error: BaseException | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.own = own
        self.answer = answer
        self.error = error
        self.shared = shared


class _Flight:
    __slots__ = ("event", "followed", "key", "leader", "spawned", "started", "table", "thread", "tickets")

    def __init__(self, key: bytes, table: dict[bytes, _Flight], leader: _Ticket, tickets: list[_Ticket]) -> None:
        self.key = key
        self.table = table
        self.leader = leader
        self.tickets = tickets
        self.event: Event | None = None
        self.spawned: Spawned | None = None
        self.started = False
        self.followed = len(tickets) > 1
        self.thread = 0
        for ticket in tickets:
            ticket.flight = self
        table[key] = self


class Flights:
    """The calls under way in one session. Safe from any thread and any loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._detached: Final = runtime.name != "threads"
        self._tables: weakref.WeakKeyDictionary[Any, dict[bytes, _Flight]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self.shared = Counter()
        self.handed_over = Counter()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """The parent's calls are not under way here."""
        self._lock = threading.Lock()
        self._tables = weakref.WeakKeyDictionary()

    def apart(self, request: Request) -> Request:
        """What to send for `request`, so that the call may outlive whoever began it: without its caller's clock,
        which ends that caller's wait alone. In threads, where it runs in its caller, the request itself."""
        if not self._detached:
            return request
        apart = request.detach(keep_call=True)
        if apart.timeout.total is None:
            return apart
        return apart.replace(timeout=msgspec.structs.replace(apart.timeout, total=None))

    @property
    def in_flight(self) -> int:
        """Calls under way now."""
        with self._lock:
            return sum(map(len, self._tables.values()))

    async def share(
        self, key: bytes, timeout: Timeout, work: Work, joined: Callable[[], None] | None = None
    ) -> Response | None:
        """The answer to `key`: by `work`, or by another caller's, if one is under way. None: it cannot be shared.

        `timeout` holds this caller's own limits: beyond them it gets a `TransportError` (READ_TIMEOUT), and the
        others go on. `joined` is called once it waits for another's. Raises the failure of `work`, each caller an
        exception object of its own.
        """
        ticket = _Ticket(work, timeout, self._runtime.now())
        try:
            if not self._board(key, ticket):
                return None
            if joined is not None and ticket.flight.leader is not ticket:
                joined()
            while True:
                flight = ticket.flight
                if flight.leader is ticket and not flight.started:
                    if not self._detached:
                        flight.thread = threading.get_ident()
                        return await self._lead(flight)
                    flight.spawned = self._runtime.spawn(self._fly(flight, work), name="shared-call")
                    flight.started = True
                await self._wait(flight, ticket)
                if ticket.ending is not None:
                    return self._taken(ticket)
        except BaseException:
            # Also where it was interrupted between two steps: nobody must wait for a call that nobody makes.
            if not self._leave(ticket):
                self._drop(ticket)
            raise

    def _board(self, key: bytes, ticket: _Ticket) -> bool:
        """Join the flight for `key`, or begin it. False: this very thread is what it waits for."""
        place = self._runtime.place()
        with self._lock:
            table = self._tables.get(place)
            if table is None:
                table = self._tables.setdefault(place, {})
            flight = table.get(key)
            if flight is None:
                flight = _Flight(key, table, ticket, [ticket])
                if self._detached:
                    flight.event = self._runtime.event()
                return True
            if not self._detached and flight.thread == threading.get_ident():
                return False
            flight.event = flight.event or self._runtime.event()
            flight.followed = True
            ticket.flight = flight
            flight.tickets.append(ticket)
        self.shared.add()
        return True

    async def _lead(self, flight: _Flight) -> Response:
        """In threads: the work, in the thread of whoever began."""
        try:
            flight.started = True
            response, answer = await flight.leader.work()
        except BaseException as error:
            self._land(flight, None, None, error)
            raise
        self._land(flight, response, answer, None)
        if flight.followed and answer is not None:
            response.extensions["coalesced"] = True
        return response

    async def _fly(self, flight: _Flight, work: Work) -> None:
        """In loops: the work, in a task of its own."""
        try:
            response, answer = await work()
        except BaseException as error:
            self._land(flight, None, None, error)
            if not isinstance(error, Exception):
                raise
            # Its traceback holds this frame: without the name no cycle keeps what it failed on.
            del flight
            return
        if not self._land(flight, response, answer, None) and answer is None:
            await response.discard()

    async def _wait(self, flight: _Flight, ticket: _Ticket) -> None:
        event = flight.event
        assert event is not None
        if not await event.wait(self._patience(flight, ticket)) and self._leave(ticket):
            raise TransportError(
                "no answer in time to a shared call", kind=FailureKind.READ_TIMEOUT, verdict=Verdict.AMBIGUOUS
            )

    def _drop(self, ticket: _Ticket) -> None:
        """Cancelled between the end and hearing of it: nobody will read what was meant for this caller."""
        own = None if ticket.ending is None else ticket.ending.own
        if own is not None and not own.body.ended:
            self._runtime.spawn(own.discard(), name="unwanted-answer")

    def _patience(self, flight: _Flight, ticket: _Ticket) -> float | None:
        """Seconds for which a caller waits. Silence counts only where it bears less of it than whoever began: there
        the exchange itself watches over it, over retries too."""
        limits = [ticket.timeout.total]
        mine, theirs = ticket.timeout.read, flight.leader.timeout.read
        if flight.leader is not ticket and mine is not None and (theirs is None or mine < theirs):
            limits.append(mine)
        elif flight.leader is ticket:
            # Its own limits are at work inside the exchange.
            return None
        soonest = min((limit for limit in limits if limit is not None), default=None)
        return None if soonest is None else max(0.0, soonest - (self._runtime.now() - ticket.since))

    def _taken(self, ticket: _Ticket) -> Response | None:
        ending = ticket.ending
        assert ending is not None
        error = ending.error
        if error is not None:
            try:
                if ending.shared:
                    assert isinstance(error, NetkitError)
                    raise copy_of_error(error)
                raise error
            finally:
                ticket.ending = None
                del ending, error
        if ending.own is not None:
            if ending.shared:
                ending.own.extensions["coalesced"] = True
            return ending.own
        return None if ending.answer is None else ending.answer.response(coalesced=True)

    def _land(
        self, flight: _Flight, response: Response | None, answer: Answer | None, error: BaseException | None
    ) -> bool:
        """It is over: take it from the table, decide for each caller, then tell them. Whether whoever began it is
        still there."""
        now = self._runtime.now()
        with self._lock:
            if flight.table.get(flight.key) is flight:
                del flight.table[flight.key]
            leader = flight.leader
            present = leader in flight.tickets
            waiting = [ticket for ticket in flight.tickets if ticket is not leader]
            flight.tickets = []
            if present and self._detached:
                shared = flight.followed and answer is not None
                leader.ending = _Ending(response, error=error, shared=shared)
            again = self._who_goes_on(waiting, error, present, now)
            if again:
                self._succeed(flight, again, error, now)
            shared_error = error if isinstance(error, NetkitError) else None
            for ticket in waiting:
                if ticket not in again:
                    ticket.ending = _Ending(None, answer, shared_error, shared=True)
        if flight.event is not None:
            flight.event.set()
        return present

    def _who_goes_on(
        self, waiting: list[_Ticket], error: BaseException | None, present: bool, now: float
    ) -> list[_Ticket]:
        """Those for whom the failure is none of theirs."""
        if error is None:
            return []
        if not isinstance(error, Exception):
            return waiting
        if isinstance(error, PluginError) and not present:
            # Some stacks cannot go on with a call whose caller has left.
            return waiting
        if isinstance(error, TransportError) and error.kind in _LIMITS and not isinstance(error, QueueFull):
            return [ticket for ticket in waiting if ticket.left(error.kind, now) > 0]
        return []

    def _succeed(self, flight: _Flight, tickets: list[_Ticket], error: BaseException | None, now: float) -> None:
        """Under the lock: a new flight for those who go on, begun by the most patient one as soon as it wakes."""
        kind = error.kind if isinstance(error, TransportError) else None
        heir = max(tickets, key=lambda ticket: ticket.left(kind, now))
        successor = _Flight(flight.key, flight.table, heir, list(tickets))
        successor.event = self._runtime.event()
        self.handed_over.add()

    def _leave(self, ticket: _Ticket) -> bool:
        """The caller goes, if it is still there. False when it has ended for it already: after a timeout it then
        takes what there is."""
        with self._lock:
            if ticket.ending is not None:
                return False
            flight: _Flight | None = getattr(ticket, "flight", None)
            if flight is None or ticket not in flight.tickets:
                return True
            flight.tickets.remove(ticket)
            if flight.leader is ticket and not flight.started and flight.tickets:
                self._succeed(flight, flight.tickets, None, self._runtime.now())
                flight.tickets = []
            elif not flight.tickets and flight.table.get(flight.key) is flight:
                del flight.table[flight.key]
            abandoned = not flight.tickets
        if abandoned:
            if flight.spawned is not None:
                flight.spawned.cancel()
            if flight.event is not None:
                # Those who were handed on wake to it.
                flight.event.set()
        return True

    def __repr__(self) -> str:
        return f"<Flights in_flight={self.in_flight} shared={self.shared.value}>"
