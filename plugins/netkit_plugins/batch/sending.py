"""Sending a batch: one request for many callers, in smaller ones where the server refuses it, and to each its own.

Rules of this file:

- A refusal (400, 413, 422) of several callers is nobody's yet: halves are sent until it stands alone with its cause,
  whose own request then gets the server's own words. At most 1 + 2·log2(n) requests for one bad input of n.
- What goes wrong with one piece is that piece's callers' alone.
- Tickets change under the layer's lock; nothing is awaited while it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from netkit import Request
from netkit.errors import BatchError
from netkit.forms import Answer
from netkit.messages import Body
from netkit.named_limit import REFUSALS, named_limit
from netkit.runtime import Event
from netkit_plugins.batch.patience import most_patient
from netkit_plugins.batch.queue import Limits, Unit
from netkit_plugins.batch.replies import Reply, own_copy
from netkit_plugins.batch.stats import BatchCounts
from netkit_plugins.batch.ticket import Ticket

__all__ = ["LearnedLimits", "Sender"]

MAX_ENDPOINTS: Final = 1024


class LearnedLimits:
    """The number of inputs that servers have said they take, by URL without query."""

    def __init__(self, configured: int) -> None:
        self.configured = configured
        """What counts where no server said less. It may change."""
        self._named: dict[str, int] = {}

    def of(self, url: str) -> int:
        if not self._named:
            return self.configured
        return min(self.configured, self._named.get(url.partition("?")[0], self.configured))

    def learn(self, url: str, items: int) -> None:
        """`items` is what the server at `url` named; it counts where it is less than what is known."""
        if len(self._named) >= MAX_ENDPOINTS:
            self._named.clear()
        endpoint = url.partition("?")[0]
        self._named[endpoint] = min(items, self._named.get(endpoint, items))

    @property
    def least(self) -> int:
        return min(self.configured, min(self._named.values(), default=self.configured))


class Sender:
    """Sends the batches of one layer. `wake` sets the events of callers whose calls have ended."""

    def __init__(
        self,
        limits: Limits,
        learned: LearnedLimits,
        counts: BatchCounts,
        lock: Callable[[], threading.Lock],
        now: Callable[[], float],
        sent: Callable[[Sequence[Unit]], None],
        wake: Callable[[Sequence[Event]], None],
    ) -> None:
        self._limits = limits
        self._learned = learned
        self._counts = counts
        self._lock = lock
        self._now = now
        self._sent = sent
        self._wake = wake

    async def serve(self, units: Sequence[Unit]) -> None:
        """Answer every unit: with its parts, the server's answer, or an error."""
        pieces = [list(units)]
        while pieces:
            piece = [unit for unit in pieces.pop() if not unit.ticket.done]
            if not piece:
                continue
            try:
                reply = await self._ask(piece)
                smaller = self._smaller(piece, reply) if reply.status in REFUSALS else []
                if smaller:
                    pieces += reversed(smaller)
                else:
                    self._deliver(piece, reply)
            except Exception as error:  # noqa: BLE001 - it is raised by each of the piece's callers
                self.fail(piece, error)

    def fail(self, units: Sequence[Unit], error: Exception) -> None:
        """Every caller of `units` gets an error like this one, of its own."""
        with self._lock():
            for ticket in _tickets(units):
                ticket.settle(own_copy(error))
        self._wake([ticket.event for ticket in _tickets(units) if ticket.done])

    async def _ask(self, units: Sequence[Unit]) -> Reply:
        self._sent(units)
        response = await units[0].ticket.send(self._request(units))
        content = await response.read()
        response.body.end()
        return Reply(response, content)

    def _request(self, units: Sequence[Unit]) -> Request:
        tickets = _tickets(units)
        first = tickets[0]
        timeout = most_patient(
            [ticket.request.timeout for ticket in tickets], [ticket.joined for ticket in tickets], self._now()
        )
        for ticket in tickets:
            ticket.timeout = timeout
        body = first.request.body
        if len(units) > 1 or not units[0].is_whole:
            items = [item for unit in units for item in unit.ticket.inputs.items[unit.start : unit.stop]]
            body = Body.of(first.inputs.body(items))
        # Callers may want the answer in different encodings; it is taken apart here, so it comes in none.
        headers = first.request.headers.set("Accept-Encoding", "identity")
        return first.request.detach().replace(headers=headers, body=body, timeout=timeout)

    def _smaller(self, units: Sequence[Unit], reply: Reply) -> list[list[Unit]]:
        """What to send instead of a refused piece; nothing when the refusal has found its cause."""
        size = sum(unit.size for unit in units)
        inputs = (item for unit in units for item in unit.ticket.inputs.items[unit.start : unit.stop])
        limit = named_limit(reply.content, size, map(memoryview, inputs))
        if limit is None and len(units) == 1:
            return []
        with self._lock():
            self._counts.bisected += 1
            if limit is not None:
                self._learned.learn(units[0].ticket.request.url, limit)
        return _halves(units, size) if limit is None else _packed(units, self._limits, limit)

    def _deliver(self, units: Sequence[Unit], reply: Reply) -> None:
        alone = len(units) == 1 and units[0].is_whole
        verbatim = alone or not reply.is_success
        size = sum(unit.size for unit in units)
        answer: Answer | None = None
        if not verbatim:
            form = units[0].ticket.form
            try:
                answer = form.split(reply.content, size)
                usages = answer.usages([unit.tokens for unit in units])
            except BatchError:
                raise
            except (ValueError, TypeError, OverflowError) as error:
                raise BatchError(f"the answer to a batch of {size} cannot be shared out") from error
        position = 0
        with self._lock():
            for number, unit in enumerate(units):
                ticket = unit.ticket
                ticket.place = ticket.place or (None if alone else (size, position))
                if answer is None:
                    ticket.settle(reply)
                else:
                    parts = answer.parts[position : position + unit.size]
                    ticket.take(unit.start, parts, answer, usages[number], reply)
                position += unit.size
        self._wake([ticket.event for ticket in _tickets(units) if ticket.done])


def _tickets(units: Sequence[Unit]) -> list[Ticket]:
    return list({id(unit.ticket): unit.ticket for unit in units}.values())


def _halves(units: Sequence[Unit], size: int) -> list[list[Unit]]:
    """Two parts of nearly equal size, neither of them empty."""
    left: list[Unit] = []
    taken = 0
    for unit in units[:-1]:
        if left and taken + unit.size > (size + 1) // 2:
            break
        left.append(unit)
        taken += unit.size
    return [left, list(units[len(left) :])]


def _packed(units: Sequence[Unit], limits: Limits, items: int) -> list[list[Unit]]:
    """The same inputs, no more than `items` of them together."""
    packed: list[list[Unit]] = []
    room = 0
    for unit in units:
        for piece in unit.cut(limits, items):
            if piece.size > room:
                packed.append([])
                room = items
            packed[-1].append(piece)
            room -= piece.size
    return packed
