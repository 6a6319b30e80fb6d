"""One logical call whose first attempt went wrong: tenacity turns the wheel, the policy decides.

Rules of this file:

- What is reserved from the budget is settled on every way out, cancellation included.
- Every answer but the last is discarded before the next attempt, so that its connection is free again.
- Every attempt after the first asks the `netkit.admission.Admission` of a limiter above, if there is one.
- Only `TransportError` is a failure; every other exception, and every BaseException, ends the call at once.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt

from netkit import Request, Response, Send, Verdict
from netkit.admission import Admission
from netkit.errors import TransportError
from netkit.events import AttemptFailed, RetryDenied, RetryScheduled
from netkit.plugins import Context
from netkit_plugins.retry.budget import RetryBudget
from netkit_plugins.retry.policy import (
    REFUSED_STATUSES,
    Failure,
    RetryPolicy,
    is_permanent,
    may_be_permanent,
)

__all__ = ["Outcome", "RetriedCall", "Target"]


class Target:
    """What is known of one URL."""

    __slots__ = ("budget", "origin", "pure")

    def __init__(self, origin: str, pure: bool, budget: RetryBudget) -> None:
        self.origin = origin
        self.pure = pure
        self.budget = budget


class Outcome:
    """How one attempt ended: an answer or an error."""

    __slots__ = ("error", "response")

    def __init__(self, response: Response | None, error: TransportError | None = None) -> None:
        self.response = response
        self.error = error

    @property
    def refused(self) -> bool:
        if self.error is not None:
            return self.error.verdict is Verdict.REFUSED
        assert self.response is not None
        return self.response.status in REFUSED_STATUSES

    @property
    def verdict(self) -> Verdict:
        if self.error is not None:
            return self.error.verdict
        return Verdict.REFUSED if self.refused else Verdict.PROCESSED

    @property
    def unsent(self) -> bool:
        """Whether an adapter vouches that the body was not touched."""
        error = self.error
        return error is not None and error.verdict is Verdict.NOT_SENT and error.details.get("body_started") is False

    async def discard(self) -> None:
        if self.response is not None:
            try:
                await self.response.discard()
            except TransportError:
                # It was to be thrown away: how its body ends does not matter any more.
                pass


class RetriedCall:
    """`run(first)` gives the last outcome. One object per call."""

    def __init__(self, policy: RetryPolicy, context: Context, target: Target, request: Request, send: Send) -> None:
        self._policy = policy
        self._context = context
        self._target = target
        self._request = request
        self._send = send
        self._pure = target.pure or request.extensions.get("pure") is True
        self._admission: Admission | None = request.extensions.get("admission")
        self._seed: Outcome | None = None
        self._failure: Failure | None = None
        self._reserved = False
        self._resent = False
        self.refused_resent = 0
        self.denied = 0
        self.sent = 1

    async def run(self, first: Outcome) -> Outcome:
        try:
            outcome = await self._judged(first)
            if self._failure is None or self._policy.options.attempts == 1:
                return outcome
            self._seed = outcome
            return await self._with_tenacity()
        finally:
            self._settle()

    async def _with_tenacity(self) -> Outcome:
        is_last = stop_after_attempt(self._policy.options.attempts)
        retrying = AsyncRetrying(
            retry=self._is_wanted,
            wait=self._delay,
            stop=lambda state: is_last(state) or self._is_denied(state),
            before_sleep=self._prepare_next,
            sleep=self._sleep,
            retry_error_callback=_last_outcome,
        )
        return await retrying(self._attempt)

    async def _attempt(self) -> Outcome:
        if self._seed is not None:
            seed, self._seed = self._seed, None
            return seed
        return await self._judged(await self._once())

    async def _once(self, *, unseen: bool = False) -> Outcome:
        """One more attempt, admitted anew; an `unseen` one is transparent, which is no retry."""
        if self._admission is not None:
            await self._admission.again()
        self._settle()
        self.sent += 1
        if unseen:
            self.refused_resent += 1
        else:
            self._context.meter.retry()
        try:
            return Outcome(await self._send(self._request))
        except TransportError as error:
            return Outcome(None, error)

    async def _judged(self, outcome: Outcome) -> Outcome:
        """Resend what the server refused, once and unseen; then judge what came of it."""
        if outcome.error is not None and outcome.error.attempts > 1:
            # The transport below has done it already.
            self._resent = True
            self.sent += outcome.error.attempts - 1
            self.refused_resent += outcome.error.attempts - 1
        if outcome.refused and not self._resent and self._request.body.replayable:
            self._resent = True
            self._report(outcome)
            await self._give_up(outcome)
            # RFC 9110 section 15.5.20: a misdirected request belongs on another connection.
            self._request = self._request.extend(new_connection=True)
            outcome = await self._once(unseen=True)
        self._failure = await self._judge(outcome)
        if self._failure is not None or outcome.error is not None:
            self._report(outcome)
        return outcome

    def _report(self, outcome: Outcome) -> None:
        """Tell listeners of an attempt that failed: an error, or an answer that policy would rather have again."""
        if self._context.emit:
            error, response = outcome.error, outcome.response
            self._context.emit(
                AttemptFailed(
                    time=self._context.runtime.now(),
                    origin=self._target.origin,
                    kind="status" if error is None else error.kind.value,
                    verdict=outcome.verdict.value,
                    attempt=self.sent,
                    status=None if response is None else response.status,
                )
            )

    async def _give_up(self, outcome: Outcome) -> None:
        """Nobody above will see this outcome: the limiter hears of it here, and its connection is free again."""
        if self._admission is not None:
            await self._admission.failed(outcome.response, outcome.error)
        await outcome.discard()

    async def _judge(self, outcome: Outcome) -> Failure | None:
        if outcome.error is not None:
            return self._policy.judge_error(outcome.error)
        response = outcome.response
        assert response is not None
        if response.status < 400:
            return None
        headers = response.headers
        failure = self._policy.judge_answer(response.status, headers, pure=self._pure, wall=time.time())
        if failure is not None and self._policy.options.other_endpoint and response.extensions.get("other_endpoints"):
            # What this replica asks for binds the calls to it, not those to another.
            failure = dataclasses.replace(failure, after=None)
        if failure is not None and may_be_permanent(response.status, headers):
            try:
                if is_permanent(await response.read()):
                    # For a limiter above: to wait does not help anybody.
                    response.extensions["permanent"] = True
                    return None
            except TransportError:
                # An answer that breaks off cannot say that it is permanent.
                pass
        return failure

    def _is_wanted(self, state: RetryCallState) -> bool:
        assert state.outcome is not None
        return not state.outcome.failed and self._failure is not None

    def _delay(self, state: RetryCallState) -> float:
        failure = self._failure
        assert failure is not None
        if failure.after is not None:
            return failure.after
        if failure.at_once and state.attempt_number == 1:
            return 0.0
        return self._policy.backoff(state)

    def _is_denied(self, state: RetryCallState) -> bool:
        """Asked after the count of attempts: what it takes from the budget will be used."""
        assert self._failure is not None
        assert state.outcome is not None
        reason = self._policy.denial(
            self._failure, self._request, pure=self._pure, unsent=state.outcome.result().unsent
        )
        options = self._policy.options
        if reason is None and self._is_too_late(state.upcoming_sleep):
            reason = "deadline"
        if reason is None:
            self._reserved = self._target.budget.reserve(
                self._context.runtime.now(), ratio=self._policy.budget_ratio, per_second=options.budget_min_per_second
            )
            if self._reserved:
                return False
            reason = "budget"
        self.denied = 1
        self._context.meter.deny_retry()
        if self._context.emit:
            self._context.emit(
                RetryDenied(
                    time=self._context.runtime.now(),
                    origin=self._target.origin,
                    attempt=state.attempt_number + 1,
                    reason=reason,
                )
            )
        return True

    def _is_too_late(self, delay: float) -> bool:
        """Whether the call's time will be spent before the next attempt can begin."""
        ends: float | None = self._request.extensions.get("deadline")
        return ends is not None and self._context.runtime.now() + delay >= ends

    async def _prepare_next(self, state: RetryCallState) -> None:
        assert self._failure is not None
        assert state.outcome is not None
        outcome: Outcome = state.outcome.result()
        if self._context.emit:
            self._context.emit(
                RetryScheduled(
                    time=self._context.runtime.now(),
                    origin=self._target.origin,
                    attempt=state.attempt_number + 1,
                    delay=state.upcoming_sleep,
                    reason=self._failure.reason,
                )
            )
        if self._policy.options.other_endpoint:
            self._request = _avoiding(self._request, _endpoint(outcome) or self._target.origin)
        await self._give_up(outcome)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self._context.runtime.sleep(float(seconds))

    def _settle(self) -> None:
        if self._reserved:
            self._reserved = False
            self._target.budget.settle(self._context.runtime.now())


def _endpoint(outcome: Outcome) -> Any:
    """The endpoint that a balancer below reported for this attempt."""
    if outcome.error is not None:
        return outcome.error.details.get("endpoint")
    assert outcome.response is not None
    return outcome.response.extensions.get("endpoint")


def _avoiding(request: Request, endpoint: Any) -> Request:
    """With `endpoint` as the last of those that failed this call, each once."""
    known: tuple[Any, ...] = request.extensions.get("avoid_endpoints", ())
    return request.extend(avoid_endpoints=(*(other for other in known if other != endpoint), endpoint))


def _last_outcome(state: RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()
