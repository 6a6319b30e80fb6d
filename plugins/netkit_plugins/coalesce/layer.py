"""The coalesce layer: one look at the request, then `netkit.flights` does the rest."""

from __future__ import annotations

from functools import partial

import msgspec

from netkit import Request, Response, Send
from netkit.answers import Answer, take
from netkit.events import CallShared
from netkit.flights import Flights
from netkit.identity import Identities
from netkit.plugins import Context
from netkit.pure import Routes, is_shareable
from netkit.stats import Counter
from netkit.urls import origin_of
from netkit_plugins.coalesce.options import CoalesceOptions

__all__ = ["CoalesceLayer", "CoalesceStats"]


class CoalesceStats(msgspec.Struct, frozen=True):
    """`calls` that could be shared, `shared`: those that waited for another's answer instead of sending, `in_flight`
    calls under way now, `handed_over`: calls begun anew for callers whose first one left or ran out of time."""

    calls: int = 0
    shared: int = 0
    in_flight: int = 0
    handed_over: int = 0


class CoalesceLayer:
    """One per session and set of options."""

    def __init__(self, options: CoalesceOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._routes = Routes(options.routes)
        self._identities = Identities(ignore=options.key_ignore_headers)
        self._flights = Flights(context.runtime)
        self._calls = Counter()

    async def __call__(self, request: Request, send: Send) -> Response:
        content = request.body.content
        if content is None or not is_shareable(
            request, self._routes, safe_methods=self._options.safe_methods, sampled=self._options.sampled
        ):
            return await send(request)
        self._calls.add()
        key = self._identities.key(request, content)
        joined = partial(self._tell, request.url) if self._context.emit else None
        response = await self._flights.share(key, request.timeout, partial(self._call, request, send), joined)
        return await send(request) if response is None else response

    async def _call(self, request: Request, send: Send) -> tuple[Response, Answer | None]:
        response = await send(self._flights.apart(request))
        return response, await take(request, response, max_bytes=self._options.max_answer_bytes)

    def _tell(self, url: str) -> None:
        self._context.emit(CallShared(time=self._context.runtime.now(), origin=origin_of(url)))

    def stats(self) -> CoalesceStats:
        flights = self._flights
        return CoalesceStats(
            calls=self._calls.value,
            shared=flights.shared.value,
            in_flight=flights.in_flight,
            handed_over=flights.handed_over.value,
        )

    def __repr__(self) -> str:
        return f"<CoalesceLayer {self.stats()}>"
