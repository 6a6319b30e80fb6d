"""The layer on the Scripted runtime: what the server sees, what the caller gets, when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from netkit_plugins.breaker import layer as layer_module

from netkit import Response, TransportError, Verdict
from netkit.errors import BodyClosed, CircuitOpen, FailureKind
from netkit.events import CircuitClosed, CircuitHalfOpen, CircuitOpened

RESET = TransportError("reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS)


def refused(task: Any) -> CircuitOpen:
    with pytest.raises(CircuitOpen) as caught:
        task.result()
    return caught.value


def open_and_wait(rig: Any, seconds: float = 1.1) -> None:
    rig.call()
    assert rig.circuit().state == "open"
    rig.runtime.advance(seconds)


def test_failures_open_it_and_the_server_is_left_alone(rig: Any) -> None:
    rig = rig(RESET, fail_max=3)
    for _ in range(3):
        with pytest.raises(TransportError, match="reset"):
            rig.call().result()
    error = refused(rig.call())
    assert rig.seen == 3
    assert 30 <= error.retry_after <= 33
    assert error.details["circuit"] == "http://h"
    assert rig.circuit().opened_total == 1
    assert rig.circuit().rejected == 1
    assert [type(event) for event in rig.events] == [CircuitOpened]
    assert rig.events[0].reason == "failures"


@pytest.mark.parametrize("status", [500, 503, 599])
def test_statuses_count_when_their_head_arrives(rig: Any, status: int) -> None:
    rig = rig(status, fail_max=2)
    tasks = [rig.start(), rig.start()]
    rig.runtime.run()
    assert not any(task.result().body.ended for task in tasks)
    refused(rig.call())


@pytest.mark.parametrize("status", [200, 302, 400, 404, 422, 429])
def test_other_statuses_do_not_count(rig: Any, status: int) -> None:
    rig = rig(status, fail_max=1)
    for _ in range(5):
        assert rig.call().result().status == status
    assert rig.circuit().state == "closed"


def test_429_counts_where_it_is_listed(rig: Any) -> None:
    rig = rig(429, fail_max=1, failure_statuses=(429,))
    rig.call()
    refused(rig.call())


def test_a_failure_in_the_body_counts_when_it_happens(rig: Any) -> None:
    answers = [Response.of(200) for _ in range(3)]
    rig = rig(*answers, 200, fail_max=3)
    for _ in answers:
        rig.start()
    rig.runtime.run()
    assert rig.circuit().failures == 0
    for answer in answers:
        answer.body.end(ConnectionResetError())
    assert rig.circuit().state == "open"
    refused(rig.call())


def test_a_body_that_was_left_is_no_failure(rig: Any) -> None:
    answer = Response.of(200)
    rig = rig(answer, fail_max=1)
    rig.start()
    rig.runtime.run()
    answer.body.end(BodyClosed("enough"))
    assert rig.circuit().state == "closed"


@pytest.mark.parametrize("error", [ValueError("no URL"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_is_no_failure_of_an_exchange_does_not_count(rig: Any, error: BaseException) -> None:
    rig = rig(error, fail_max=1)
    with pytest.raises(type(error)):
        rig.call().result()
    assert rig.circuit().state == "closed"


def test_one_probe_passes_and_closes_it(rig: Any) -> None:
    rig = rig(RESET, 200, fail_max=1, reset_timeout=1.0)
    open_and_wait(rig)
    tasks = [rig.start() for _ in range(50)]
    rig.runtime.run()
    assert rig.seen == 2
    assert sum(1 for task in tasks[1:] if refused(task).retry_after > 0) == 49
    tasks[0].result().body.end()
    assert rig.circuit().state == "closed"
    assert rig.call().result().status == 200
    assert [type(event) for event in rig.events] == [CircuitOpened, CircuitHalfOpen, CircuitClosed]


@pytest.mark.parametrize("step", range(3))
def test_a_probe_cancelled_at_any_wait_gives_its_permit_back(rig: Any, step: int) -> None:
    rig = rig(RESET, 200, fail_max=1, reset_timeout=1.0)
    open_and_wait(rig)
    task = rig.start(cancel_at=step)
    rig.runtime.run()
    if task.cancelled:
        assert rig.circuit().in_use == 0
        assert rig.circuit().state in ("open", "half-open")
    else:
        task.result().body.end(asyncio.CancelledError())
        assert rig.circuit().in_use == 0
    assert rig.call().result().status == 200
    assert rig.circuit().state == "closed"


def test_a_probe_that_goes_on_talking_does_not_hold_the_others_up(rig: Any) -> None:
    stream = Response.of(200)
    rig = rig(RESET, stream, 200, fail_max=1, reset_timeout=1.0)
    open_and_wait(rig)
    rig.start()
    rig.runtime.run()
    stream.body.chunk(b"data: a\n\n")
    refused(rig.call())
    rig.runtime.advance(layer_module.TALKING)
    stream.body.chunk(b"data: b\n\n")
    assert rig.circuit().state == "closed"
    assert rig.call().result().status == 200
    # What it comes to in the end is one more failure, not the probe's.
    stream.body.end(ConnectionResetError())
    assert rig.circuit().state == "closed"


def test_a_probe_that_falls_silent_after_its_head_loses_its_place(rig: Any) -> None:
    rig = rig(RESET, Response.of(200), 200, fail_max=1, reset_timeout=1.0)
    open_and_wait(rig)
    rig.start()
    rig.runtime.run()
    refused(rig.call())
    rig.runtime.advance(30.0)
    assert rig.call().result().status == 200
    assert rig.circuit().state == "closed"


def test_a_failed_probe_opens_it_again(rig: Any) -> None:
    rig = rig(RESET, 503, 200, fail_max=1, reset_timeout=1.0)
    open_and_wait(rig)
    assert rig.call().result().status == 503
    refused(rig.call())
    rig.runtime.advance(1.1)
    refused(rig.call())
    rig.runtime.advance(1.2)
    assert rig.call().result().status == 200
    assert [event.reason for event in rig.events if isinstance(event, CircuitOpened)] == ["failures", "probe"]


@pytest.mark.parametrize(
    ("scope", "others"),
    [
        ("origin", ["http://h/other", "http://h/v1/embeddings?a=1", "http://u:p@h/x"]),
        ("route", ["http://h/v1/embeddings?a=1"]),
    ],
)
def test_what_shares_a_circuit(rig: Any, scope: str, others: list[str]) -> None:
    rig = rig(503, fail_max=1, scope=scope)
    rig.call()
    for url in others:
        refused(rig.call(url))
    assert rig.call("http://other/").result().status == 503
    assert all("p@" not in name and "?" not in name for name in rig.layer.stats())


def test_routes_have_circuits_of_their_own(rig: Any) -> None:
    rig = rig(503, fail_max=1, scope="route")
    rig.call("http://h/a")
    assert rig.call("http://h/b").result().status == 503
    refused(rig.call("http://h/a?x=1"))
    assert set(rig.layer.stats()) == {"http://h/a", "http://h/b"}


def test_the_endpoint_that_a_balancer_chose_has_its_own(rig: Any) -> None:
    rig = rig(503, fail_max=1)
    rig.call(endpoint="replica-1")
    refused(rig.call(endpoint="replica-1"))
    assert rig.call(endpoint="replica-2").result().status == 503
    assert rig.call().result().status == 503
    assert set(rig.layer.stats()) == {"replica-1", "replica-2", "http://h"}


def test_the_number_of_circuits_is_bounded_and_open_ones_stay(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_module, "MAX_CIRCUITS", 16)
    rig = rig(503, 200, fail_max=1, scope="route")
    rig.call("http://h/down")
    for number in range(200):
        rig.call(f"http://h/{number}")
    assert len(rig.layer.stats()) <= 16
    refused(rig.call("http://h/down"))


def test_a_listener_that_raises_changes_nothing(rig: Any) -> None:
    def bad(_: Any) -> None:
        raise RuntimeError("listener")

    rig = rig(RESET, 200, fail_max=1, reset_timeout=1.0)
    rig.emit.add(bad)
    open_and_wait(rig)
    assert rig.call().result().status == 200
    assert rig.circuit().state == "closed"


def test_stats_while_open(rig: Any) -> None:
    rig = rig(RESET, fail_max=1, reset_timeout=10.0)
    rig.call()
    rig.runtime.advance(4.0)
    assert 6.0 <= rig.circuit().next_probe <= 7.0
    assert rig.circuit().state == "open"


def test_a_forked_child_starts_afresh(rig: Any) -> None:
    rig = rig(RESET, 200, fail_max=1)
    rig.call()
    rig.layer._lock.acquire()
    rig.layer.after_fork_in_child()
    assert rig.call().result().status == 200


def test_calls_may_wait_for_the_circuit_to_close(rig: Any) -> None:
    rig = rig(RESET, 503, 200, fail_max=1, reset_timeout=1.0, wait=10.0)
    rig.call()
    tasks = [rig.start() for _ in range(20)]
    rig.runtime.advance(2.0)
    # The first probe has failed, and nobody else was let through.
    assert rig.seen == 2
    assert sum(task.done() for task in tasks) == 1
    rig.runtime.advance(2.0)
    assert rig.seen == 3
    (probe,) = [task for task in tasks if task.done() and task.result().status == 200]
    probe.result().body.end()
    assert rig.circuit().state == "closed"
    rig.runtime.run_to_end()
    assert sorted(task.result().status for task in tasks) == [200] * 19 + [503]


def test_who_waits_too_long_is_refused(rig: Any) -> None:
    rig = rig(RESET, fail_max=1, reset_timeout=60.0, wait=2.0)
    rig.call()
    task = rig.start()
    rig.runtime.advance(1.9)
    assert not task.done()
    rig.runtime.advance(0.2)
    assert refused(task).retry_after > 50
    assert rig.seen == 1


def test_a_caller_that_leaves_while_it_waits_leaves_nothing(rig: Any) -> None:
    rig = rig(RESET, 200, fail_max=1, reset_timeout=60.0, wait=30.0)
    rig.call()
    task = rig.start()
    rig.runtime.run()
    task.cancel()
    rig.runtime.run()
    assert task.cancelled
    assert not rig.layer._circuits["http://h"].waiting


def test_the_number_of_waiting_calls_is_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_module, "MAX_WAITING", 3)
    rig = rig(RESET, fail_max=1, reset_timeout=60.0, wait=30.0)
    rig.call()
    tasks = [rig.start() for _ in range(5)]
    rig.runtime.run()
    assert sum(task.done() for task in tasks) == 2
