"""One call's way through its lane: waits its turn for each attempt, learns from each outcome, gives back in the end.

Rules of this file:

- What an attempt took is given back exactly once: by `failed`, or by `end` on every other way out.
- `end` may run anywhere, also in the garbage collector, and while another thread sends a copy: nothing waits, and
  what is given back is taken off a list first, which is one step in every thread.
- An attempt that goes after the end of its call gives back at once.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from netkit import PoolTimeout, QueueFull, Response, Verdict
from netkit.admission import Admission
from netkit.errors import FailureKind, TransportError
from netkit.events import ConcurrencyChanged, LimitPaused, LimitRejected
from netkit.retry_after import requested_delay
from netkit_plugins.limit.lane import ASK, Lane, Ticket
from netkit_plugins.limit.reported import report_of
from netkit_plugins.limit.shared import SharedRates
from netkit_plugins.limit.usage import UsageReader
from netkit_plugins.limit.width import OVERLOADED, Answered

if TYPE_CHECKING:
    from netkit_plugins.limit.layer import LimitLayer

__all__ = ["LimitedCall"]

_UNUSED = frozenset({Verdict.NOT_SENT, Verdict.REFUSED})


class LimitedCall:
    """An `Admission` (see `netkit.admission`). One object per call."""

    __slots__ = (
        "_ended",
        "_held",
        "_lane",
        "_layer",
        "_number",
        "_outer",
        "_priority",
        "_sent",
        "_tokens",
        "_unanswered",
    )

    def __init__(
        self, layer: LimitLayer, lane: Lane, tokens: float, priority: int, outer: Admission | None = None
    ) -> None:
        self._layer = layer
        self._lane = lane
        self._tokens = tokens
        self._priority = priority
        self._outer = outer
        self._number = layer.next_number()
        self._sent = 0.0
        self._unanswered: list[Ticket] = []
        self._held: list[Ticket] = []
        self._ended = False

    @property
    def held(self) -> int:
        """Attempts that went and are not over."""
        return len(self._held)

    async def admit(self, limit: float | None) -> None:
        """The first attempt: waits `limit` seconds at most. Raises QueueFull, PoolTimeout."""
        ticket = self._ticket()
        if not self._lane.enter(ticket, ticket.joined):
            most = self._layer.max_queue
            if not self._lane.join(ticket, most):
                self._layer.rejected.add()
                self._reject("queue")
                raise QueueFull(
                    f"{most:g} callers wait to call {self._lane.origin} already (limit.max_queue)",
                    kind=FailureKind.POOL,
                )
            await self._wait(ticket, limit)
        self._went(ticket)

    async def again(self) -> None:
        """One more attempt. It keeps the place of its first: whoever came later lets it pass."""
        if self._outer is not None:
            await self._outer.again()
        ticket = self._ticket()
        self._lane.join(ticket, math.inf)
        await self._wait(ticket, None)
        self._went(ticket)

    async def failed(self, response: Response | None, error: TransportError | None) -> None:
        self.outcome(response, error)
        self._give_back()
        if self._outer is not None:
            await self._outer.failed(response, error)

    def outcome(self, response: Response | None, error: BaseException | None) -> None:
        """An attempt's head arrived, or it failed: what there is to learn from it. Nobody else goes before a pause
        is known: the attempt counts as answered last of all."""
        if response is None:
            if isinstance(error, TransportError) and error.verdict in _UNUSED:
                self._lane.adjust(-1.0, -self._tokens)
            self._answered(success=isinstance(error, TransportError))
            return
        if response.status >= 400:
            # Nothing was computed for it.
            self._lane.adjust(0.0, -self._tokens)
        now = self._layer.now()
        self._listen(now, response)
        if self._lane.width.learns:
            self._teach(now, response)
        self._answered(success=response.status not in OVERLOADED)

    def _listen(self, now: float, response: Response) -> None:
        """What the server says of its limits: too many, or how many are left."""
        lane, word = self._lane, self._lane.word
        report = report_of(response.headers, time.time())
        if report is not None:
            word.learn(now, report, lane.unanswered - 1, lane.unanswered_tokens - self._tokens)
        if response.status == 429 and response.extensions.get("permanent") is not True:
            seconds = requested_delay(response.headers, time.time())
            if seconds is None and report is not None:
                seconds = word.wait(now, self._tokens) or None
            self._tell_pause(now, word.pause(now, seconds, sent=self._sent), "429")
        elif response.status not in OVERLOADED:
            word.succeeded()
            if report is not None and 0 in (report.requests, report.tokens):
                seconds = word.wait(now, 0.0)
                if seconds > 0:
                    self._tell_pause(now, word.pause(now, seconds, sent=self._sent), "x-ratelimit")

    def _teach(self, now: float, response: Response) -> None:
        """Let the adaptive number of attempts see this one."""
        lane, layer = self._lane, self._layer
        answer = Answered(
            sent=self._sent,
            seconds=now - self._sent,
            status=response.status,
            queue=_queue_time(response.headers.get("x-queue-time")),
            full=lane.in_use >= lane.width.limit,
        )
        changed = lane.width.answered(now, answer)
        if changed is not None and layer.emit:
            layer.emit(ConcurrencyChanged(time=now, origin=lane.origin, limit=int(lane.width.limit), reason=changed))

    def watch(self, response: Response) -> None:
        """Hold on until the body has ended."""
        if not self._layer.counts_tokens or response.status >= 400:
            response.observe(on_end=self._ended_with)
            return
        usage = UsageReader()

        def end(error: BaseException | None) -> None:
            used = usage.tokens()
            if used is not None:
                self._lane.adjust(0.0, used - self._tokens)
            self.end()

        response.observe(usage.chunk, end)

    def end(self) -> None:
        """The call is over: everything that it still holds is free."""
        self._ended = True
        while self._answered():
            pass
        while self._give_back():
            pass

    def _ended_with(self, error: BaseException | None) -> None:
        self.end()

    def _ticket(self) -> Ticket:
        return Ticket(self._priority, self._number, self._tokens, self._layer.now())

    async def _wait(self, ticket: Ticket, limit: float | None) -> None:
        lane, layer = self._lane, self._layer
        until = math.inf if limit is None else ticket.joined + limit
        try:
            while True:
                event = layer.runtime.event()
                now = layer.now()
                seconds = lane.poll(ticket, now, event.set)
                if seconds == 0:
                    return
                if now >= until:
                    raise self._too_late(limit)
                if seconds == ASK:
                    await self._reserve(ticket)
                    continue
                seconds = min(seconds, until - now)
                await event.wait(None if seconds == math.inf else seconds)
        except BaseException:
            lane.leave(ticket, layer.now())
            raise

    async def _reserve(self, ticket: Ticket) -> None:
        """Take the turn that all processes share, and hear of their pauses."""
        lane, rates = self._lane, self._lane.rates
        assert isinstance(rates, SharedRates)
        due, paused = await rates.reserve(self._layer.runtime, self._tokens)
        if paused:
            lane.word.hear(self._layer.now(), paused)
        lane.reserved(ticket, due)

    def _too_late(self, limit: float | None) -> PoolTimeout:
        self._layer.timeouts.add()
        self._reject("timeout")
        lane = self._lane
        return PoolTimeout(
            f"no turn to call {lane.origin} within {limit:g} s: {lane.in_use} under way, {lane.queued} waiting"
        )

    def _went(self, ticket: Ticket) -> None:
        self._unanswered.append(ticket)
        self._held.append(ticket)
        self._sent = self._layer.now()
        if self._ended:
            self.end()

    def _answered(self, *, success: bool = False) -> bool:
        try:
            ticket = self._unanswered.pop()
        except IndexError:
            return False
        self._lane.answered(ticket, success=success)
        return True

    def _give_back(self) -> bool:
        try:
            self._held.pop()
        except IndexError:
            return False
        self._lane.release()
        return True

    def _tell_pause(self, now: float, seconds: float | None, reason: str) -> None:
        if seconds is None:
            return
        if isinstance(self._lane.rates, SharedRates):
            self._lane.rates.pause(seconds)
        self._layer.pauses.add()
        if self._layer.emit:
            self._layer.emit(LimitPaused(time=now, origin=self._lane.origin, seconds=seconds, reason=reason))

    def _reject(self, reason: str) -> None:
        if self._layer.emit:
            self._layer.emit(LimitRejected(time=self._layer.now(), origin=self._lane.origin, reason=reason))

    def __repr__(self) -> str:
        return f"<LimitedCall {self._lane.origin} held={self.held}>"


def _queue_time(value: str | None) -> float | None:
    """TEI's `x-queue-time` in milliseconds, as seconds."""
    if value is None or not (value.isascii() and value.isdigit()):
        return None
    return int(value[:12]) / 1000
