"""The policy by itself: plain values in, decisions out."""

from __future__ import annotations

from typing import Any

import pytest
from netkit_plugins.breaker import BreakerOptions, Circuit
from netkit_plugins.breaker.circuit import Snapshot, open_seconds
from netkit_plugins.breaker.window import Window

from netkit.blame import judge_end, judge_error
from netkit.errors import BodyClosed, CircuitOpen, DeadlineExceeded, FailureKind, PoolTimeout, TransportError, Verdict


def circuit(**options: Any) -> Circuit:
    return Circuit("http://h", BreakerOptions(**options))


def fail(it: Circuit, now: float = 0.0, times: int = 1) -> Any:
    change = None
    for _ in range(times):
        permit = it.admit(now)
        assert permit is not None
        change = it.fail(permit, now)
    return change


def probe(it: Circuit, now: float) -> Any:
    permit = it.admit(now)
    assert permit is not None
    assert permit.is_probe
    return permit


def test_it_opens_after_failures_in_a_row_and_not_before() -> None:
    it = circuit(fail_max=3)
    assert fail(it, times=2) is None
    good = it.admit(0.0)
    assert good is not None
    it.succeed(good, 0.0)
    assert fail(it, times=2) is None
    change = fail(it)
    assert (change.state, change.reason) == ("open", "failures")
    assert it.admit(0.0) is None


def test_time_of_being_open_doubles_up_to_its_limit_and_starts_anew() -> None:
    it, now = circuit(fail_max=1, reset_timeout=10.0, reset_timeout_max=25.0), 0.0
    fail(it, now)
    for expected in (10.0, 20.0, 25.0, 25.0):
        wait = it.retry_after(now)
        assert expected <= wait <= expected * 1.1
        assert it.admit(now + expected - 0.001) is None
        now += wait
        assert it.fail(probe(it, now), now).reason == "probe"
    now += it.retry_after(now)
    assert it.succeed(probe(it, now), now).state == "closed"
    fail(it, now)
    assert it.retry_after(now) <= 11.0


def test_time_of_being_open_never_overflows() -> None:
    assert open_seconds(BreakerOptions(), 10**6) == 300.0
    assert open_seconds(BreakerOptions(reset_timeout=600.0), 0) == 600.0


@pytest.mark.parametrize("probes", [1, 3])
def test_half_open_admits_exactly_the_probes(probes: int) -> None:
    it = circuit(fail_max=1, reset_timeout=1.0, probes=probes)
    fail(it)
    admitted = [it.admit(2.0) for _ in range(10)]
    assert [permit is not None for permit in admitted] == [True] * probes + [False] * (10 - probes)
    assert it.stats(2.0).in_use == probes
    assert it.stats(2.0).rejected == 10 - probes
    assert it.retry_after(2.0) > 0


def test_a_released_probe_gives_its_place_back_once() -> None:
    it = circuit(fail_max=1, reset_timeout=1.0)
    fail(it)
    first = probe(it, 2.0)
    it.release(first)
    it.release(first)
    second = probe(it, 2.0)
    assert it.admit(2.0) is None
    it.release(first)
    assert it.admit(2.0) is None
    assert it.succeed(second, 2.0).state == "closed"


def test_a_silent_probe_keeps_the_next_out_for_so_long_only() -> None:
    it = circuit(fail_max=1, reset_timeout=1.0)
    fail(it)
    silent = probe(it, 2.0)
    assert it.admit(31.9) is None
    probe(it, 32.0)
    # It is late, but it is news all the same.
    assert it.succeed(silent, 33.0).state == "closed"


def test_what_began_before_it_opened_changes_nothing_afterwards() -> None:
    it = circuit(fail_max=2, reset_timeout=1.0)
    early = [it.admit(0.0) for _ in range(4)]
    assert all(early)
    fail(it, times=2)
    assert it.succeed(early[0], 0.5) is None  # type: ignore[arg-type]
    assert it.state == "open"
    assert it.fail(early[1], 0.9) is None  # type: ignore[arg-type]
    assert it.admit(1.2) is not None
    assert it.succeed(early[2], 1.2) is None  # type: ignore[arg-type]
    assert it.fail(early[3], 1.2) is None  # type: ignore[arg-type]
    assert it.state == "half-open"


def test_the_ratio_rule() -> None:
    it = circuit(fail_max=None, failure_ratio=0.5, min_calls=10, window=10.0)
    for number in range(9):
        permit = it.admit(0.0)
        assert permit is not None
        assert (it.succeed if number % 2 else it.fail)(permit, 0.0) is None
    permit = it.admit(0.0)
    assert permit is not None
    assert it.fail(permit, 0.0).reason == "ratio"  # type: ignore[union-attr]


