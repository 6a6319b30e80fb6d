"""What netkit tells those who listen: small frozen events, made only when somebody does.

Example::

    def show(event):
        print(event)

    remove = netkit.listen(session, show)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from netkit import fork

__all__ = [
    "AttemptFailed",
    "BatchSent",
    "CallEnded",
    "CallShared",
    "CallStarted",
    "CircuitClosed",
    "CircuitHalfOpen",
    "CircuitOpened",
    "ConcurrencyChanged",
    "ConnectionClosed",
    "ConnectionDiscarded",
    "ConnectionOpened",
    "Emitter",
    "EndpointEjected",
    "Event",
    "GoAwayReceived",
    "HedgeSent",
    "KnobMoved",
    "LimitPaused",
    "LimitRejected",
    "PingAnswered",
    "RetryDenied",
    "RetryScheduled",
    "WindowStalled",
]

log = logging.getLogger("netkit")
_registering = fork.lock()


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events. `time` is the monotonic time in seconds at which it happened."""

    time: float


class CallStarted(Event, frozen=True, kw_only=True):
    """A request entered the chain."""

    method: str
    origin: str


class BatchSent(Event, frozen=True, kw_only=True):
    """A batch of `items` inputs of `callers` calls goes out; the first of them waited for `waited` seconds."""

    origin: str
    items: int
    callers: int
    waited: float


class CallEnded(Event, frozen=True, kw_only=True):
    """A call's life is over: body read to its end, closed, or failed. `seconds` runs from its start."""

    method: str
    origin: str
    status: int | None
    error: str | None
    attempts: int
    seconds: float


class AttemptFailed(Event, frozen=True, kw_only=True):
    """Attempt number `attempt` failed; `kind` and `verdict` are the values of FailureKind and Verdict, `kind` is
    "status" for an answer that policy would rather have again, and `status` is its status."""

    origin: str
    kind: str
    verdict: str
    attempt: int = 1
    status: int | None = None


class CallShared(Event, frozen=True, kw_only=True):
    """A call waits for the answer to an identical one that is under way, instead of being sent."""

    origin: str


class RetryScheduled(Event, frozen=True, kw_only=True):
    """Attempt `attempt` (2 is the first retry) will be sent after `delay` seconds."""

    origin: str
    attempt: int
    delay: float
    reason: str


class RetryDenied(Event, frozen=True, kw_only=True):
    """A retry was due by policy but is not sent; `reason` is "budget", "body", "retry-after",
    "deadline" or "unsafe"."""

    origin: str
    attempt: int
    reason: str


class CircuitOpened(Event, frozen=True, kw_only=True):
    """A circuit refuses calls for `seconds` from now on; `reason` is "failures" (in a row), "ratio", "probe" (one has
    failed) or "shared" (another process opened it)."""

    circuit: str
    reason: str
    seconds: float


class CircuitHalfOpen(Event, frozen=True, kw_only=True):
    """An open circuit lets a call through to see whether the server is back."""

    circuit: str


class CircuitClosed(Event, frozen=True, kw_only=True):
    """A circuit lets every call through again."""

    circuit: str


class LimitPaused(Event, frozen=True, kw_only=True):
    """Nobody calls `origin` (with this credential and model) for `seconds`; `reason` is "429" or "x-ratelimit"."""

    origin: str
    seconds: float
    reason: str


class LimitRejected(Event, frozen=True, kw_only=True):
    """A call was not let in; `reason` is "queue" (full) or "timeout"."""

    origin: str
    reason: str


class ConcurrencyChanged(Event, frozen=True, kw_only=True):
    """The adaptive number of attempts at once is `limit` now; `reason` is "success", "429", "503" or "queue"."""

    origin: str
    limit: int
    reason: str


class KnobMoved(Event, frozen=True, kw_only=True):
    """`adaptive` moved a setting ("batch.max_items") from `before` to `after`; `reason` is "trial" (measured in turns
    with the old value from now on), "win" (it stays), and where it goes back: "no win", "failures", "tail" (a worse
    P99), "idle" (too few calls to tell), "fork" (a child begins anew) or
    "closed"."""

    knob: str
    before: float
    after: float
    reason: str


class ConnectionDiscarded(Event, frozen=True, kw_only=True):
    """A pooled connection was closed instead of reused: "stale", "idle", "lifetime" or "max_requests"."""

    origin: str
    reason: str


class ConnectionOpened(Event, frozen=True, kw_only=True):
    """A connection is ready; `connection` is its number in this process."""

    connection: str
    http_version: str


class ConnectionClosed(Event, frozen=True, kw_only=True):
    """A connection is gone; `reason` says why ("idle", "goaway", "lifetime", an error)."""

    connection: str
    reason: str


class GoAwayReceived(Event, frozen=True, kw_only=True):
    """The server takes no new requests on a connection; those above `last_stream_id` were not processed. `code` is
    the HTTP/2 error code (RFC 9113 section 7; 0: nothing is wrong), `reason` its name and what the server said."""

    connection: str
    last_stream_id: int
    code: int
    reason: str


class PingAnswered(Event, frozen=True, kw_only=True):
    """A connection that had been silent gave a sign of life, `seconds` after it was asked."""

    connection: str
    seconds: float


class WindowStalled(Event, frozen=True, kw_only=True):
    """An upload waits for the server to grant more flow-control window."""

    connection: str


class EndpointEjected(Event, frozen=True, kw_only=True):
    """A replica gets no calls for `seconds`: "failures" in a row, or "asked" to be left alone (Retry-After)."""

    endpoint: str
    seconds: float
    reason: str


class HedgeSent(Event, frozen=True, kw_only=True):
    """A call took long, and a second copy of it was sent."""

    origin: str


class Emitter:
    """Hands events to listeners. False while nobody listens, so that layers can skip making the event.

    ::

        if emit:
            emit(RetryScheduled(...))
    """

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: tuple[Callable[[Any], None], ...] = ()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                # A listener watches; what it does wrong must not change what the caller gets.
                log.exception("netkit: a listener failed on %s", type(event).__name__)

    def add(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Register `listener`; the returned function removes it (once; later calls do nothing)."""

        # An object of its own for each registration: the same callback may be registered twice.
        def registered(event: Any) -> None:
            listener(event)

        with _registering:
            self._listeners = (*self._listeners, registered)

        def remove() -> None:
            with _registering:
                self._listeners = tuple(known for known in self._listeners if known is not registered)

        return remove
