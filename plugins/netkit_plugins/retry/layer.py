"""The retry layer: the plain path is one `try` and one comparison; only what went wrong goes further.

Rule of this file: once an answer was handed to the caller, nothing is sent again.
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Final

import msgspec

from netkit import Request, Response, Send, fork
from netkit.errors import TransportError
from netkit.events import RetryScheduled
from netkit.knobs import Knob
from netkit.plugins import Context
from netkit.stats import Counter
from netkit.urls import origin_of
from netkit_plugins.retry.budget import budget_of
from netkit_plugins.retry.call import Outcome, RetriedCall, Target
from netkit_plugins.retry.options import RetryOptions
from netkit_plugins.retry.policy import IDEMPOTENT, RetryPolicy

__all__ = ["RetryLayer", "RetryStats"]

log = logging.getLogger("netkit.retry")
MAX_TARGETS: Final = 1024
SDK_RETRY_HEADER: Final = "x-stainless-retry-count"
"""Sent by the SDKs that Stainless generates (OpenAI's, Anthropic's and others): 0 on their first attempt."""


class RetryStats(msgspec.Struct, frozen=True):
    """`attempts` sent in all, of which `retries` were scheduled by policy and `refused_resent` went at once after a
    refusal, which is no retry; `denied` retries were due and not sent. `sdk_retries`: calls that an SDK above marked
    as its own repetition, as far as they came after a call that went wrong here."""

    attempts: int = 0
    retries: int = 0
    refused_resent: int = 0
    denied: int = 0
    sdk_retries: int = 0

    def __add__(self, other: RetryStats) -> RetryStats:
        """Of two layers of one session: a route's and its default."""
        return RetryStats(*(mine + its for mine, its in zip(_numbers(self), _numbers(other), strict=True)))


class RetryLayer:
    """One per session and set of options."""

    def __init__(self, options: RetryOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._policy = RetryPolicy(options)
        self._now = context.runtime.now
        self._targets: dict[str, Target] = {}
        self._lock = threading.Lock()
        self._calls = Counter()
        self._retries = self._refused_resent = self._denied = self._sdk_retries = 0
        # SDK retries can only follow a call that went wrong: until one did, no header is looked at.
        self._watch_sdk = False
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Another thread of the parent may have held a lock; and the parent's calls are not this process's load."""
        self._lock = threading.Lock()
        self._targets = {}

    async def __call__(self, request: Request, send: Send) -> Response:
        target = self._targets.get(request.url) or self._target(request.url)
        target.budget.count_call(self._now())
        self._calls.add()
        if self._watch_sdk:
            self._look_for_sdk(request, target)
        if self._options.idempotency_key:
            request = _keyed(request)
        try:
            response = await send(request)
            if response.status < 400:
                return response
            first = Outcome(response)
        except TransportError as error:
            first = Outcome(None, error)
        return await self._again(first, target, request, send)

    async def _again(self, first: Outcome, target: Target, request: Request, send: Send) -> Response:
        self._watch_sdk = True
        call = RetriedCall(self._policy, self._context, target, request, send)
        try:
            outcome = await call.run(first)
        finally:
            with self._lock:
                self._refused_resent += call.refused_resent
                self._retries += call.sent - 1 - call.refused_resent
                self._denied += call.denied
        if outcome.error is not None:
            outcome.error.attempts = call.sent
            try:
                raise outcome.error
            finally:
                # The error's traceback holds this frame: without these names it holds no sockets.
                del outcome, first, call
        response = outcome.response
        assert response is not None
        if call.sent > 1:
            response.extensions["attempts"] = call.sent
        return response

    def stats(self) -> RetryStats:
        extra = self._retries + self._refused_resent
        return RetryStats(
            self._calls.value + extra, self._retries, self._refused_resent, self._denied, self._sdk_retries
        )

    def knobs(self) -> list[Knob]:
        """A larger share than what was configured is for somebody to ask for: in an outage it is load."""
        return [
            Knob(
                "budget_ratio",
                get=lambda: self._policy.budget_ratio,
                set=lambda value: setattr(self._policy, "budget_ratio", value),
                lowest=0.0,
                highest=self._options.budget_ratio,
                grain=0.01,
            )
        ]

    def _target(self, url: str) -> Target:
        if len(self._targets) >= MAX_TARGETS:
            self._targets = {}
        origin = origin_of(url)
        target = self._targets[url] = Target(origin, self._policy.is_pure_route(url), budget_of(origin))
        return target

    def _look_for_sdk(self, request: Request, target: Target) -> None:
        count = request.headers.get(SDK_RETRY_HEADER, "")
        if not (count.isascii() and count.isdigit()) or int(count[:6]) == 0:
            return
        with self._lock:
            self._sdk_retries += 1
        if self._context.emit:
            self._context.emit(
                RetryScheduled(
                    time=self._now(), origin=target.origin, attempt=int(count[:6]) + 1, delay=0.0, reason="sdk"
                )
            )
        _warn_of_sdk(self._options.attempts, int(count[:6]))

    def __repr__(self) -> str:
        return f"<RetryLayer attempts={self._options.attempts} {self.stats()}>"


def _numbers(stats: RetryStats) -> tuple[int, ...]:
    return msgspec.structs.astuple(stats)


def _keyed(request: Request) -> Request:
    """The request with a key of its own, unless running it twice is harmless or the caller brought a key."""
    if request.method.upper() in IDEMPOTENT or "idempotency-key" in request.headers:
        return request
    return request.replace(headers=request.headers.set("Idempotency-Key", str(uuid.uuid4())))


_sdk_warned = False


def _warn_of_sdk(attempts: int, count: int) -> None:
    global _sdk_warned
    if not _sdk_warned:
        _sdk_warned = True
        log.warning(
            "netkit: an SDK above repeats calls by itself (%s: %d), and attempts multiply: "
            "%d tries of the SDK so far x %d attempts here = up to %d requests for one call; "
            "set max_retries=0 in the SDK, or attempts = 1 in [tool.netkit.retry]",
            SDK_RETRY_HEADER,
            count,
            count + 1,
            attempts,
            (count + 1) * attempts,
        )
