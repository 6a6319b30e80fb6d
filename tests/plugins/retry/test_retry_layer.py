"""The layer on the Scripted runtime: what the server sees, what the caller gets, when."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
from netkit_plugins.retry import RetryOptions
from netkit_plugins.retry import layer as layer_module

from netkit import Body, Headers, Request, Response, TransportError, Verdict
from netkit.errors import BodyClosed, FailureKind, PoolTimeout
from netkit.events import AttemptFailed, RetryDenied, RetryScheduled
from netkit.plugins import Registry

URL = "http://h/v1/chat/completions"
POST = Request("POST", URL, body=Body.of(b"{}"))
GET = Request("GET", "http://h/v1/models")
NONE = RetryOptions(jitter="none")
IMPLICIT = RetryOptions(attempts=2, statuses=(), jitter="none")


def answer(status: int, headers: Any = (), content: bytes = b"") -> Callable[[], Response]:
    return lambda: Response.of(status, headers, content)


def fails(kind: FailureKind, verdict: Verdict, **details: Any) -> TransportError:
    return TransportError(kind.value, kind=kind, verdict=verdict, **details)


def test_registration() -> None:
    registration = Registry(use_entry_points=False).get("retry")
    assert registration.implicit == RetryOptions(attempts=2, statuses=())
    assert registration.request_headers == ("Idempotency-Key",)
    assert registration.kind == "layer"


def test_a_success_passes_untouched(rig: Any) -> None:
    rig = rig(NONE, 200)
    task = rig.call(POST)
    assert task.result() is rig.made[0]
    assert rig.seen == [POST]
    assert rig.seen[0] is POST
    assert "attempts" not in task.result().extensions
    assert rig.meter.retries.value == rig.meter.retry_denied.value == 0


def test_a_success_does_not_enter_tenacity(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_module, "RetriedCall", None)
    assert rig(NONE, 200).call(POST).result().status == 200


def test_a_status_is_retried_with_growing_waits_and_the_last_answer_is_returned(rig: Any) -> None:
    rig = rig(RetryOptions(jitter="none", attempts=4), 503)
    response = rig.call(POST).result()
    assert response is rig.made[-1]
    assert response.status == 503
    assert response.extensions["attempts"] == 4
    assert not response.body.ended
    assert rig.delays == [0.5, 1.0, 2.0]
    assert rig.meter.retries.value == 3


def test_discarded_answers_are_discarded_before_the_wait(rig: Any) -> None:
    rig = rig(NONE, 503, 200)
    task = rig.start(POST)
    rig.runtime.run()
    assert task.waiting == "sleep 0.5"
    assert rig.made[0].body.ended
    assert isinstance(rig.made[0].body.error, BodyClosed)
    rig.runtime.run_to_end()
    assert task.result().status == 200
    assert not task.result().body.ended


def test_the_last_error_is_raised_with_its_count(rig: Any) -> None:
    error = fails(FailureKind.CONNECT, Verdict.NOT_SENT)
    rig = rig(NONE, error)
    with pytest.raises(TransportError) as caught:
        rig.call(POST).result()
    assert caught.value is error
    assert error.attempts == 3
    assert error.__context__ is None


def test_an_unsafe_post_fails_at_once(rig: Any) -> None:
    error = fails(FailureKind.RESET, Verdict.AMBIGUOUS)
    rig = rig(NONE, error)
    task = rig.call(POST)
    with pytest.raises(TransportError):
        task.result()
    assert len(rig.seen) == error.attempts == 1
    assert [event.reason for event in rig.events if isinstance(event, RetryDenied)] == ["unsafe"]
    assert rig.meter.retry_denied.value == 1


@pytest.mark.parametrize(
    "request_",
    [
        GET,
        POST.extend(pure=True),
        POST.replace(headers=Headers([("Idempotency-Key", "k")])),
        POST.replace(url="http://h/v1/embeddings"),
    ],
)
def test_c19_a_reset_is_replayed_once_where_that_is_harmless(rig: Any, request_: Request) -> None:
    rig = rig(IMPLICIT, fails(FailureKind.RESET, Verdict.AMBIGUOUS, reused=True), 200)
    assert rig.call(request_).result().status == 200
    assert len(rig.seen) == 2
    assert rig.delays == [0.0]
    first, second = rig.seen
    assert (second.body, second.headers, second.url) == (first.body, first.headers, first.url)


def test_c19_connect_refused_is_retried_by_default_for_post(rig: Any) -> None:
    rig = rig(IMPLICIT, fails(FailureKind.CONNECT, Verdict.NOT_SENT), 200)
    assert rig.call(POST).result().status == 200
    assert rig.delays == [0.5]


def test_without_configuration_a_status_is_the_callers(rig: Any) -> None:
    rig = rig(IMPLICIT, answer(503, [("x-should-retry", "true")]))
    assert rig.call(GET).result().status == 503
    assert len(rig.seen) == 1


def test_only_the_first_resend_goes_at_once(rig: Any) -> None:
    rig = rig(NONE, fails(FailureKind.DISCONNECTED, Verdict.AMBIGUOUS, reused=True))
    rig.call(GET)
    assert rig.delays == [0.0, 1.0]


@pytest.mark.parametrize("attempts", [1, 3])
def test_c20_attempts_are_exact(rig: Any, attempts: int) -> None:
    error = fails(FailureKind.DISCONNECTED, Verdict.AMBIGUOUS, reused=True)
    rig = rig(RetryOptions(attempts=attempts), error)
    rig.call(GET)
    assert len(rig.seen) == error.attempts == attempts
    assert rig.meter.retries.value == attempts - 1


def test_a_refusal_is_resent_once_at_once_and_is_no_retry(rig: Any) -> None:
    rig = rig(RetryOptions(attempts=1), fails(FailureKind.REFUSED, Verdict.REFUSED), 200)
    response = rig.call(POST).result()
    assert response.status == 200
    assert response.extensions["attempts"] == 2
    assert rig.delays == [0.0]
    assert rig.meter.retries.value == 0
    assert rig.layer.stats().refused_resent == 1
    assert rig.seen[1].extensions["new_connection"] is True


@pytest.mark.parametrize("status", [421, 425])
def test_a_refusing_status_is_resent_once_and_then_returned(rig: Any, status: int) -> None:
    rig = rig(NONE, status)
    response = rig.call(POST).result()
    assert response.status == status
    assert len(rig.seen) == 2
    assert rig.made[0].body.ended
    assert not response.body.ended


def test_a_refusal_of_a_one_shot_body_is_final(rig: Any) -> None:
    rig = rig(NONE, fails(FailureKind.REFUSED, Verdict.REFUSED))
    with pytest.raises(TransportError):
        rig.call(POST.replace(body=Body.one_shot(iter([b"a"])))).result()
    assert len(rig.seen) == 1


def test_repeated_refusals_become_retries(rig: Any) -> None:
    rig = rig(NONE, fails(FailureKind.REFUSED, Verdict.REFUSED))
    with pytest.raises(TransportError) as caught:
        rig.call(POST).result()
    assert len(rig.seen) == caught.value.attempts == 4
    assert rig.delays == [0.0, 0.5, 1.0]
    assert rig.meter.retries.value == 2


def test_c21_a_one_shot_body_gets_the_original_answer(rig: Any) -> None:
    rig = rig(NONE, 503)
    response = rig.call(POST.replace(body=Body.one_shot(iter([b"a"])))).result()
    assert response is rig.made[0]
    assert not response.body.ended
    assert len(rig.seen) == 1
    assert [event.reason for event in rig.events if isinstance(event, RetryDenied)] == ["body"]


def test_a_one_shot_body_that_was_not_touched_may_go(rig: Any) -> None:
    rig = rig(NONE, fails(FailureKind.CONNECT, Verdict.NOT_SENT, body_started=False), 200)
    assert rig.call(POST.replace(body=Body.one_shot(iter([b"a"])))).result().status == 200


def test_retry_after_replaces_the_backoff(rig: Any) -> None:
    rig = rig(NONE, answer(429, [("retry-after", "7")]), answer(503, [("retry-after-ms", "1500")]), 200)
    assert rig.call(POST).result().status == 200
    assert rig.delays == [7.0, 1.5]
    scheduled = [event for event in rig.events if isinstance(event, RetryScheduled)]
    assert [(event.attempt, event.delay, event.reason) for event in scheduled] == [(2, 7.0, "429"), (3, 1.5, "503")]
    assert scheduled[0].origin == "http://h"


def test_too_long_a_retry_after_gives_the_answer_at_once(rig: Any) -> None:
    rig = rig(NONE, answer(429, [("retry-after", "61")]))
    assert rig.call(POST).result().status == 429
    assert len(rig.seen) == 1
    assert rig.runtime.now() == 1000.0
    assert [event.reason for event in rig.events if isinstance(event, RetryDenied)] == ["retry-after"]


def test_a_permanent_429_is_returned_readable(rig: Any) -> None:
    body = b'{"error": {"type": "insufficient_quota"}}'
    rig = rig(NONE, answer(429, [("content-type", "application/json"), ("content-length", str(len(body)))], body))
    response = rig.call(POST).result()
    assert response.status == 429
    assert response.body.content == body
    assert not response.body.ended
    assert len(rig.seen) == 1


def test_an_idempotency_key_is_the_same_on_every_attempt_and_new_for_every_call(rig: Any) -> None:
    rig = rig(RetryOptions(idempotency_key=True), fails(FailureKind.RESET, Verdict.AMBIGUOUS))
    for _ in range(2):
        with pytest.raises(TransportError):
            rig.call(POST).result()
    keys = [request.headers["Idempotency-Key"] for request in rig.seen]
    assert len(keys) == 6
    assert len(set(keys)) == 2
    assert keys[0] == keys[1] == keys[2]


def test_a_callers_own_key_is_kept_and_get_needs_none(rig: Any) -> None:
    rig = rig(RetryOptions(idempotency_key=True), 200)
    rig.call(POST.replace(headers=Headers([("idempotency-key", "mine")])))
    rig.call(GET)
    assert rig.seen[0].headers.get_all("Idempotency-Key") == ["mine"]
    assert rig.seen[1] is GET


@pytest.mark.parametrize(
    ("failed", "avoided"),
    [
        (fails(FailureKind.CONNECT, Verdict.NOT_SENT), "http://h"),
        (fails(FailureKind.CONNECT, Verdict.NOT_SENT, endpoint="http://b"), "http://b"),
        (lambda: Response.of(503, endpoint="http://c"), "http://c"),
    ],
)
def test_the_failed_endpoint_is_named(rig: Any, failed: Any, avoided: str) -> None:
    rig = rig(NONE, failed, 200)
    rig.call(POST)
    assert "avoid_endpoints" not in rig.seen[0].extensions
    assert rig.seen[1].extensions["avoid_endpoints"] == (avoided,)


def test_every_endpoint_that_failed_is_named_once_the_latest_last(rig: Any) -> None:
    script = [lambda name=name: Response.of(503, endpoint=name) for name in ("a", "b", "a", "c")]
    rig = rig(RetryOptions(attempts=4, jitter="none"), *script)
    rig.call(POST)
    assert [request.extensions.get("avoid_endpoints") for request in rig.seen] == [
        None,
        ("a",),
        ("a", "b"),
        ("b", "a"),
    ]


def test_other_endpoint_can_be_switched_off(rig: Any) -> None:
    rig = rig(RetryOptions(other_endpoint=False), 503, 200)
    rig.call(POST)
    assert "avoid_endpoints" not in rig.seen[1].extensions


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(), asyncio.CancelledError(), ValueError("bug")])
def test_what_is_no_transport_error_ends_the_call_at_once(rig: Any, stop: BaseException) -> None:
    for script in ([stop], [503, stop]):
        mine = rig(NONE, *script)
        with pytest.raises(type(stop)) as caught:
            mine.call(POST).result()
        assert caught.value is stop
        assert len(mine.seen) == len(script)
        assert "asleep=0" in repr(mine.budget())


def test_cancelled_at_every_wait_it_leaks_nothing(rig: Any) -> None:
    for step in range(20):
        mine = rig(NONE, answer(503), fails(FailureKind.REFUSED, Verdict.REFUSED), 503, 200)
        task = mine.start(GET, cancel_at=step)
        mine.runtime.run_to_end()
        assert "asleep=0" in repr(mine.budget()) if mine.layer._targets else step == 0
        assert all(response.body.ended for response in mine.made[:-1])
        if not task.cancelled:
            assert step == 7
            assert task.result().status == 200
            return
    pytest.fail("never came to its end")


class _Broken(Response):
    """An answer whose body cannot even be thrown away."""

    async def discard(self) -> None:
        raise fails(FailureKind.RESET, Verdict.PROCESSED)


def test_an_answer_that_fails_while_it_is_discarded_does_not_stop_the_retry(rig: Any) -> None:
    rig = rig(NONE, lambda: _Broken.of(503), 200)
    assert rig.call(POST).result().status == 200


def test_c26_an_outage_sees_the_first_attempts_and_a_fifth_more(rig: Any) -> None:
    rig = rig(RetryOptions(attempts=4, budget_ratio=0.2, budget_min_per_second=0.3), 503)
    tasks = [rig.start(POST) for _ in range(200)]
    rig.runtime.run()
    assert len(rig.seen) == 200
    answered_at_once = sum(task.done() for task in tasks)
    assert answered_at_once == 200 - 43
    rig.runtime.run_to_end()
    assert all(task.result().status == 503 for task in tasks)
    assert 200 < len(rig.seen) <= 243
    assert 186 <= rig.meter.retry_denied.value <= 200
    assert rig.meter.retries.value == len(rig.seen) - 200
    denied = rig.meter.retry_denied.value
    rig.script = [200]
    for _ in range(200):
        assert rig.call(POST).result().status == 200
    assert rig.meter.retry_denied.value == denied


def test_sessions_share_the_budget_of_an_origin(rig: Any) -> None:
    options = RetryOptions(attempts=2, budget_ratio=0.0, budget_min_per_second=0.1)
    first, second = rig(options, 503), rig(options, 503)
    first.call(POST)
    second.call(POST)
    assert (len(first.seen), len(second.seen)) == (2, 1)
    assert [event.reason for event in second.events if isinstance(event, RetryDenied)] == ["budget"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_meets_no_lock_of_the_parent(rig: Any) -> None:
    rig = rig(NONE, 200)
    rig.call(POST)
    with rig.budget()._lock, rig.layer._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if rig.call(POST).result().status == 200 and "calls=1" in repr(rig.budget()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_sdks_own_retries_are_reported_once_in_the_log(
    rig: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_module, "_sdk_warned", False)
    rig = rig(RetryOptions(attempts=1), 500)
    for count in ("0", "1", "2", "x"):
        rig.call(POST.replace(headers=Headers([("x-stainless-retry-count", count)])))
    assert rig.layer.stats().sdk_retries == 2
    scheduled = [(event.attempt, event.reason) for event in rig.events if isinstance(event, RetryScheduled)]
    assert scheduled == [(2, "sdk"), (3, "sdk")]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "max_retries=0" in warnings[0].getMessage()


def test_each_failed_attempt_is_told_with_its_number_kind_and_verdict(rig: Any) -> None:
    rig = rig(
        RetryOptions(attempts=4, jitter="none"),
        fails(FailureKind.CONNECT, Verdict.NOT_SENT),
        425,
        503,
        404,
    )
    assert rig.call(POST).result().status == 404
    told = [(e.attempt, e.kind, e.verdict, e.status) for e in rig.events if isinstance(e, AttemptFailed)]
    assert told == [
        (1, "connect", "not_sent", None),
        (2, "status", "refused", 425),
        (3, "status", "processed", 503),
    ]
    assert {event.origin for event in rig.events} == {"http://h"}


class _Admission:
    """Writes down what it was asked, and lets the next attempt wait for an event, or fails."""

    def __init__(self, rig: Any, error: Exception | None = None) -> None:
        self.rig = rig
        self.error = error
        self.asked: list[Any] = []

    async def failed(self, response: Response | None, error: TransportError | None) -> None:
        assert response is None or not response.body.ended
        self.asked.append(response.status if response is not None else error)

    async def again(self) -> None:
        self.asked.append("again")
        await self.rig.runtime.sleep(30.0)
        if self.error is not None:
            raise self.error


def test_every_further_attempt_is_admitted_by_a_limiter_above(rig: Any) -> None:
    reset = fails(FailureKind.RESET, Verdict.AMBIGUOUS)
    rig = rig(RetryOptions(attempts=4, jitter="none"), 429, 425, reset, 200)
    admission = _Admission(rig)
    assert rig.call(GET.extend(admission=admission)).result().status == 200
    assert admission.asked == [429, "again", 425, "again", reset, "again"]
    assert rig.delays == [30.5, 30.0, 31.0]


def test_an_attempt_that_is_not_admitted_ends_the_call(rig: Any) -> None:
    error = PoolTimeout("no turn")
    rig = rig(NONE, 503)
    admission = _Admission(rig, error)
    with pytest.raises(PoolTimeout) as caught:
        rig.call(GET.extend(admission=admission)).result()
    assert caught.value is error
    assert len(rig.seen) == 1
    assert admission.asked == [503, "again"]
    assert "asleep=0" in repr(rig.budget())
    assert rig.meter.retries.value == rig.layer.stats().retries == 0


def test_a_retry_that_waits_for_its_turn_has_its_share_of_the_budget(rig: Any) -> None:
    rig = rig(NONE, 503, 200)
    task = rig.start(GET.extend(admission=_Admission(rig)))
    rig.runtime.advance(20.0)
    assert not task.done()
    assert "asleep=1" in repr(rig.budget())
    rig.runtime.run_to_end()
    assert task.result().status == 200
    assert "asleep=0" in repr(rig.budget())


def test_the_last_outcome_is_left_to_the_limiter_above(rig: Any) -> None:
    rig = rig(RetryOptions(attempts=1), 503)
    admission = _Admission(rig)
    assert rig.call(GET.extend(admission=admission)).result().status == 503
    assert admission.asked == []


def test_every_option_is_documented() -> None:
    text = inspect.getdoc(RetryOptions) or ""
    for name in RetryOptions.__dataclass_fields__:
        assert name in text
