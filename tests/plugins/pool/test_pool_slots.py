"""The slot queue: never more than the limit, never a lost slot, first come first served."""

from __future__ import annotations

import gc
import os
import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netkit_plugins.pool import SlotQueue
from netkit_plugins.pool import slots as slots_module

from netkit import QueueFull

A, B = "http://a/x", "http://b/y"


def test_a_slot_per_exchange_and_origin() -> None:
    queue = SlotQueue(2)
    first, second = queue.take(A), queue.take("HTTP://user:pw@A?q#f")
    assert first is not None
    assert second is first
    assert first.origin == "http://a"
    assert queue.take(A) is None
    assert queue.take(B) is not None
    first.release()
    assert queue.take(A) is not None
    assert repr(queue) == "<SlotQueue in_use=3 queued=0 origins=2>"


def test_who_waits_longest_is_next() -> None:
    queue = SlotQueue(1)
    woken: list[object] = []
    held = queue.take(A)
    assert held is not None
    tickets = [queue.join(A, partial(woken.append, name)) for name in range(3)]
    assert queue.queued == 3
    for number, ticket in enumerate(tickets):
        held.release()
        assert woken == list(range(number + 1))
        assert queue.take(A) is None
        held = queue.leave(ticket)
        assert held is not None
    held.release()
    assert (queue.in_use, queue.queued) == (0, 0)


def test_who_leaves_without_a_slot_is_forgotten() -> None:
    queue = SlotQueue(1)
    woken: list[object] = []
    held = queue.take(A)
    assert held is not None
    gone = queue.join(A, lambda: woken.append("gone"))
    stays = queue.join(A, lambda: woken.append("stays"))
    assert queue.leave(gone) is None
    assert queue.leave(gone) is None
    assert queue.queued == 1
    held.release()
    assert woken == ["stays"]
    assert queue.leave(stays) is not None


def test_a_slot_that_became_free_between_asking_and_queueing_is_granted() -> None:
    queue = SlotQueue(1)
    woken: list[object] = []
    held = queue.take(A)
    assert held is not None
    assert queue.take(A) is None
    held.release()
    ticket = queue.join(A, lambda: woken.append(1))
    assert woken == [1]
    assert queue.leave(ticket) is not None


def test_a_full_queue_says_so() -> None:
    queue = SlotQueue(1, max_queue=1)
    queue.take(A)
    queue.join(A, lambda: None)
    with pytest.raises(QueueFull, match=r"1 callers wait for a connection to http://a already"):
        queue.join(A, lambda: None)
    queue.take(B)
    queue.join(B, lambda: None)


def test_the_total_goes_to_the_oldest_waiter_of_any_origin() -> None:
    queue = SlotQueue(2, max_connections_total=2)
    woken: list[object] = []
    first, second = queue.take(A), queue.take(A)
    assert first is not None
    assert second is not None
    waiting_a = queue.join(A, lambda: woken.append("a"))
    waiting_b = queue.join(B, lambda: woken.append("b"))
    first.release()
    assert woken == ["a"]
    second.release()
    assert woken == ["a", "b"]
    assert queue.leave(waiting_a) is not None
    assert queue.leave(waiting_b) is not None
    assert queue.in_use == 2


def test_a_waiter_whose_origin_is_full_does_not_hold_up_others() -> None:
    queue = SlotQueue(1, max_connections_total=2)
    woken: list[object] = []
    a, b = queue.take(A), queue.take(B)
    assert a is not None
    assert b is not None
    queue.join(A, lambda: woken.append("a"))
    queue.join(B, lambda: woken.append("b"))
    b.release()
    assert woken == ["b"]