def test_the_ratio_forgets() -> None:
    window = Window(10.0)
    for _ in range(10):
        window.count(100.0, failed=True)
    assert window.exceeds(105.0, 0.5, 10)
    assert not window.exceeds(111.0, 0.5, 10)
    window.count(1e9, failed=True)
    assert window.exceeds(1e9, 1.0, 1)


def test_a_closed_circuit_starts_with_an_empty_window() -> None:
    it = circuit(fail_max=None, min_calls=4, failure_ratio=0.5, reset_timeout=1.0)
    fail(it, times=4)
    it.succeed(probe(it, 2.0), 2.0)
    assert fail(it, 2.0, times=3) is None
    assert it.state == "closed"


def test_adopting_what_others_see() -> None:
    it = circuit(fail_max=5)
    assert it.adopt(Snapshot("closed", 3, 0.0, 7, 0, False), 0.0) is None
    assert it.failures == 3
    change = it.adopt(Snapshot("open", 5, 12.0, 8, 0, False), 0.0)
    assert (change.state, change.reason, change.seconds) == ("open", "shared", 12.0)  # type: ignore[union-attr]
    assert it.admit(11.9) is None
    assert it.adopt(Snapshot("closed", 0, 0.0, 7, 0, False), 1.0) is None, "older news"
    assert it.adopt(Snapshot("closed", 0, 0.0, 9, 0, False), 1.0).state == "closed"  # type: ignore[union-attr]
    # Another process probes: the next call here has to ask.
    it.adopt(Snapshot("half-open", 5, 0.0, 10, 0, False), 2.0)
    probe(it, 2.0)


def test_what_one_process_found_out_alone_is_not_forgotten_at_once() -> None:
    it = circuit(fail_max=1, reset_timeout=10.0)
    fail(it)
    assert it.adopt(Snapshot("closed", 0, 0.0, 3, 0, False), 1.0) is None
    assert it.state == "open"


def _error(kind: FailureKind, verdict: Verdict = Verdict.AMBIGUOUS, **details: Any) -> TransportError:
    return TransportError("x", kind=kind, verdict=verdict, **details)


@pytest.mark.parametrize(
    ("error", "judgement"),
    [
        (_error(FailureKind.RESET), True),
        (_error(FailureKind.CONNECT, Verdict.NOT_SENT), True),
        (_error(FailureKind.DNS, Verdict.NOT_SENT), True),
        (_error(FailureKind.TLS, Verdict.NOT_SENT), True),
        (_error(FailureKind.READ_TIMEOUT), True),
        (_error(FailureKind.OTHER, Verdict.PROCESSED), True),
        (_error(FailureKind.PROXY, Verdict.NOT_SENT, status=502), True),
        (_error(FailureKind.PROXY, Verdict.NOT_SENT, status=407), None),
        (_error(FailureKind.CERTIFICATE, Verdict.NOT_SENT), None),
        (_error(FailureKind.REFUSED, Verdict.REFUSED), None),
        (_error(FailureKind.WRITE, reason="request_body"), None),
        (PoolTimeout("x"), None),
        (CircuitOpen("x"), None),
        (DeadlineExceeded("x", reason="deadline"), None),
        (DeadlineExceeded("x", reason="between_events"), True),
        (DeadlineExceeded("x", native=TimeoutError(), reason="ClientTimeout.total"), True),
    ],
)
def test_whose_fault_it_is(error: TransportError, judgement: bool | None) -> None:
    assert judge_error(error) is judgement
    assert judge_end(error) is judgement


def test_how_a_body_ends() -> None:
    assert judge_end(None) is False
    assert judge_end(BodyClosed("left")) is False
    assert judge_end(OSError()) is True
    assert judge_end(KeyboardInterrupt()) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fail_max": 0}, "fail_max"),
        ({"failure_ratio": 1.5}, "failure_ratio"),
        ({"fail_max": None, "failure_ratio": None}, "nothing would ever open"),
        ({"reset_timeout": 0.0}, "reset_timeout"),
        ({"window": float("inf")}, "window"),
        ({"probes": 0}, "probes"),
        ({"wait": -1.0}, "wait"),
        ({"scope": "host"}, "scope"),
        ({"failure_statuses": (600,)}, "failure_statuses"),
        ({"failure_statuses": ("599-500",)}, "failure_statuses"),
        ({"storage": "sqlite:x"}, "storage"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BreakerOptions(**options)


def test_statuses() -> None:
    assert BreakerOptions().statuses() == frozenset(range(500, 600))
    assert BreakerOptions(failure_statuses=("500-502", 429, "503")).statuses() == {429, 500, 501, 502, 503}
    assert BreakerOptions(failure_statuses=()).statuses() == frozenset()


def test_a_password_does_not_show() -> None:
    assert "s3cret" not in repr(BreakerOptions(storage="redis://u:s3cret@h/0"))
