"""Threads: events wake exactly their waiters, and spawned work ends at its next wait."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from netkit.flow import run_sync
from netkit.runtime import Threads
from netkit.runtime._threads import _ThreadEvent


def test_an_event_wakes_every_waiter() -> None:
    event, seen = Threads().event(), []

    def wait() -> None:
        seen.append(run_sync(event.wait(10)))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(10)
    assert seen == [True] * 8
    assert event.is_set()


@pytest.mark.parametrize("listed", [True, False], ids=["after it is listed", "before it is listed"])
def test_an_event_that_a_collector_sets_while_its_waiter_gets_ready(listed: bool) -> None:
    event, follower = _ThreadEvent(), _ThreadEvent()
    event.follow(follower)

    class Waiters(list[Any]):
        """Memory is taken when one more is listed: where a collection may begin, which ends a dropped response."""

        def append(self, waiter: Any) -> None:
            if listed:
                super().append(waiter)
            event.set()
            if not listed:
                super().append(waiter)

        def __bool__(self) -> bool:
            return True

    event._waiters = Waiters()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(run_sync(event.wait(10))), daemon=True)
    thread.start()
    thread.join(30)
    assert seen == [True]
    assert follower.is_set()


def test_a_wait_that_times_out_leaves_nothing_behind() -> None:
    event = _ThreadEvent()
    for _ in range(5):
        assert run_sync(event.wait(0)) is False
    assert event._waiters == []
    event.set()
    assert run_sync(event.wait(0)) is True


def test_spawned_work_is_cancelled_at_its_wait_and_may_clean_up() -> None:
    runtime, never = Threads(), Threads().event()
    begun, cleaned = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await never.wait()
        finally:
            await runtime.sleep(0)
            cleaned.set()

    for _ in range(200):
        begun.clear()
        cleaned.clear()
        job = runtime.spawn(work(), name="work")
        assert begun.wait(10)
        # Right between "about to wait" and "waits": the moment in which a wake-up could be lost.
        job.cancel()
        assert cleaned.wait(10)


def test_cancelling_one_job_does_not_disturb_others_at_the_same_event() -> None:
    runtime, shared = Threads(), Threads().event()
    outcome: list[bool] = []
    waiting = threading.Event()

    async def work() -> None:
        waiting.set()
        await shared.wait()

    def other() -> None:
        outcome.append(run_sync(shared.wait(30)))

    thread = threading.Thread(target=other)
    thread.start()
    job = runtime.spawn(work(), name="work")
    assert waiting.wait(10)
    job.cancel()
    deadline = threading.Event()
    for _ in range(1000):
        if job.done():
            break
        deadline.wait(0.01)
    assert job.done()
    assert outcome == []
    shared.set()
    thread.join(10)
    assert outcome == [True]


def test_failing_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError("broken")

    job = Threads().spawn(work(), name="work")
    job._thread.join(10)
    assert job.done()
    assert "netkit-work failed" in caplog.text


def test_waking_several_wakes_each_whether_it_waits_or_not() -> None:
    """One wakes the next: those who do not wait, have given up or stand in two rows hold nobody up."""
    runtime = Threads()
    for _ in range(50):
        events = [runtime.event() for _ in range(12)]
        woken: list[bool] = []

        def waits(event: Any, timeout: float | None, woken: list[bool] = woken) -> None:
            woken.append(run_sync(event.wait(timeout)))

        # Of every four: one waits, one gives up at once, nobody waits for the third, the fourth is late.
        threads = [
            threading.Thread(target=waits, args=(event, None if number % 4 == 0 else 0.0))
            for number, event in enumerate(events)
            if number % 4 < 2
        ]
        for thread in threads:
            thread.start()
        runtime.wake(events[:8])
        runtime.wake([*events[4:], runtime.event()])
        late = [threading.Thread(target=waits, args=(event, None)) for event in events[3::4]]
        for thread in late:
            thread.start()
        for thread in (*threads, *late):
            thread.join(10)
            assert not thread.is_alive()
        assert all(event.is_set() for event in events)
        assert woken.count(True) >= 6


def test_the_main_thread_wakes_nobody_since_it_may_be_interrupted_before_it_does() -> None:
    main, following, left = _ThreadEvent(), _ThreadEvent(), []
    main.follow(following)

    def wake() -> None:
        while main._waiters is None:
            time.sleep(0)
        left.append(main._release())

    waker = threading.Thread(target=wake)
    waker.start()
    assert run_sync(main.wait(10))
    waker.join(10)
    assert left == [following], "whoever wakes the main thread does it"
    assert not following.is_set()
