"""The hedge layer: what may be hedged, and the way of its copies.

Rules of this file:

- A call that will not be hedged runs in its caller, as if this layer were not there.
- Of a call that may be hedged both copies run in spawned work, so that the slower one can be given up; the caller
  waits, and takes both with it when it leaves.
- Every copy that ends after the race is over is thrown away by the work that sent it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from netkit import Request, Response, Send, fork
from netkit.admission import Admission
from netkit.errors import FailureKind, TransportError
from netkit.events import HedgeSent
from netkit.plugins import Context
from netkit.pure import SAFE_METHODS, Routes
from netkit.runtime import Event
from netkit.stats import Counter
from netkit.urls import origin_of
from netkit_plugins.hedge.options import HedgeOptions
from netkit_plugins.hedge.race import Copy, Race
from netkit_plugins.hedge.target import Budget, Times

__all__ = ["HedgeLayer", "HedgeStats"]

MAX_TARGETS: Final = 1024
IDEMPOTENT: Final = frozenset({"PUT", "DELETE"})


class HedgeStats(msgspec.Struct, frozen=True):
    """`calls` that could be hedged, `sent` second copies, of which `won` were the answer, `denied` copies that were
    due and not in the budget."""

    calls: int = 0
    sent: int = 0
    won: int = 0
    denied: int = 0

    def __add__(self, other: HedgeStats) -> HedgeStats:
        """Of two layers of one session: a route's and its default."""
        return HedgeStats(
            self.calls + other.calls, self.sent + other.sent, self.won + other.won, self.denied + other.denied
        )


class _Target:
    __slots__ = ("budget", "origin", "times")

    def __init__(self, origin: str, times: Times, budget: Budget) -> None:
        self.origin = origin
        self.times = times
        self.budget = budget


