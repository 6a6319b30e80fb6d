"""The batching layer: callers wait together, the one in front watches the clock, and a batch answers them all.

Rules of this file:

- What is decided is decided under the lock, in `queue`'s terms; spawning, waking and sending happen outside of it.
- A call that has the route to itself is sent by its own caller, untouched. Everything merged is sent through
  `runtime.spawn`, so that no caller's end is another's; or by one of its callers where nothing can end that caller
  before the others: in a thread that gets no signals, with the same time limits.
- A unit that was taken from the queue is answered, whatever happens: with its parts, an answer, or an error.
- No thread or task exists while nothing is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from netkit import Request, Response, Send, Verdict, fork
from netkit.errors import BatchError, FailureKind, TransportError
from netkit.events import BatchSent
from netkit.identity import Identities, asks_for_stream, is_json
from netkit.knobs import Knob
from netkit.named_limit import REFUSALS, named_limit
from netkit.plugins import Context
from netkit.urls import origin_of
from netkit_plugins.batch.options import BatchOptions
from netkit_plugins.batch.patience import gives_up_at
from netkit_plugins.batch.queue import Batch, Group, Limits, Unit
from netkit_plugins.batch.replies import Reply
from netkit_plugins.batch.routes import FormTable
from netkit_plugins.batch.sending import LearnedLimits, Sender
from netkit_plugins.batch.stats import BatchCounts, BatchStats
from netkit_plugins.batch.ticket import Ticket

__all__ = ["BatchLayer"]

MAX_GROUPS: Final = 1024
"""Kinds of calls remembered per session; beyond it those that are idle are forgotten."""


class BatchLayer:
    """One per session and set of options."""

    def __init__(self, options: BatchOptions, context: Context) -> None:
        self._limits = Limits(
            options.max_items, options.max_bytes, options.max_tokens, options.max_wait, options.max_in_flight
        )
        self._runtime = context.runtime
        self._in_threads: Final = context.runtime.name == "threads"
        self._now = context.runtime.now
        self._emit = context.emit
        self._forms = FormTable(options)
        self._identities = Identities(ignore=options.key_ignore_headers)
        self._groups: dict[Any, Group] = {}
        self._learned = LearnedLimits(options.max_items)
        self._counts = BatchCounts()
        self._lock = threading.Lock()
        self._sender = Sender(
            self._limits,
            self._learned,
            self._counts,
            lambda: self._lock,
            self._now,
            self._count_sent,
            context.runtime.wake,
        )
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """The parent's callers wait in the parent, and another thread of it may have held the lock."""
        self._lock = threading.Lock()
        self._groups = {}

    async def __call__(self, request: Request, send: Send) -> Response:
        ticket = self._ticket(request, send)
        if ticket is None:
            return await send(request)
        group = self._group(ticket)
        try:
            with self._lock:
                opens = self._queue(group, ticket)
            if opens:
                caller = threading.get_ident() if self._in_threads else None
                if caller is None or group.soloist != caller:
                    # Callers who start together are one batch from the first on.
                    await self._runtime.sleep(0)
                if self._open(group, ticket, caller):
                    return await self._alone(group, ticket)
            return await self._together(group, ticket)
        except BaseException:
            try:
                self._leave(group, ticket)
            except BaseException:
                # Interrupted there too: it does what is left to do.
                self._leave(group, ticket)
                raise
            raise

    def _ticket(self, request: Request, send: Send) -> Ticket | None:
        """What to merge of `request`; None where it has to go as it is."""
        form = self._forms.find(request.url)
        if form is None or request.method != "POST":
            return None
        content = request.body.content
        if not content or not request.body.replayable or not is_json(request) or asks_for_stream(request):
            return None
        if "idempotency-key" in request.headers:
            # It names this one call: a server that knows it would answer a batch with what it said to that call.
            return None
        inputs = form.read(content)
        return None if inputs is None else Ticket(request, send, form, inputs, self._now())

    def _group(self, ticket: Ticket) -> Group:
        """Those with whom `ticket` may be merged."""
        request = ticket.request
        inputs = ticket.inputs
        same = self._identities.key(request, inputs.rest, inputs.kind.encode())
        key = (ticket.send, id(self._runtime.place()), same)
        ticket.event = self._runtime.event()
        with self._lock:
            group = self._groups.get(key)
            if group is None:
                if len(self._groups) >= MAX_GROUPS:
                    self._groups = {known: each for known, each in self._groups.items() if not each.is_idle}
                group = self._groups[key] = Group(self._limits)
            return group

    def _queue(self, group: Group, ticket: Ticket) -> bool:
        group.items = self._learned.of(ticket.request.url)
        whole = Unit(ticket, 0, len(ticket.inputs.items), ticket.joined)
        return group.join(ticket, whole.cut(self._limits, group.items), ticket.joined)

    def _open(self, group: Group, ticket: Ticket, caller: int | None) -> bool:
        with self._lock:
            alone = group.open(ticket, self._now())
            group.soloist = caller if alone else None
            return alone

    async def _alone(self, group: Group, ticket: Ticket) -> Response:
        """Send the call as its caller made it."""
        whole = Unit(ticket, 0, len(ticket.inputs.items), ticket.joined)
        self._count_sent([whole])
        response = await ticket.send(ticket.request)
        # The inputs are computed when the head is there, however long the caller takes to read the body.
        self._went(group, ticket)
        if response.status in REFUSALS and whole.size > 1:
            try:
                refusal = Reply(response, await response.read())
            except BatchError:
                return response
            limit = named_limit(refusal.content, whole.size, map(memoryview, ticket.inputs.items))
            if limit is not None:
                await response.discard()
                with self._lock:
                    self._learned.learn(ticket.request.url, limit)
                    ticket.joined = self._now()
                    if self._queue(group, ticket):
                        group.opener = None
                return await self._together(group, ticket)
        return response

    async def _together(self, group: Group, ticket: Ticket) -> Response:
        """Wait until batches have answered all inputs; while in front of the queue, see to it that it moves."""
        while True:
            until, led = self._look(group, ticket)
            if led is not None:
                await self._serve(group, led)
            if ticket.done:
                return ticket.result()
            left = None if until is None else until - self._now()
            if left is not None and left <= 0:
                given = self._now()
                await self._runtime.sleep(0)
                group.gave_turn(self._now() - given)
            else:
                await ticket.event.wait(left)

    def _look(self, group: Group, ticket: Ticket) -> tuple[float | None, Batch | None]:
        """Start what is due. The time at which `ticket` has to look again, None when it will be woken; and the batch
        that its caller sends itself.

        Raises `TransportError` when its own time limit has passed.
        """
        led: Batch | None = None
        with self._lock:
            if ticket.done:
                return None, None
            if ticket.event.is_set():
                ticket.event = self._runtime.event()
            batches, now = self._due(group, ticket), self._now()
            gives_up = gives_up_at(ticket.request.timeout, ticket.joined, ticket.sent, ticket.timeout)
            if gives_up is not None and now >= gives_up and not batches:
                raise _timed_out(ticket)
            woken = group.new_keeper()
            watched = group.due if group.keeper is ticket else None
            if batches and self._runtime.undisturbed():
                led = next((batch for batch in batches if _leads(ticket, batch)), None)
        if led is not None:
            batches.remove(led)
        if woken is not None and woken is not ticket:
            woken.event.set()
        self._start(group, batches)
        limits = [limit for limit in (gives_up, watched) if limit is not None]
        return min(limits, default=None), led

    def _due(self, group: Group, taker: Ticket | None = None, left: Sequence[Batch] = ()) -> list[Batch]:
        """Every batch that may go now, taken from the queue, and those `left`; with the lock held."""
        found = list(left)
        now = self._now()
        while (batch := group.take(now, taker)) is not None:
            found.append(batch)
        if found:
            waiting = {id(unit.ticket) for unit in group.units}
            for batch in found:
                for unit in batch.units:
                    unit.ticket.batches.append(batch)
                    if id(unit.ticket) not in waiting:
                        unit.ticket.sent = now
        return found

    def _start(self, group: Group, batches: Sequence[Batch]) -> None:
        for batch in batches:
            try:
                batch.task = self._runtime.spawn(self._run(group, batch), name="batch")
            except Exception as error:  # noqa: BLE001 - no thread can be started: nobody must wait for it
                self._sender.fail(batch.units, error)
                self._ended(group, batch)
            else:
                with self._lock:
                    self._give_up(group, batch)

    async def _run(self, group: Group, batch: Batch) -> None:
        """Send `batch`, then in the same task whatever has become due meanwhile."""
        following: Batch | None = batch
        while following is not None:
            following = await self._serve(group, following, go_on=True)

    async def _serve(self, group: Group, batch: Batch, *, go_on: bool = False) -> Batch | None:
        following: Batch | None = None
        with self._lock:
            if batch.over or batch.started:
                # Its callers left before it began, and its slot is free again; or it was spawned twice, as whoever
                # did it was interrupted before that was noted.
                return None
            batch.started = True
        served = False
        try:
            await self._sender.serve(batch.units)
            served = True
        finally:
            if not served:
                self._sender.fail(batch.units, TransportError("the batch was cut short", kind=FailureKind.OTHER))
            following = self._ended(group, batch, go_on=go_on and served)
        return following

    def _went(self, group: Group, ticket: Ticket) -> None:
        """The call that `ticket` made by itself is over: start what is due."""
        with self._lock:
            group.went(ticket)
            batches = self._due(group, ticket)
            woken = group.new_keeper()
        if woken is not None:
            woken.event.set()
        self._start(group, batches)

    def _ended(self, group: Group, batch: Batch, *, go_on: bool = False) -> Batch | None:
        """Give a slot back, and start what is due; `go_on`: the first of that is returned instead."""
        with self._lock:
            group.ended(batch, self._now())
            batches = self._due(group)
            woken = group.new_keeper()
            following = None
            batch.over = True
            if batches and go_on and not batch.given_up:
                following = batches.pop(0)
                following.task = batch.task
        if woken is not None:
            woken.event.set()
        self._start(group, batches)
        return following

    def _leave(self, group: Group, ticket: Ticket) -> None:
        """The caller is gone: nothing of it is sent any more, and what was sent for it alone is given up."""
        with self._lock:
            ticket.done = True
            left = group.leave(ticket)
            group.went(ticket)
            for batch in (*ticket.batches, *left):
                self._give_up(group, batch)
            batches = self._due(group, ticket, [batch for batch in left if not batch.over])
            woken = group.new_keeper()
        if woken is not None:
            woken.event.set()
        self._start(group, batches)

    def _give_up(self, group: Group, batch: Batch) -> None:
        """Stop `batch` if nobody waits for it any more; with the lock held, so that its task is still its own."""
        if batch.wanted or batch.over or batch.given_up:
            return
        if not batch.started:
            # A task that is cancelled before its first step would never give the slot back.
            batch.over = True
            group.ended(batch, self._now())
        elif batch.task is not None:
            batch.given_up = True
            batch.task.cancel()

    def _count_sent(self, units: Sequence[Unit]) -> None:
        items = sum(unit.size for unit in units)
        with self._lock:
            self._counts.sent(items)
        if self._emit:
            now = self._now()
            self._emit(
                BatchSent(
                    time=now,
                    origin=origin_of(units[0].ticket.request.url),
                    items=items,
                    callers=len({id(unit.ticket) for unit in units}),
                    waited=now - min(unit.joined for unit in units),
                )
            )

    def knobs(self) -> list[Knob]:
        """A server that names a smaller batch is obeyed whatever is set."""
        return [
            Knob("max_items", get=lambda: self._learned.configured, set=self._resize, lowest=1, highest=256),
            Knob("max_wait", get=lambda: self._limits.wait, set=self._rewait, lowest=0.0, highest=0.05, grain=0.001),
        ]

    def _resize(self, value: float) -> None:
        with self._lock:
            self._learned.configured = int(value)

    def _rewait(self, value: float) -> None:
        with self._lock:
            self._limits.wait = value

    def stats(self) -> BatchStats:
        with self._lock:
            groups = list(self._groups.values())
            return self._counts.snapshot(
                in_flight=sum(group.in_flight for group in groups),
                waiting=sum(group.waiting for group in groups),
                max_items=self._learned.least,
            )

    def __repr__(self) -> str:
        return f"<BatchLayer {self.stats()}>"


def _leads(ticket: Ticket, batch: Batch) -> bool:
    """Whether the caller of `ticket` may send `batch` itself: it is one of its callers, and no limit of its own could
    end it before the others'."""
    own = ticket.request.timeout
    tickets = [unit.ticket for unit in batch.units]
    return (
        own.total is None
        and any(each is ticket for each in tickets)
        and all(each.request.timeout is own or each.request.timeout == own for each in tickets)
    )


def _timed_out(ticket: Ticket) -> TransportError:
    verdict = Verdict.NOT_SENT if not ticket.batches else Verdict.AMBIGUOUS
    return TransportError(
        "no answer within the call's own time limit", kind=FailureKind.READ_TIMEOUT, verdict=verdict
    )