def test_a_release_in_the_middle_of_a_locked_section_is_settled_on_the_way_out() -> None:
    # The garbage collector may end a forgotten response anywhere, also while this thread holds the lock.
    queue = SlotQueue(1)
    woken: list[object] = []
    held = queue.take(A)
    assert held is not None
    with queue._lock:
        held.release()
        assert queue.in_use == 1
    ticket = queue.join(A, lambda: woken.append(1))
    assert woken == [1]
    assert queue.leave(ticket) is not None
    assert (queue.in_use, queue.queued) == (1, 0)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 4)),
    st.lists(st.tuples(st.sampled_from(["ask", "ask", "release", "leave"]), st.integers(0, 5)), max_size=60),
)
def test_any_schedule(limit: int, total: int | None, steps: list[tuple[str, int]]) -> None:
    queue = SlotQueue(limit, total, max_queue=4)
    held: list[Any] = []
    waiting: list[tuple[Any, str, list[int]]] = []
    for step, number in steps:
        url = (A, B, "http://c/")[number % 3]
        if step == "ask":
            slots = queue.take(url)
            if slots is not None:
                held.append(slots)
            else:
                flag: list[int] = []
                try:
                    waiting.append((queue.join(url, partial(flag.append, 1)), url, flag))
                except QueueFull:
                    assert sum(1 for _, other, flag in waiting if other == url and not flag) == 4
        elif step == "release" and held:
            held.pop(number % len(held)).release()
        elif step == "leave" and waiting:
            ticket, _, flag = waiting.pop(number % len(waiting))
            slots = queue.leave(ticket)
            assert (slots is not None) == bool(flag)
            if slots is not None:
                slots.release()
        granted = [entry for entry in waiting if entry[2]]
        ungranted = [entry for entry in waiting if not entry[2]]
        assert queue.in_use == len(held) + len(granted)
        assert queue.queued == len(ungranted)
        assert total is None or queue.in_use <= total
        for origin in ("http://a", "http://b", "http://c"):
            in_use = sum(slots.origin == origin for slots in held) + sum(
                ticket.slots.origin == origin for ticket, _, _ in granted
            )
            assert in_use <= limit
            mine = [entry for entry in waiting if entry[0].slots.origin == origin]
            # First come, first served: nobody is served before one who came earlier.
            assert sorted((not flag) for _, _, flag in mine) == [(not flag) for _, _, flag in mine]
            if any(not flag for _, _, flag in mine):
                assert in_use == limit or queue.in_use == total
    for slots in held:
        slots.release()
    while waiting:
        ticket, _, _ = waiting.pop(0)
        slots = queue.leave(ticket)
        if slots is not None:
            slots.release()
    assert (queue.in_use, queue.queued) == (0, 0)


def test_quiet_origins_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_KNOWN", 10)
    queue = SlotQueue(1)
    held = queue.take(A)
    for number in range(100):
        slots = queue.take(f"http://h{number}/")
        assert slots is not None
        slots.release()
    assert len(queue._origins) <= 11
    assert len(queue._by_url) <= 11
    assert queue.take(A) is None
    assert held is not None
    held.release()
    assert queue.take(A) is held


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_with_nothing_in_use() -> None:
    queue = SlotQueue(1)
    held = queue.take(A)
    assert held is not None
    queue.join(A, lambda: None)
    child = os.fork()
    if child == 0:
        fresh = queue.take(A)
        held.release()
        fine = fresh is not None and (queue.in_use, queue.queued) == (1, 0) and queue.take(A) is None
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue.in_use == 1


def test_a_queue_is_not_kept_alive() -> None:
    import weakref

    queue = SlotQueue(1)
    queue.take(A)
    known = weakref.ref(queue)
    del queue
    gc.collect()
    assert known() is None


def test_threads_never_exceed_the_limit_and_lose_nothing() -> None:
    queue, lock = SlotQueue(3), threading.Lock()
    now, most = [0], [0]

    def work() -> None:
        for _ in range(60):
            slots = queue.take(A)
            if slots is None:
                event = threading.Event()
                ticket = queue.join(A, event.set)
                assert event.wait(30)
                slots = queue.leave(ticket)
                assert slots is not None
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            with lock:
                now[0] -= 1
            slots.release()

    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most[0] <= 3
    assert (queue.in_use, queue.queued) == (0, 0)
