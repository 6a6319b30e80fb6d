"""The layer on the Scripted runtime: who goes when, what is held, what comes back."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
from netkit_plugins.limit import LimitOptions
from netkit_plugins.limit import layer as layer_module
from netkit_plugins.retry import RetryLayer, RetryOptions

from netkit import Body, Context, Headers, PoolTimeout, QueueFull, Request, Response, Timeout, TransportError, Verdict
from netkit.errors import BodyClosed, FailureKind
from netkit.events import ConcurrencyChanged, Emitter, LimitPaused, LimitRejected
from netkit.flow import compose
from netkit.plugins import Registry
from netkit.stats import Meter


def answer(status: int, *headers: tuple[str, str], content: bytes = b"") -> Callable[[], Response]:
    return lambda: Response.of(status, headers, content)


def fails(verdict: Verdict) -> TransportError:
    return TransportError("lost", kind=FailureKind.RESET, verdict=verdict)


def test_registration() -> None:
    registration = Registry(use_entry_points=False).get("limit")
    assert registration.kind == "layer"
    assert registration.implicit is None
    assert registration.request_headers == ()


def test_every_option_is_documented() -> None:
    text = inspect.getdoc(LimitOptions) or ""
    assert all(name in text for name in LimitOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    "options",
    [
        {"requests_per_second": 0.0},
        {"requests_per_second": float("nan")},
        {"tokens_per_minute": -1.0},
        {"burst": 0, "requests_per_second": 1.0},
        {"burst": 5},
        {"concurrency": 0},
        {"concurrency": "adaptiv"},
        {"max_queue": -1},
        {"acquire_timeout": -1.0},
        {"acquire_timeout": float("inf")},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        LimitOptions(**options)


def test_without_limits_nobody_waits(rig: Any) -> None:
    rig = rig()
    tasks = [rig.start() for _ in range(100)]
    rig.runtime.run()
    assert all(task.done() for task in tasks)
    assert rig.stats.in_use == 100
    for response in rig.open:
        response.body.end()
    assert rig.stats == type(rig.stats)()


def test_a_rate_spaces_calls_in_the_order_of_asking(rig: Any) -> None:
    rig = rig(LimitOptions(requests_per_second=10.0, burst=2))
    for number in range(6):
        rig.start(extensions={"n": number})
    rig.runtime.run()
    assert rig.stats.queued == 4
    rig.runtime.run_to_end()
    assert rig.times == [0.0, 0.0, 0.1, 0.2, 0.3, 0.4]
    assert [request.extensions["n"] for request in rig.seen] == list(range(6))
    assert rig.stats.queued == 0
    assert rig.stats.waited_total == pytest.approx(0.1 + 0.2 + 0.3 + 0.4)


def test_sessions_that_share_a_rate_take_turns(rig: Any) -> None:
    options = LimitOptions(requests_per_second=1.0)
    first = rig(options)
    second = rig(options, runtime=first.runtime)
    second.layer._own_store = first.layer._own_store
    for _ in range(3):
        first.start()
        second.start()
    first.runtime.run_to_end()
    assert first.times == [0.0, 2.0, 4.0]
    assert second.times == [1.0, 3.0, 5.0]


def test_concurrency_lasts_until_the_body_has_ended(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency=2))
    tasks = [rig.start() for _ in range(3)]
    rig.runtime.run()
    assert [task.done() for task in tasks] == [True, True, False]
    rig.open[0].body.release()
    rig.runtime.run()
    assert not tasks[2].done()
    rig.open[0].body.end()
    rig.runtime.run()
    assert tasks[2].done()
    assert (rig.stats.in_use, rig.stats.concurrency) == (2, 2)
    for response in rig.open:
        response.body.end()
    assert rig.stats.in_use == 0


@pytest.mark.parametrize("end", [None, BodyClosed("left"), fails(Verdict.PROCESSED)])
def test_every_end_of_a_body_frees_the_place(rig: Any, end: BaseException | None) -> None:
    rig = rig(LimitOptions(concurrency=1))
    rig.start()
    rig.runtime.run()
    rig.open[0].body.end(end)
    rig.open[0].body.end(end)
    assert rig.stats.in_use == 0


@pytest.mark.parametrize("error", [fails(Verdict.AMBIGUOUS), fails(Verdict.NOT_SENT), ValueError("bug")])
def test_a_failure_frees_the_place(rig: Any, error: Exception) -> None:
    rig = rig(LimitOptions(concurrency=1), error)
    failing, second = rig.start(), rig.start()
    rig.runtime.run()
    with pytest.raises(type(error)) as caught:
        failing.result()
    assert caught.value is error
    assert second.done()
    assert rig.stats.in_use == 1


def test_a_call_that_was_not_sent_costs_nothing(rig: Any) -> None:
    rig = rig(LimitOptions(requests_per_second=1.0), fails(Verdict.NOT_SENT), fails(Verdict.AMBIGUOUS))
    for _ in range(3):
        rig.start()
        rig.runtime.run_to_end()
    assert rig.times == [0.0, 0.0, 1.0]


def test_a_full_queue_refuses_at_once(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency=1, max_queue=2))
    tasks = [rig.start() for _ in range(4)]
    rig.runtime.run()
    with pytest.raises(QueueFull, match=r"2 callers wait to call http://h already \(limit.max_queue\)"):
        tasks[3].result()
    assert (rig.stats.queued, rig.stats.rejected) == (2, 1)
    assert [(e.origin, e.reason) for e in rig.events if isinstance(e, LimitRejected)] == [("http://h", "queue")]


def test_nobody_waits_where_the_queue_is_zero_and_the_rate_loses_nothing(rig: Any) -> None:
    rig = rig(LimitOptions(requests_per_second=1.0, max_queue=0))
    tasks = [rig.start() for _ in range(5)]
    rig.runtime.run()
    assert [task.done() and not task.cancelled for task in tasks] == [True] * 5
    assert rig.stats.rejected == 4
    rig.runtime.advance(1.0)
    rig.start()
    rig.runtime.run()
    assert rig.times == [0.0, 1.0]


@pytest.mark.parametrize(
    ("option", "caller", "seconds"), [(2.0, None, 2.0), (None, 3.0, 3.0), (2.0, 3.0, 2.0), (3.0, 2.0, 2.0)]
)
def test_a_wait_ends_in_time(rig: Any, option: float | None, caller: float | None, seconds: float) -> None:
    rig = rig(LimitOptions(concurrency=1, acquire_timeout=option))
    rig.start()
    waiting = rig.start(timeout=Timeout(pool=caller))
    rig.runtime.run()
    assert waiting.waiting == f"event or {seconds:g}"
    rig.runtime.advance(seconds)
    with pytest.raises(PoolTimeout, match=f"no turn to call http://h within {seconds:g} s: 1 under way, 1 waiting"):
        waiting.result()
    assert (rig.stats.queued, rig.stats.timeouts) == (0, 1)
    assert [e.reason for e in rig.events if isinstance(e, LimitRejected)] == ["timeout"]


def test_a_waiter_that_leaves_hands_its_turn_on(rig: Any) -> None:
    rig = rig(LimitOptions(requests_per_second=1.0))
    first, second, third = rig.start(), rig.start(), rig.start()
    rig.runtime.run()
    second.cancel()
    rig.runtime.run_to_end()
    assert first.done()
    assert third.done()
    # The turn that was reserved for the second is the third's.
    assert rig.times == [0.0, 1.0]


def test_cancelled_at_every_wait_it_leaks_nothing(rig: Any) -> None:
    for step in range(12):
        mine = rig(LimitOptions(requests_per_second=1.0, concurrency=1))
        mine.start()
        victim, last = mine.start(cancel_at=step), mine.start()
        mine.runtime.run()
        for _ in range(8):
            mine.runtime.advance(1.0)
            for response in mine.open:
                response.body.end()
        mine.runtime.run_to_end()
        assert last.result().status == 200
        for response in mine.open:
            response.body.end()
        assert (mine.stats.in_use, mine.stats.queued) == (0, 0)
        assert mine.lane().unanswered == 0
        if not victim.cancelled:
            return
    pytest.fail("never came to its end")


def test_the_urgent_go_first_and_equals_in_order(rig: Any) -> None:
    rig = rig(LimitOptions(requests_per_second=1.0))
    for name, priority in [
        ("a", None),
        ("b", None),
        ("c", "u=1"),
        ("d", "5"),
        ("e", "u=1, i"),
        ("f", "?"),
        ("g", "-2"),
    ]:
        headers = Headers([("Priority", priority)] if priority else [])
        rig.start(headers=headers, extensions={"n": name})
    rig.runtime.run_to_end()
    assert "".join(request.extensions["n"] for request in rig.seen) == "agcebfd"
    assert rig.times == [float(second) for second in range(7)]
    assert rig.seen[2].headers["priority"] == "u=1"


def test_keys_do_not_wait_for_each_other(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency=1))
    rig.start()
    others = [
        rig.start(model="n"),
        rig.start(headers=Headers([("Authorization", "Bearer other")])),
        rig.start(url="http://i/v1/chat/completions"),
    ]
    same = rig.start()
    rig.runtime.run()
    assert all(task.done() for task in others)
    assert not same.done()


def test_a_429_pauses_all_once_and_they_come_back_one_by_one(rig: Any) -> None:
    rig = rig(LimitOptions(), *[answer(429, ("retry-after", "2"))] * 10)
    for _ in range(10):
        rig.start()
    rig.runtime.run()
    for _ in range(40):
        rig.start()
    rig.runtime.run()
    assert len(rig.seen) == 10
    assert rig.stats.paused == pytest.approx(2.0)
    assert [(e.seconds, e.reason) for e in rig.events if isinstance(e, LimitPaused)] == [(2.0, "429")]
    assert rig.stats.pauses == 1
    rig.runtime.run_to_end()
    late = rig.times[10:]
    assert len(late) == 40
    assert min(late) == 2.0
    assert sum(moment < 2.05 for moment in late) <= 6
    assert max(late) < 3.0


def test_a_refused_probe_pauses_again_and_nobody_else_is_refused(rig: Any) -> None:
    refused = answer(429, ("retry-after-ms", "500"))
    rig = rig(LimitOptions(), *[refused] * 3)
    rig.start()
    rig.runtime.run()
    for _ in range(20):
        rig.start()
    rig.runtime.run_to_end()
    assert rig.times[:4] == [0.0, 0.5, 1.0, 1.5]
    assert [response.status for response in rig.open].count(429) == 3
    assert rig.stats.pauses == 3


def test_a_permanent_429_pauses_nobody(rig: Any) -> None:
    rig = rig(LimitOptions(), lambda: Response.of(429, permanent=True))
    rig.start()
    rig.runtime.run()
    rig.start()
    rig.runtime.run()
    assert len(rig.seen) == 2
    assert rig.stats.pauses == 0


def test_a_429_without_a_time_pauses_for_a_second(rig: Any) -> None:
    rig = rig(LimitOptions(), 429)
    rig.start()
    rig.runtime.run()
    rig.start()
    rig.runtime.run_to_end()
    assert rig.times == [0.0, 1.0]


def test_the_reset_of_the_headers_is_a_429s_time(rig: Any) -> None:
    spent = (("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "7s"))
    rig = rig(LimitOptions(), answer(429, *spent))
    rig.start()
    rig.runtime.run()
    rig.start()
    rig.runtime.run_to_end()
    assert rig.times == [0.0, 7.0]


def test_nothing_left_pauses_before_anybody_is_refused(rig: Any) -> None:
    spent = (("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "250ms"))
    rig = rig(LimitOptions(), answer(200, *spent))
    rig.start()
    rig.runtime.run()
    for _ in range(20):
        rig.start()
    rig.runtime.run_to_end()
    assert rig.times[1] == 0.25
    assert sum(moment < 0.3 for moment in rig.times[1:]) <= 6
    assert [(e.seconds, e.reason) for e in rig.events if isinstance(e, LimitPaused)] == [(0.25, "x-ratelimit")]


def test_no_tokens_left_pauses_too(rig: Any) -> None:
    spent = (("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "2s"))
    rig = rig(LimitOptions(), answer(200, *spent))
    rig.start()
    rig.runtime.run()
    rig.start()
    rig.runtime.run_to_end()
    assert rig.times == [0.0, 2.0]
    assert [e.reason for e in rig.events if isinstance(e, LimitPaused)] == ["x-ratelimit"]


def test_a_call_larger_than_the_tokens_left_waits_for_the_reset(rig: Any) -> None:
    left = (("x-ratelimit-remaining-tokens", "100"), ("x-ratelimit-reset-tokens", "2s"))
    rig = rig(LimitOptions(), answer(200, *left))
    rig.start()
    rig.runtime.run()
    small = rig.start(body=Body.of(b'{"model": "m", "max_tokens": 50}'))
    rig.runtime.run()
    assert small.done()
    rig.start(body=Body.of(b'{"model": "m", "max_tokens": 51}'))
    rig.runtime.run_to_end()
    assert rig.times == [0.0, 0.0, 2.0]


def test_what_was_under_way_before_a_pause_does_not_hold_the_way_back(rig: Any) -> None:
    rig = rig(LimitOptions(), *[200] * 3)
    held = rig.runtime.event()

    async def slow(request: Any) -> Response:
        await held.wait()
        return Response.of(200)

    for _ in range(5):
        rig.runtime.task(rig.layer(Request("POST", "http://h/", body=Body.of(b'{"model": "m"}')), slow))
    rig.script = [answer(429, ("retry-after", "1"))]
    rig.start()
    rig.runtime.run()
    last = rig.start()
    rig.runtime.advance(1.0)
    assert last.done()
    held.set()
    rig.runtime.run_to_end()


def test_no_more_go_than_the_server_says_are_left(rig: Any) -> None:
    rig = rig(LimitOptions(), answer(200, ("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "5")))
    rig.start()
    rig.runtime.run()
    for _ in range(5):
        rig.start()
    rig.runtime.run()
    assert len(rig.seen) == 4
    rig.runtime.run_to_end()
    assert rig.times[4:] == [5.0, 5.0]


@pytest.mark.parametrize("value", ["", "-1", "many", "1e9", "nan"])
def test_headers_that_cannot_be_read_were_not_sent(rig: Any, value: str) -> None:
    rig = rig(LimitOptions(), answer(200, ("x-ratelimit-remaining", value), ("x-ratelimit-reset", value)))
    rig.start()
    rig.runtime.run()
    rig.start()
    rig.runtime.run()
    assert len(rig.seen) == 2


CHAT = Body.of(b'{"model": "m", "prompt": "12345678", "max_tokens": 598}')


def test_tokens_are_reserved_and_settled_by_usage(rig: Any) -> None:
    rig = rig(LimitOptions(tokens_per_minute=600.0), answer(200, content=b'{"usage": {"total_tokens": 100}}'))
    rig.start(body=CHAT)
    rig.runtime.run()
    second = rig.start(body=CHAT)
    rig.runtime.run()
    assert not second.done()
    body = rig.open[0].body
    body.chunk(body.content)
    body.end()
    second.cancel()
    third = rig.start(body=Body.of(b'{"model": "m", "max_tokens": 500}'))
    rig.runtime.run()
    assert third.done()
    assert rig.times == [0.0, 0.0]


def test_a_stream_passes_unchanged_and_its_last_event_settles(rig: Any) -> None:
    rig = rig(LimitOptions(tokens_per_minute=600.0))
    rig.start(body=CHAT)
    rig.runtime.run()
    body = rig.open[0].body
    events = [b'data: {"choices": []}\n\n', b'data: {"usage": {"total_tokens": 2}}\n\n', b"data: [DONE]\n\n"]
    assert [body.chunk(event) for event in events] == events
    body.end()
    rig.start(body=Body.of(b'{"model": "m", "max_tokens": 590}'))
    rig.runtime.run()
    assert rig.times == [0.0, 0.0]


def test_a_refused_call_costs_no_tokens(rig: Any) -> None:
    rig = rig(LimitOptions(tokens_per_minute=600.0), 400)
    for _ in range(2):
        rig.start(body=CHAT)
        rig.runtime.run()
    assert rig.times == [0.0, 0.0]


def test_without_a_token_rate_no_body_is_watched(rig: Any) -> None:
    rig = rig(LimitOptions())
    rig.start(body=CHAT)
    rig.runtime.run()
    assert rig.open[0].body._on_chunk == []


def test_the_adaptive_number_halves_on_503_and_is_told(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency="adaptive"), 503)
    assert rig.stats.concurrency == 10
    rig.start()
    rig.runtime.run()
    assert rig.stats.concurrency == 5
    assert [(e.limit, e.reason) for e in rig.events if isinstance(e, ConcurrencyChanged)] == [(5, "503")]


def test_two_limiters_each_have_their_say_in_a_retry(rig: Any) -> None:
    first = rig(LimitOptions(concurrency=1), 429)
    second = rig(LimitOptions(concurrency=1), runtime=first.runtime)
    retry = RetryLayer(
        RetryOptions(jitter="none", budget_min_per_second=1000.0),
        Context(runtime=first.runtime, emit=Emitter(), stack="scripted", meter=Meter()),
    )
    send = compose([first.layer, second.layer, retry], first.send)
    task = first.runtime.task(send(Request("GET", "http://h/")))
    first.runtime.run()
    assert not task.done()
    assert [(each.stats.in_use, each.stats.pauses) for each in (first, second)] == [(0, 1), (0, 1)]
    first.runtime.run_to_end()
    assert [each.stats.in_use for each in (first, second)] == [1, 1]
    task.result().body.end()
    assert [each.stats.in_use for each in (first, second)] == [0, 0]


class _Below:
    """A retry layer under the limiter."""

    def __init__(self, rig: Any, **options: Any) -> None:
        self.rig = rig
        context = Context(runtime=rig.runtime, emit=Emitter(), stack="scripted", meter=Meter())
        retry = RetryLayer(RetryOptions(jitter="none", budget_min_per_second=1000.0, **options), context)
        self.send = compose([rig.layer, retry], rig.send)

    def start(self, **details: Any) -> Any:
        request = Request("POST", "http://h/v1/embeddings", body=Body.of(b'{"model": "m"}')).replace(**details)
        return self.rig.runtime.task(self.send(request))


def test_a_retry_waits_its_turn_and_pays(rig: Any) -> None:
    rig = rig(LimitOptions(requests_per_second=1.0), 503)
    chain = _Below(rig)
    first = chain.start(extensions={"n": 1})
    for number in (2, 3, 4):
        chain.start(extensions={"n": number})
    rig.runtime.run_to_end()
    assert first.result().status == 200
    # The backoff is over at 0.5 s; its next turn is that of 1 s, before those who came later.
    assert [request.extensions["n"] for request in rig.seen] == [1, 1, 2, 3, 4]
    assert rig.times == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_retry_gives_its_place_away_while_it_backs_off(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency=1), 503)
    chain = _Below(rig)
    first, second = chain.start(extensions={"n": 1}), chain.start(extensions={"n": 2})
    rig.runtime.run()
    assert second.done()
    assert not first.done()
    rig.runtime.advance(10.0)
    assert not first.done()
    rig.open[1].body.end()
    rig.runtime.run()
    assert first.result().status == 200
    assert [request.extensions["n"] for request in rig.seen] == [1, 2, 1]
    rig.open[2].body.end()
    assert (rig.stats.in_use, rig.lane().unanswered) == (0, 0)


def test_c51_a_429_under_retry_pauses_everybody_and_all_succeed(rig: Any) -> None:
    rig = rig(LimitOptions(), *[200] * 10, *[answer(429, ("retry-after", "1"))] * 10)
    chain = _Below(rig, attempts=3)
    tasks = [chain.start() for _ in range(20)]
    rig.runtime.run()
    tasks += [chain.start() for _ in range(80)]
    rig.runtime.run_to_end()
    assert [task.result().status for task in tasks] == [200] * 100
    assert len(rig.seen) == 110
    late = rig.times[20:]
    assert min(late) == 1.0
    assert sum(moment < 1.05 for moment in late) <= 10
    assert rig.stats.pauses == 1


def test_a_retry_whose_turn_does_not_come_holds_nothing(rig: Any) -> None:
    rig = rig(LimitOptions(), answer(429, ("retry-after", "30")))
    chain = _Below(rig)
    task = chain.start()
    rig.runtime.run()
    task.cancel()
    rig.runtime.run_to_end()
    assert task.cancelled
    assert (rig.stats.in_use, rig.stats.queued, rig.lane().unanswered) == (0, 0, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_with_nothing_in_use(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency=1))
    rig.start()
    rig.runtime.run()
    with rig.layer._lock, rig.lane()._lock:
        child = os.fork()
        if child == 0:
            task = rig.start()
            rig.runtime.run()
            rig.open[0].body.end()
            os._exit(0 if task.done() and rig.stats.in_use == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_lanes_without_traffic_are_forgotten(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_module, "MAX_LANES", 3)
    rig = rig(LimitOptions(concurrency=1))
    for model in "abcdef":
        rig.start(model=model)
        rig.runtime.run()
        if model != "a":
            rig.open[-1].body.end()
    assert len(rig.layer._lanes) <= 3
    assert rig.stats.in_use == 1


def test_an_answer_that_is_forgotten_frees_its_place(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency=1))
    request = Request("GET", "http://h/")

    async def forget() -> None:
        await rig.layer(request, rig.send)

    coroutine = forget()
    coroutine.send(None)
    coroutine.close()
    del coroutine
    gc.collect()
    assert (rig.stats.in_use, rig.stats.queued) == (0, 0)


def test_an_attempt_that_goes_after_its_call_has_ended_keeps_no_place(rig: Any) -> None:
    rig = rig(LimitOptions(concurrency=1))
    call = rig.start()
    rig.runtime.run()
    admission = rig.seen[0].extensions["admission"]
    copy = rig.runtime.task(admission.again())  # waits for the only place
    rig.runtime.run()
    assert (copy.done(), rig.stats.in_use) == (False, 1)
    # The body's end gives the place back, and the copy, which nobody waits for any more, takes it.
    call.result().body.end()
    rig.runtime.run()
    assert (copy.done(), rig.stats.in_use, rig.lane().unanswered) == (True, 0, 0)
    next_call = rig.start()
    rig.runtime.run()
    assert next_call.done()
