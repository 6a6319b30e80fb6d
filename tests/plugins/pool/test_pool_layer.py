"""The layer on the Scripted runtime: slots over the life of a response, waiting, leaving."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netkit_plugins.pool import PoolLayer, PoolOptions

from netkit import ConfigError, PoolTimeout, QueueFull, Timeout
from netkit.plugins import Registry
from netkit.pooling import PoolCounts
from netkit.stats import PoolStats

ONE = PoolOptions(max_connections=1)


def test_registration() -> None:
    registration = Registry(use_entry_points=False).get("pool")
    assert registration.kind == "transport"
    # Unasked, nobody is turned away whom the plain stack would have served.
    assert registration.implicit == PoolOptions(max_connections=None, acquire_timeout=None, max_queue=None)


@pytest.mark.parametrize(("stack", "limit"), [("requests", sys.maxsize), ("httpx", 100), ("aiohttp", 100)])
def test_without_a_number_the_stacks_own_limit_holds(rig: Any, stack: str, limit: int) -> None:
    layer = rig(PoolOptions(max_connections=None), stack=stack).layer
    assert layer._limit == limit


def test_a_slot_lasts_until_the_connection_is_free(rig: Any) -> None:
    rig = rig(ONE)
    first, second = rig.start(), rig.start()
    rig.runtime.run()
    assert first.done()
    assert second.waiting == "event or 1"
    rig.open[0].body.release()
    rig.runtime.run()
    assert second.done()
    rig.open[0].body.end()
    assert rig.queue.in_use == 1
    rig.open[1].body.end()
    assert rig.queue.in_use == 0


def test_a_failure_frees_the_slot(rig: Any) -> None:
    rig = rig(ONE)
    failing, second = rig.start(extensions={"fail": True}), rig.start()
    rig.runtime.run()
    with pytest.raises(ValueError):
        failing.result()
    assert second.done()
    assert rig.queue.in_use == 1


def test_waiting_ends_with_pool_timeout(rig: Any) -> None:
    rig = rig(PoolOptions(max_connections=1, acquire_timeout=2.5))
    rig.start("http://user:secret@h/a?token=b")
    late = rig.start("http://user:secret@h/a?token=b")
    rig.runtime.run()
    rig.runtime.advance(2.4)
    assert not late.done()
    rig.runtime.advance(0.2)
    with pytest.raises(PoolTimeout) as caught:
        late.result()
    assert str(caught.value) == "no connection to http://h became free within 2.5 s: 1 in use, 0 callers waiting"
    assert rig.layer.stats() == PoolStats(open=1, in_use=1, timeouts=1)


@pytest.mark.parametrize("given_timeout", [0.1, 30.0])
def test_the_callers_own_pool_timeout_wins(rig: Any, given_timeout: float) -> None:
    rig = rig(ONE)
    rig.start()
    late = rig.start(timeout=Timeout(pool=given_timeout))
    rig.runtime.run()
    rig.runtime.advance(given_timeout - 0.05)
    assert not late.done()
    rig.runtime.advance(0.1)
    assert late.done()


def test_without_limit_it_waits_and_with_zero_it_does_not(rig: Any) -> None:
    patient = rig(PoolOptions(max_connections=1, acquire_timeout=None))
    patient.start()
    late = patient.start()
    patient.runtime.run()
    patient.runtime.advance(100_000)
    assert late.waiting == "event"
    hasty = rig(PoolOptions(max_connections=1, acquire_timeout=0))
    hasty.start()
    late = hasty.start()
    hasty.runtime.run()
    with pytest.raises(PoolTimeout):
        late.result()


def test_a_full_queue_fails_at_once(rig: Any) -> None:
    rig = rig(PoolOptions(max_connections=1, max_queue=2))
    tasks = [rig.start() for _ in range(4)]
    rig.runtime.run()
    with pytest.raises(QueueFull):
        tasks[3].result()
    assert rig.layer.stats().queued == 2
    nobody = rig
    assert nobody.queue.in_use == 1


def test_served_in_the_order_of_asking(rig: Any) -> None:
    rig = rig(ONE)
    tasks = [rig.start() for _ in range(6)]
    rig.runtime.run()
    for number in range(6):
        assert [task.done() for task in tasks] == [True] * (number + 1) + [False] * (5 - number)
        rig.open[number].body.end()
        rig.runtime.run()


def test_a_grant_that_meets_a_timeout_is_used(rig: Any) -> None:
    rig = rig(ONE)
    rig.start()
    late = rig.start()
    rig.runtime.run()
    rig.runtime.timer(1.0, rig.open[0].body.end)
    rig.runtime.advance(1.0)
    rig.runtime.run_to_end()
    assert late.result().status == 200


def test_a_waiter_that_is_cancelled_with_its_grant_hands_it_on(rig: Any) -> None:
    rig = rig(ONE)
    rig.start()
    second, third = rig.start(), rig.start()
    rig.runtime.run()
    rig.open[0].body.end()
    second.cancel()
    rig.runtime.run()
    assert second.cancelled
    assert third.result().status == 200


def test_cancelled_at_every_wait_it_leaks_nothing(rig: Any) -> None:
    for step in range(10):
        mine = rig(ONE)
        mine.start()
        mine.runtime.run()
        task, after = mine.start(cancel_at=step), mine.start()
        mine.runtime.timer(0.5, mine.open[0].body.end)
        mine.runtime.run()
        mine.runtime.advance(0.6)
        for response in mine.open:
            response.body.end()
        mine.runtime.run_to_end()
        for response in mine.open:
            response.body.end()
        assert after.result().status == 200
        assert (mine.queue.in_use, mine.queue.queued) == (0, 0)
        if not task.cancelled:
            assert step == 3
            return
    pytest.fail("never came to its end")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.sampled_from(["start", "start", "start", "end", "cancel", "advance", "fail"]),
            st.integers(0, 7),
        ),
        max_size=50,
    ),
)
def test_c02_any_schedule_of_cancels_leaves_a_whole_pool(rig: Any, limit: int, steps: list[tuple[str, int]]) -> None:
    rig = rig(PoolOptions(max_connections=limit))
    tasks: list[Any] = []
    for step, number in steps:
        if step in ("start", "fail"):
            tasks.append(rig.start(extensions={"fail": step == "fail"}))
        elif step == "end" and rig.open:
            rig.open[number % len(rig.open)].body.end()
        elif step == "cancel" and tasks:
            tasks[number % len(tasks)].cancel()
        elif step == "advance":
            rig.runtime.advance(number / 10)
        if number % 2:
            rig.runtime.run()
        assert rig.queue.in_use <= limit
    for _ in range(len(tasks) + 1):
        for response in rig.open:
            response.body.end()
        rig.runtime.run()
    rig.runtime.run_to_end()
    for response in rig.open:
        response.body.end()
    assert (rig.queue.in_use, rig.queue.queued) == (0, 0)


def test_c05_streams_read_to_their_end_need_no_close(rig: Any) -> None:
    rig = rig(PoolOptions(max_connections=2))
    for number in range(10):
        task = rig.start()
        rig.runtime.run()
        assert task.result().status == 200
        rig.open[number].body.release()
        assert rig.queue.in_use == 0


def test_the_stacks_pool_is_configured_once_per_session(rig: Any, native: Any) -> None:
    mine = rig(PoolOptions(max_connections=7, connect_timeout=2.0), native=native)
    assert len(native.settings) == 1
    assert native.settings[0].max_idle == 7
    assert native.settings[0].connect_timeout == 2.0
    assert native.settings[0].socket_options
    assert native.policies == [mine.layer.policy]
    PoolLayer(PoolOptions(max_connections=3), mine.context)
    assert len(native.settings) == 1


def test_warm_is_refused_where_nothing_can_do_it(rig: Any, native: Any) -> None:
    for pool in (None, native):
        with pytest.raises(ConfigError, match=r"pool.warm = 2: scripted opens a connection only for a request"):
            rig(PoolOptions(warm=2), native=pool)
    native.supports |= {"warm"}
    rig(PoolOptions(warm=2), native=native)
    assert native.settings[0].warm == 2


def test_stats_are_the_stacks_own_where_it_has_them(rig: Any, native: Any) -> None:
    mine = rig(PoolOptions(max_connections=1), native=native)
    native.current = PoolCounts(open=3, idle=2, in_use=1, opened_total=9, discarded_stale=4)
    mine.start()
    mine.start()
    mine.runtime.run()
    assert mine.layer.stats() == PoolStats(open=3, idle=2, in_use=1, queued=1, opened_total=9, discarded_stale=4)


def test_every_option_is_described(rig: Any, native: Any) -> None:
    documented = inspect.getdoc(PoolOptions) or ""
    for pool in (None, native):
        described = rig(native=pool).layer.describe()
        for name in PoolOptions.__dataclass_fields__:
            assert name in described
            assert name in documented
    assert described["max_requests"] == "does not apply on this stack"
    assert described["max_idle"] == "the stack's own pool"
    assert described["happy_eyeballs"] == "does not apply"


def test_a_watcher_sweeps_while_connections_are_open_and_then_ends(rig: Any, native: Any) -> None:
    mine = rig(PoolOptions(idle_timeout=2), native=native)
    native.current = PoolCounts(open=1, idle=1)
    mine.start()
    mine.runtime.advance(5.5)
    assert native.sweeps == 5
    assert len(mine.runtime.tasks) == 2
    native.current = PoolCounts()
    mine.runtime.advance(1.1)
    assert native.sweeps == 6
    assert mine.runtime.tasks[1].done()
    mine.start()
    mine.runtime.run()
    assert len(mine.runtime.tasks) == 4


def test_one_watcher_serves_many_calls(rig: Any, native: Any) -> None:
    mine = rig(native=native)
    native.current = PoolCounts(open=1, idle=1)
    for _ in range(20):
        mine.start()
    mine.runtime.run()
    assert len(mine.runtime.tasks) == 21
    mine.runtime.advance(60)
    for _ in range(20):
        mine.start()
    mine.runtime.run()
    assert len(mine.runtime.tasks) == 41


def test_close_ends_the_watcher(rig: Any, native: Any) -> None:
    mine = rig(native=native)
    native.current = PoolCounts(open=1, idle=1)
    mine.start()
    mine.runtime.run()
    mine.layer.close()
    mine.layer.close()
    mine.runtime.run()
    assert mine.runtime.tasks[1].done()
    mine.start()
    mine.runtime.run()
    assert not mine.runtime.tasks[3].done()


def test_a_forgotten_session_ends_the_watcher(rig: Any, native: Any) -> None:
    mine = rig(native=native)
    runtime = mine.runtime
    native.current = PoolCounts(open=1, idle=1)
    mine.start()
    runtime.run()
    watcher = runtime.tasks[1]
    layer = weakref.ref(mine.layer)
    runtime.tasks.clear()
    del mine
    gc.collect()
    assert layer() is None
    runtime.advance(10)
    assert watcher.done()


def test_no_watcher_without_a_pool_to_drive(rig: Any) -> None:
    mine = rig()
    mine.start()
    mine.runtime.run()
    assert len(mine.runtime.tasks) == 1