class HedgeLayer:
    """One per session and set of options."""

    def __init__(self, options: HedgeOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._runtime = context.runtime
        self._now = context.runtime.now
        self._routes = Routes(options.routes)
        self._methods = (SAFE_METHODS if options.safe_methods else frozenset()) | (
            IDEMPOTENT if options.idempotent else frozenset()
        )
        self._calls, self._sent, self._won, self._denied = Counter(), Counter(), Counter(), Counter()
        self.after_fork_in_child()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Another thread of the parent may have held a lock; and its calls are not this process's load."""
        self._lock = threading.Lock()
        self._targets: dict[tuple[str, str], _Target] = {}
        self._budgets: dict[str, Budget] = {}

    async def __call__(self, request: Request, send: Send) -> Response:
        if not self._may_run_twice(request):
            return await send(request)
        target = self._target(request)
        self._calls.add()
        affordable, delay = target.budget.earn(), self._delay(target)
        if affordable and delay is not None:
            return await self._raced(request, send, target, delay)
        started = self._now()
        response = await send(request)
        spent = self._now() - started
        if response.status < 400:
            target.times.add(spent)
        if delay is not None and spent > delay:
            self._denied.add()
        return response

    def _may_run_twice(self, request: Request) -> bool:
        if request.body.content is None or not self._options.max_extra_load:
            return False
        extensions = request.extensions
        if not (request.method in self._methods or extensions.get("pure") is True or request.url in self._routes):
            return False
        return "upgrade" not in request.headers

    def _target(self, request: Request) -> _Target:
        """Calls to one route are alike; of the others those of one method to one origin."""
        url = request.url
        key = (request.method, url.partition("?")[0] if url in self._routes else origin_of(url))
        target = self._targets.get(key)
        if target is None:
            origin = origin_of(url)
            with self._lock:
                # The oldest is met anew: a bound on memory, at the price of what was learnt.
                if len(self._targets) >= MAX_TARGETS:
                    del self._targets[next(iter(self._targets))]
                if len(self._budgets) >= MAX_TARGETS:
                    del self._budgets[next(iter(self._budgets))]
                budget = self._budgets.setdefault(origin, Budget(self._options.max_extra_load))
                target = self._targets.setdefault(
                    key, _Target(origin, Times(self._options.percentile or 95.0), budget)
                )
        return target

    def _delay(self, target: _Target) -> float | None:
        """Seconds after which a copy is due, None while that is unknown."""
        options = self._options
        if not isinstance(options.delay, str):
            return float(options.delay)
        known = target.times.percentile(options.min_samples)
        return None if known is None else max(known, options.min_delay)

    async def _raced(self, request: Request, send: Send, target: _Target, delay: float) -> Response:
        first = Copy(is_first=True, started=self._now())
        race, event = Race(first), self._runtime.event()
        chosen: list[str] = []
        watched = request.extend(on_endpoint=_both(chosen.append, request.extensions.get("on_endpoint")))
        admission: Admission | None = request.extensions.get("admission")
        try:
            if not self._start(race, first, self._run(race, event, first, watched.detach(keep_call=True), send)):
                return await send(request)
            if not await event.wait(delay):
                self._hedge(race, event, request, send, target, chosen)
                await event.wait()
        except BaseException:
            self._abandon(race)
            raise
        winner = race.winner
        assert winner is not None
        self._learn(target, race, winner)
        try:
            for copy in race.copies:
                if copy is not winner:
                    await self._lose(copy, admission)
        except BaseException:
            self._abandon(race)
            raise
        response = winner.take()
        if not winner.is_first:
            response.extensions["hedged"] = True
        return response

    def _hedge(
        self, race: Race, event: Event, request: Request, send: Send, target: _Target, chosen: list[str]
    ) -> None:
        """Send the second copy, if it can still be of use and is paid for."""
        second = Copy(is_first=False, started=self._now())
        if race.decided:
            return
        if not target.budget.take():
            self._denied.add()
            return
        if not race.join(second):
            return
        if chosen:
            avoid: tuple[str, ...] = request.extensions.get("avoid_endpoints", ())
            request = request.extend(avoid_endpoints=(*avoid, chosen[-1]))
        work = self._second(race, event, second, request.detach(keep_call=True), send, target)
        if not self._start(race, second, work):
            self._settle(race, event, second, None, None)

    def _start(self, race: Race, copy: Copy, work: Coroutine[Any, Any, None]) -> bool:
        """False where no more threads can be started."""
        try:
            copy.spawned = self._runtime.spawn(work, name="hedge", context=contextvars.copy_context())
        except RuntimeError:
            work.close()
            return False
        return True

    async def _second(
        self, race: Race, event: Event, copy: Copy, request: Request, send: Send, target: _Target
    ) -> None:
        admission: Admission | None = request.extensions.get("admission")
        if admission is not None:
            try:
                await admission.again()
            except Exception as error:  # noqa: BLE001 - no turn for the copy: the first one goes on
                self._settle(race, event, copy, None, error)
                return
            if not race.admit(copy):
                await admission.failed(None, None)
                return
        copy.started = self._now()
        self._sent.add()
        if self._context.emit:
            self._context.emit(HedgeSent(time=copy.started, origin=target.origin))
        await self._run(race, event, copy, request, send)

    async def _run(self, race: Race, event: Event, copy: Copy, request: Request, send: Send) -> None:
        response: Response | None = None
        error: Exception | None = TransportError("the call was cut short", kind=FailureKind.OTHER)
        kept = False
        try:
            response = await send(request)
            error = None
        except Exception as failure:  # noqa: BLE001 - it is raised by the caller
            error = failure
        finally:
            kept = self._settle(race, event, copy, response, error)
            del error
        if not kept and response is not None:
            await _thrown_away(response)

    def _settle(
        self, race: Race, event: Event, copy: Copy, response: Response | None, error: Exception | None
    ) -> bool:
        kept = race.settle(copy, response, error, self._now())
        if race.decided:
            event.set()
        return kept

    async def _lose(self, copy: Copy, admission: Admission | None) -> None:
        """Give up the copy that is not the answer: who waits for its place has it now."""
        if copy.ended is None and copy.spawned is not None:
            copy.spawned.cancel()
        if admission is not None and copy.admitted:
            copy.admitted = False
            await admission.failed(copy.response, copy.error if isinstance(copy.error, TransportError) else None)
        response, copy.response, copy.error = copy.response, None, None
        if response is not None:
            await _thrown_away(response)

    def _abandon(self, race: Race) -> None:
        """The caller is gone: nothing is awaited here, it may have been cancelled."""
        for response in race.abandon():
            if not response.body.ended:
                self._runtime.spawn(_thrown_away(response), name="unwanted-answer")
        for copy in race.copies:
            if copy.ended is None and copy.spawned is not None:
                copy.spawned.cancel()

    def _learn(self, target: _Target, race: Race, winner: Copy) -> None:
        now = self._now()
        if not winner.is_first:
            self._won.add()
        for copy in race.copies:
            if copy.ended is None and copy.is_first:
                # It would have taken longer: so much is known, and left out it would make the tail look short.
                target.times.add(now - copy.started)
            elif copy.ended is not None and copy.response is not None and copy.response.status < 400:
                target.times.add(copy.ended - copy.started)

    def stats(self) -> HedgeStats:
        return HedgeStats(
            calls=self._calls.value, sent=self._sent.value, won=self._won.value, denied=self._denied.value
        )

    def __repr__(self) -> str:
        return f"<HedgeLayer {self.stats()}>"


def _both(mine: Callable[[str], None], outer: Callable[[str], None] | None) -> Callable[[str], None]:
    if outer is None:
        return mine

    def told(endpoint: str) -> None:
        mine(endpoint)
        outer(endpoint)

    return told


async def _thrown_away(response: Response) -> None:
    try:
        await response.discard()
    except TransportError:
        # How its body ends does not matter any more.
        pass
