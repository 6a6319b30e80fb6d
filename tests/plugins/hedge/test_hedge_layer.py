"""The layer on the Scripted runtime: who was asked when, who was given up, what the caller got."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from netkit import Body, PoolTimeout, Request, Response, TransportError, Verdict
from netkit.errors import FailureKind, PluginError
from netkit.events import HedgeSent

RESET = TransportError("reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS)


def test_the_second_copy_wins_and_the_first_is_cancelled(rig: Any) -> None:
    rig = rig((60.0, 200), (0.5, 200))
    task = rig.start()
    rig.runtime.advance(0.99)
    assert len(rig.sent) == 1
    rig.runtime.advance(0.01)
    assert len(rig.sent) == 2
    rig.runtime.advance(0.5)
    response = task.result()
    assert (response.extensions["number"], response.extensions["hedged"]) == (1, True)
    assert rig.cancelled == [0]
    assert rig.sent[1].extensions["avoid_endpoints"] == ("replica-0",)
    assert rig.stats == (1, 1, 1, 0)
    assert [type(event) for event in rig.events] == [HedgeSent]
    assert rig.events[0].origin == "http://h"
    assert all(each.done() for each in rig.runtime.tasks)


def test_an_answer_in_time_is_not_hedged(rig: Any) -> None:
    rig = rig((0.9, 200))
    response = rig.call()
    assert response.extensions == {"number": 0}
    assert not response.body.ended
    assert rig.stats == (1, 0, 0, 0)


def test_the_first_copy_may_still_win(rig: Any) -> None:
    rig = rig((1.5, 200), (60.0, 200))
    response = rig.call()
    assert response.extensions == {"number": 0}
    assert rig.cancelled == [1]
    assert rig.stats == (1, 1, 0, 0)


def test_it_avoids_what_is_avoided_already_and_tells_outer_layers(rig: Any) -> None:
    rig, told = rig((60.0, 200), (0.5, 200)), []
    rig.call(avoid_endpoints=("other",), on_endpoint=told.append)
    assert rig.sent[1].extensions["avoid_endpoints"] == ("other", "replica-0")
    assert told == ["replica-0", "replica-1"]


@pytest.mark.parametrize("bad", [503, 500, 429, 404, 400, RESET, PluginError("mine")], ids=str)
def test_a_bad_second_copy_does_not_beat_a_first_one_that_runs(rig: Any, bad: Any) -> None:
    rig = rig((3.0, 200), (0.1, bad))
    assert rig.call().extensions == {"number": 0}
    assert all(answer.body.ended for answer in rig.answers if answer.status != 200)
    assert rig.stats == (1, 1, 0, 0)


@pytest.mark.parametrize("bad", [503, 500, 429, RESET], ids=str)
def test_a_first_copy_that_fails_waits_for_the_second(rig: Any, bad: Any) -> None:
    rig = rig((1.2, bad), (1.0, 200))
    assert rig.call().extensions == {"number": 1, "hedged": True}
    assert all(answer.body.ended for answer in rig.answers if answer.status != 200)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_first_copys_refusal_is_the_answer(rig: Any, status: int) -> None:
    rig = rig((1.2, status), (60.0, 200))
    assert rig.call().status == status
    assert rig.cancelled == [1]


def test_both_bad_is_the_first_ones_outcome(rig: Any) -> None:
    for first, second in (((1.2, 503), (0.1, 500)), ((1.2, 503), (1.0, RESET))):
        one = rig(first, second)
        assert one.call().status == 503
        assert [answer.body.ended for answer in one.answers if answer.status == 500] in ([True], [])
    two = rig((1.2, RESET), (0.5, 503))
    with pytest.raises(TransportError, match="reset"):
        two.call()
    assert two.answers[0].body.ended


@pytest.mark.parametrize("bad", [503, RESET], ids=str)
def test_a_failure_before_the_delay_goes_up_at_once(rig: Any, bad: Any) -> None:
    rig = rig((0.2, bad))
    task = rig.start()
    rig.runtime.advance(0.2)
    assert task.done()
    rig.runtime.advance(60.0)
    assert len(rig.sent) == 1


@pytest.mark.parametrize(
    "call",
    [
        {"url": "http://h/v1/chat/completions"},
        {"body": Body.one_shot([b"x"])},
        {"body": Body.reopenable(lambda: [b"x"])},
        {"method": "PUT", "url": "http://h/x"},
        {"method": "DELETE", "url": "http://h/x"},
        {"method": "TRACE", "url": "http://h/x"},
    ],
    ids=str,
)
def test_what_must_not_run_twice_is_not_hedged(rig: Any, call: dict[str, Any]) -> None:
    rig = rig((60.0, 200))
    assert rig.call(**call).status == 200
    assert len(rig.sent) == 1
    assert rig.stats == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({}, {"method": "GET", "url": "http://h/x"}),
        ({}, {"url": "http://h/v1/chat/completions", "pure": True}),
        ({"idempotent": True}, {"method": "PUT", "url": "http://h/x"}),
        ({"routes": ("/mine",)}, {"url": "http://h/mine"}),
    ],
    ids=str,
)
def test_what_may_run_twice_is(rig: Any, options: dict[str, Any], call: dict[str, Any]) -> None:
    rig = rig((60.0, 200), (0.5, 200), **options)
    assert rig.call(**call).extensions["hedged"] is True


def test_nothing_off_or_excluded(rig: Any) -> None:
    for options in ({"max_extra_load": 0.0}, {"safe_methods": False}):
        one = rig((60.0, 200), **options)
        one.call(method="GET", url="http://h/x")
        assert one.stats == (0, 0, 0, 0)


def test_at_most_one_copy_per_twenty_calls(rig: Any) -> None:
    rig = rig((2.0, 200), max_extra_load=0.05)
    for number in range(1, 401):
        rig.call()
        assert len(rig.sent) - number <= number * 0.05
    assert rig.stats == (400, 20, 0, 380)


def test_budgets_are_per_origin(rig: Any) -> None:
    rig = rig((2.0, 200), max_extra_load=0.5)
    rig.call(url="http://a/embed")
    rig.call(url="http://b/embed")
    assert len(rig.sent) == 2
    rig.call(url="http://a/v1/embeddings")
    assert len(rig.sent) == 4


def test_a_percentile_needs_samples_and_has_a_floor(rig: Any) -> None:
    rig = rig((0.001, 200), delay="p95", min_samples=30, min_delay=0.25)
    for _ in range(30):
        rig.call()
    rig.script = [(60.0, 200), (0.0, 200)]
    task = rig.start()
    rig.runtime.advance(0.24)
    assert len(rig.sent) == 31
    rig.runtime.advance(0.02)
    assert task.result().extensions["hedged"] is True


def test_before_enough_samples_nothing_is_hedged(rig: Any) -> None:
    rig = rig((0.1, 200), delay="p95", min_samples=30)
    for _ in range(29):
        rig.call()
    rig.script = [(60.0, 200)]
    rig.call()
    assert len(rig.sent) == 30


def test_routes_have_their_own_percentile(rig: Any) -> None:
    rig = rig((0.1, 200), delay="p95", min_samples=10)
    for _ in range(10):
        rig.call(url="http://h/embed?x=1")
    rig.script = [(5.0, 200)]
    rig.call(url="http://h/rerank")
    assert len(rig.sent) == 11
    rig.call(url="http://h/embed?x=2")
    assert len(rig.sent) == 13


def test_a_first_copy_that_lost_counts_as_slow(rig: Any) -> None:
    """Else each copy that wins would make the percentile shorter."""
    rig = rig((1.0, 200), delay="p50", min_samples=5, min_delay=0.0)
    for _ in range(5):
        rig.call()
    for _ in range(32):
        rig.script = [(60.0, 200), (0.5, 200)]
        rig.call()
    (target,) = rig.layer._targets.values()
    assert target.times.percentile(1) >= 0.5
    assert max(target.times._last) == pytest.approx(1.5)


def steps(rig: Any, *script: Any) -> int:
    one = rig(*script)
    task = one.start()
    one.runtime.run_to_end()
    task.result()
    return int(task.steps)


@pytest.mark.parametrize(
    "script", [((5.0, 200), (1.0, 200)), ((1.5, 200), (60.0, 200)), ((1.5, 503), (1.0, 200))], ids=str
)
def test_cancelled_at_every_wait_both_copies_go(rig: Any, script: Any) -> None:
    for step in range(steps(rig, *script) + 1):
        one = rig(*script)
        task = one.start(cancel_at=step)
        one.runtime.run_to_end(limit=4.0)
        assert task.cancelled or step == steps(rig, *script)
        assert all(each.done() for each in one.runtime.tasks)
        if task.cancelled:
            assert all(answer.body.ended for answer in one.answers)
            assert len(one.cancelled) + len(one.answers) == len(one.sent)
        one.script = [(0.1, 200)]
        assert one.call().status == 200


def test_cancelled_between_the_answer_and_hearing_of_it(rig: Any) -> None:
    rig = rig((0.5, 200))
    task = rig.start()
    rig.runtime.advance(0.4)

    async def cancel() -> None:
        await rig.runtime.sleep(0.1)
        task.cancel()

    # After the copy's timer, and before the caller's step.
    rig.runtime.task(cancel(), name="cancel")
    rig.runtime.advance(0.2)
    assert task.cancelled
    assert [answer.body.ended for answer in rig.answers] == [True]


def test_an_answer_that_nobody_wants_any_more_is_thrown_away(rig: Any) -> None:
    """What cannot be cancelled in time: both answer at the same moment."""
    rig = rig((2.0, 200), (1.0, 200))
    response = rig.call()
    assert len(rig.answers) == 2
    assert sorted(answer.body.ended for answer in rig.answers) == [False, True]
    assert not response.body.ended


def test_a_copy_that_is_cut_short_from_outside_is_no_endless_wait(rig: Any) -> None:
    rig = rig((60.0, 200))
    task = rig.start()
    rig.runtime.advance(0.5)
    next(each for each in rig.runtime.tasks if each.name == "hedge").cancel()
    rig.runtime.run()
    with pytest.raises(TransportError, match="cut short"):
        task.result()


class Limiter:
    """An `Admission` that makes the second copy wait."""

    def __init__(self, runtime: Any, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.runtime, self.seconds, self.error = runtime, seconds, error
        self.told: list[Any] = []
        self.admitted = 0

    async def again(self) -> None:
        await self.runtime.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        self.admitted += 1

    async def failed(self, response: Response | None, error: TransportError | None) -> None:
        assert response is None or not response.body.ended
        self.told.append(response.status if response is not None else error)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (((60.0, 200), (1.0, 200)), [None]),
        (((2.5, 200), (60.0, 200)), [None]),
        (((2.5, 200), (0.1, 503)), [503]),
        (((2.1, RESET), (1.0, 200)), [RESET]),
        (((2.5, 503), (0.1, RESET)), [RESET]),
        (((0.5, 200),), []),
    ],
    ids=str,
)
def test_a_limiter_is_asked_for_the_second_and_told_of_the_loser(rig: Any, script: Any, told: Any) -> None:
    rig = rig(*script)
    limiter = Limiter(rig.runtime, 1.0)
    rig.call(admission=limiter)
    assert limiter.told == told
    assert limiter.admitted == len(rig.sent) - 1


def test_no_turn_for_the_second_leaves_the_first_alone(rig: Any) -> None:
    rig = rig((5.0, 200))
    limiter = Limiter(rig.runtime, 1.0, PoolTimeout("no turn"))
    assert rig.call(admission=limiter).status == 200
    assert len(rig.sent) == 1
    assert limiter.told == []
    assert rig.stats == (1, 0, 0, 0)


def test_the_first_ends_while_the_second_waits_for_its_turn(rig: Any) -> None:
    rig = rig((1.5, 200))
    limiter = Limiter(rig.runtime, 30.0)
    assert rig.call(admission=limiter).status == 200
    assert len(rig.sent) == 1
    assert (limiter.told, limiter.admitted) == ([], 0)
    assert rig.runtime.now() < 1010.0


def test_no_more_threads(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig((60.0, 200))

    def none_left(coroutine: Any, *, name: str, context: Any = None) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rig.runtime, "spawn", none_left)
    assert rig.call().status == 200
    assert len(rig.sent) == 1


def test_no_more_threads_for_the_second(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig((1.5, 503))
    spawn = rig.runtime.spawn

    def one_left(coroutine: Any, *, name: str, context: Any = None) -> Any:
        monkeypatch.setattr(rig.runtime, "spawn", none_left)
        return spawn(coroutine, name=name, context=context)

    def none_left(coroutine: Any, *, name: str, context: Any = None) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rig.runtime, "spawn", one_left)
    assert rig.call().status == 503


def test_after_a_fork_it_starts_afresh(rig: Any) -> None:
    rig = rig((2.0, 200))
    rig.call()
    lock = rig.layer._lock
    lock.acquire()
    rig.layer.after_fork_in_child()
    lock.release()
    assert rig.call().status == 200


def test_cancellation_passes(rig: Any) -> None:
    rig = rig((60.0, 200))
    task = rig.start()
    rig.runtime.advance(2.0)
    task.cancel()
    rig.runtime.run()
    with pytest.raises(asyncio.CancelledError):
        task.result()
    assert sorted(rig.cancelled) == [0, 1]


def test_requests_are_not_changed_in_any_other_way(rig: Any) -> None:
    rig = rig((60.0, 200), (0.5, 200))
    rig.call(tenant="a")
    first, second = rig.sent
    assert isinstance(first, Request)
    for name in ("method", "url", "body", "timeout"):
        assert getattr(first, name) is getattr(second, name)
    assert first.extensions["tenant"] == second.extensions["tenant"] == "a"
