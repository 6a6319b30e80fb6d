"""The deadline layer: bounds the way to an answer's head, and leaves the body to its pace."""

from __future__ import annotations

import math
from typing import Final

from netkit import Request, Response, Send
from netkit.errors import DeadlineExceeded, FailureKind, TransportError, Verdict
from netkit.plugins import Context
from netkit_plugins.deadline.budget import Budget, Shrinking
from netkit_plugins.deadline.options import DeadlineOptions
from netkit_plugins.deadline.pace import BodyPace
from netkit_plugins.deadline.progress import EventProgress
from netkit_plugins.deadline.upload import in_time

__all__ = ["DeadlineLayer"]

TIMEOUTS: Final = frozenset(
    {
        FailureKind.CONNECT_TIMEOUT,
        FailureKind.READ_TIMEOUT,
        FailureKind.WRITE_TIMEOUT,
        FailureKind.POOL,
        FailureKind.DEADLINE,
    }
)

SLACK: Final = 0.005
"""Seconds by which a limit that was cut to the budget may fire early."""


class DeadlineLayer:
    """One per session and set of options."""

    spans_hops = True

    def __init__(self, options: DeadlineOptions, context: Context) -> None:
        self._options = options
        self._runtime = context.runtime
        self._now = context.runtime.now
        self._decodes = context.stack == "aiohttp"
        self._key = f"deadline {options!r}"

    async def __call__(self, request: Request, send: Send) -> Response:
        now = self._now()
        hops = request.extensions.get("hops")
        kept = {} if hops is None else hops()
        budget = kept.get(self._key)
        if budget is None:
            budget = kept[self._key] = Budget(self._options, now)
        given = request.timeout
        due, reason = budget.head()
        response = await (send(request) if due == math.inf else self._bounded(request, send, due, reason))
        self._watch(response, budget, given.read)
        return response

    async def _bounded(self, request: Request, send: Send, due: float, reason: str) -> Response:
        now, in_threads = self._now(), self._runtime.name == "threads"
        if now >= due:
            raise _exceeded(request, reason)
        bounded = request.replace(
            timeout=Shrinking.of(request.timeout, due, self._now, bounds_total=in_threads),
            extensions={**request.extensions, "deadline": due},
        )
        if in_threads:
            bounded = bounded.replace(
                body=in_time(request.body, lambda: _exceeded(request, reason) if self._now() >= due else None)
            )
        try:
            async with self._runtime.timeout(due - now + _grace(due - now)):
                return await send(bounded)
        except DeadlineExceeded:
            raise
        except TimeoutError:
            if self._now() < due:
                raise
            raise _exceeded(request, reason) from None
        except TransportError as error:
            if error.kind not in TIMEOUTS or self._now() < due - SLACK:
                raise
            failure = _exceeded(request, reason, error)
        try:
            raise failure
        finally:
            del failure

    def _watch(self, response: Response, budget: Budget, read: float | None) -> None:
        options = self._options
        if response.body.ended:
            return
        events = None
        if options.between_events is not None or options.first_byte is not None:
            headers = response.headers
            readable = self._decodes or headers.get("content-encoding", "identity") == "identity"
            if readable and headers.get("content-type", "").lower().startswith("text/event-stream"):
                events = EventProgress()
        pace = BodyPace(budget, self._now, read=read, between=options.between_events, progress=events)
        response.body.observe(pace.chunk)
        response.body.limit(pace)

    def __repr__(self) -> str:
        return f"<DeadlineLayer {self._options}>"


def _grace(left: float) -> float:
    """Seconds for which an attempt whose own limits have been cut may fail by itself: breakers then learn who was
    silent."""
    return min(0.25, 0.01 + 0.03 * left)


def _exceeded(request: Request, reason: str, error: TransportError | None = None) -> DeadlineExceeded:
    """The failure, with as many attempts as were made."""
    call = request.extensions.get("call")
    attempts: int = (error.attempts if error is not None else 0) or getattr(call, "attempts", 0)
    words = "no first byte in time" if reason == "first_byte" else "the time of this call is spent"
    failure = DeadlineExceeded(words, verdict=Verdict.AMBIGUOUS if attempts else Verdict.NOT_SENT, reason=reason)
    failure.attempts = attempts
    failure.__cause__ = None if error is None else (error.native or error)
    return failure
