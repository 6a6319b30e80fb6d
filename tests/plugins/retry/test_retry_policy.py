"""What may be sent again, and when: plain asserts, no runtime."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from netkit_plugins.retry import Failure, RetryOptions, RetryPolicy
from netkit_plugins.retry.policy import is_permanent, may_be_permanent
from tenacity import RetryCallState

from netkit import Body, Headers, Request, TransportError, Verdict
from netkit.errors import FailureKind
from netkit.retry_after import requested_delay

POLICY = RetryPolicy(RetryOptions())
POST = Request("POST", "http://h/v1/chat/completions", body=Body.of(b"{}"))
GET = Request("GET", "http://h/v1/models")


def judge(status: int, headers: Any = (), *, pure: bool = False, options: RetryOptions | None = None) -> Any:
    policy = POLICY if options is None else RetryPolicy(options)
    return policy.judge_answer(status, Headers(headers), pure=pure, wall=0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attempts": 0}, "attempts must be ≥ 1, got 0"),
        ({"statuses": (200,)}, "statuses must be from 400 to 599, got 200"),
        ({"backoff_initial": -1}, "backoff_initial must be ≥ 0, got -1"),
        ({"backoff_max": float("inf")}, "backoff_max must be ≥ 0, got inf"),
        ({"retry_after_max": float("nan")}, "retry_after_max must be ≥ 0, got nan"),
        ({"budget_ratio": -0.1}, "budget_ratio must be ≥ 0, got -0.1"),
        ({"jitter": "some"}, 'jitter must be "full", "equal" or "none", got \'some\''),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        RetryOptions(**change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("url", "pure"),
    [
        ("http://h/v1/embeddings", True),
        ("http://h/v1/embeddings/", True),
        ("http://h/v1/embeddings?model=a", True),
        ("http://h/embed", True),
        ("http://h/rerank", True),
        ("http://h/score", True),
        ("http://h/tokenize", True),
        ("http://h/classify", True),
        ("http://h/v1/chat/completions", False),
        ("http://h/v1/images/generations", False),
        ("http://h/unembed", False),
        ("http://h/v1/embeddings/x", False),
        ("http://h/?q=/embed", False),
        ("http://h", False),
    ],
)
def test_pure_routes(url: str, pure: bool) -> None:
    assert POLICY.is_pure_route(url) is pure


def test_pure_routes_are_configurable() -> None:
    assert RetryPolicy(RetryOptions(pure=("/gme/*",))).is_pure_route("http://h/gme/a")
    assert not RetryPolicy(RetryOptions(pure=())).is_pure_route("http://h/v1/embeddings")


@pytest.mark.parametrize("verdict", [Verdict.NOT_SENT, Verdict.REFUSED])
def test_what_was_not_processed_may_be_resent_by_any_method(verdict: Verdict) -> None:
    failure = POLICY.judge_error(TransportError("x", kind=FailureKind.CONNECT, verdict=verdict))
    assert failure == Failure("connect", any_method=True)
    assert POLICY.denial(failure, POST, pure=False) is None


def test_what_may_have_run_is_resent_only_if_that_is_harmless() -> None:
    failure = POLICY.judge_error(TransportError("x", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS))
    assert failure is not None
    assert POLICY.denial(failure, POST, pure=False) == "unsafe"
    assert POLICY.denial(failure, POST, pure=True) is None
    assert POLICY.denial(failure, POST.replace(headers=Headers([("idempotency-KEY", "a")])), pure=False) is None
    for method in ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "get"):
        assert POLICY.denial(failure, GET.replace(method=method), pure=False) is None
    for method in ("POST", "PATCH", "CONNECT", "PURGE"):
        assert POLICY.denial(failure, GET.replace(method=method), pure=False) == "unsafe"


@pytest.mark.parametrize(
    "kind",
    [FailureKind.CERTIFICATE, FailureKind.POOL, FailureKind.CIRCUIT, FailureKind.DEADLINE],
)
def test_what_this_process_decided_is_never_retried(kind: FailureKind) -> None:
    assert POLICY.judge_error(TransportError("x", kind=kind, verdict=Verdict.NOT_SENT)) is None


def test_a_processed_call_is_never_retried() -> None:
    assert POLICY.judge_error(TransportError("x", kind=FailureKind.RESET, verdict=Verdict.PROCESSED)) is None


@pytest.mark.parametrize(("status", "resent"), [(0, True), (403, False), (407, False), (502, True), (503, True)])
def test_a_proxys_refusal_counts_as_an_answer_with_its_status(status: int, resent: bool) -> None:
    error = TransportError("x", kind=FailureKind.PROXY, verdict=Verdict.NOT_SENT, status=status)
    assert (POLICY.judge_error(error) is not None) is resent
    assert POLICY.judge_error(TransportError("x", kind=FailureKind.PROXY, verdict=Verdict.NOT_SENT)) is not None


def test_only_a_lost_reused_connection_is_resent_at_once() -> None:
    def at_once(kind: FailureKind, **details: Any) -> bool:
        failure = POLICY.judge_error(TransportError("x", kind=kind, verdict=Verdict.AMBIGUOUS, **details))
        assert failure is not None
        return failure.at_once

    assert at_once(FailureKind.DISCONNECTED, reused=True)
    assert at_once(FailureKind.RESET, reused=True)
    assert not at_once(FailureKind.RESET)
    assert not at_once(FailureKind.RESET, reused=False)
    assert not at_once(FailureKind.READ_TIMEOUT, reused=True)


@pytest.mark.parametrize("status", [408, 429, 503])
def test_statuses_that_promise_nothing_was_processed(status: int) -> None:
    failure = judge(status)
    assert failure == Failure(str(status), any_method=True)


@pytest.mark.parametrize("status", [502, 504])
def test_statuses_that_leave_it_open(status: int) -> None:
    assert judge(status) == Failure(str(status), any_method=False)


def test_500_is_retried_on_pure_routes_only() -> None:
    assert judge(500) is None
    assert judge(500, pure=True) == Failure("500", any_method=False)
    assert judge(500, pure=True, options=RetryOptions(statuses=())) is None
    assert judge(500, options=RetryOptions(statuses=(500,))) == Failure("500", any_method=False)


@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 404, 409, 413, 421, 501])
def test_other_statuses_are_the_callers(status: int) -> None:
    assert judge(status) is None


def test_x_should_retry_is_obeyed() -> None:
    assert judge(503, [("X-Should-Retry", "false")]) is None
    assert judge(409, [("x-should-retry", "true")]) == Failure("409", any_method=True)
    assert judge(500, [("x-should-retry", "true")]) == Failure("500", any_method=True)
    assert judge(503, [("x-should-retry", "perhaps")]) == Failure("503", any_method=True)
    assert judge(200, [("x-should-retry", "true")]) is None
    assert judge(503, [("x-should-retry", "true")], options=RetryOptions(statuses=())) is None


def test_a_one_shot_body_is_sent_once() -> None:
    failure = Failure("503", any_method=True)
    request = POST.replace(body=Body.one_shot(iter([b"a"])))
    assert POLICY.denial(failure, request, pure=True) == "body"
    assert POLICY.denial(failure, request, pure=True, unsent=True) is None
    assert POLICY.denial(failure, POST.replace(body=Body.reopenable(lambda: b"a")), pure=False) is None


def test_too_long_a_wait_is_no_retry() -> None:
    assert POLICY.denial(Failure("429", True, after=60.0), POST, pure=False) is None
    assert POLICY.denial(Failure("429", True, after=60.1), POST, pure=False) == "retry-after"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:30 GMT"}, 20.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:05 GMT"}, 0.0),
        ({"retry-after": "Thursday, 01-Jan-70 00:00:30 GMT"}, 20.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "2, 3"}, None),
        ({"retry-after": "Thu, 99 Foo 9999 99:99:99 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], expected: float | None) -> None:
    found = requested_delay(Headers(headers.items()), wall=10.0)
    assert found == expected


def test_retry_after_can_be_switched_off() -> None:
    headers = [("retry-after", "2")]
    assert judge(503, headers).after == 2.0
    assert judge(503, headers, options=RetryOptions(respect_retry_after=False)).after is None


@pytest.mark.parametrize(
    ("jitter", "least"), [("none", (0.5, 1, 2, 4, 8, 8)), ("equal", (0.25, 0.5, 1, 2, 4, 4)), ("full", (0.0,) * 6)]
)
def test_backoff(jitter: Any, least: tuple[float, ...]) -> None:
    backoff = RetryPolicy(RetryOptions(jitter=jitter)).backoff
    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    for attempt, (low, high) in enumerate(zip(least, (0.5, 1, 2, 4, 8, 8), strict=True), start=1):
        state.attempt_number = attempt
        drawn = [backoff(state) for _ in range(200)]
        assert low <= min(drawn)
        assert max(drawn) <= high
        assert jitter == "none" or max(drawn) - min(drawn) > 0.5 * (high - low)


def test_a_permanent_429_is_recognised_in_small_bodies_of_known_size() -> None:
    body = b'{"error": {"code": "insufficient_quota"}}'
    assert is_permanent(body)
    assert is_permanent(gzip.compress(body))
    assert not is_permanent(b'{"error": {"code": "rate_limit_exceeded"}}')
    assert not is_permanent(b"\x1f\x8bnot gzip")
    json = ("content-type", "application/json; charset=utf-8")
    assert may_be_permanent(429, Headers([json, ("content-length", "80")]))
    assert not may_be_permanent(503, Headers([json, ("content-length", "80")]))
    assert not may_be_permanent(429, Headers([json]))
    assert not may_be_permanent(429, Headers([json, ("content-length", "10000000")]))
    assert not may_be_permanent(429, Headers([("content-type", "text/plain"), ("content-length", "80")]))
