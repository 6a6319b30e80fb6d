"""The wheel, on a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from netkit.http2 import timers
from netkit.http2.timers import Wheel


class Handle:
    def __init__(self, when: float, call: Any) -> None:
        self.when, self.call, self.live = when, call, True

    def cancel(self) -> None:
        self.live = False


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.handles: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Any) -> Handle:
        self.handles.append(Handle(self.now + delay, call))
        return self.handles[-1]

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [h for h in self.handles if h.live and h.when <= end]:
            handle = min(due, key=lambda h: h.when)
            handle.live = False
            self.now = max(self.now, handle.when)
            handle.call()
        self.now = end


class Item:
    def __init__(self, again: float | None = None) -> None:
        self.timer: float | None = None
        self.fired: list[float] = []
        self.again = again

    def expired(self, now: float) -> float | None:
        self.fired.append(now)
        return self.again


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timers, "monotonic", clock.time)
    return clock


def make(clock: Clock) -> tuple[Clock, Wheel]:
    loop: asyncio.AbstractEventLoop = clock  # type: ignore[assignment]
    return clock, Wheel(loop)


def test_fires_once_and_not_early(clock: Clock) -> None:
    clock, wheel = make(clock)
    item = Item()
    wheel.arm(item, 1.0)
    clock.advance(0.99)
    assert not item.fired
    clock.advance(0.05)
    assert len(item.fired) == 1
    assert 101.0 <= item.fired[0] <= 101.03
    clock.advance(10)
    assert len(item.fired) == 1
    assert item.timer is None


def test_rearm_replaces_disarm_forgets_infinity_never(clock: Clock) -> None:
    clock, wheel = make(clock)
    first, second, third = Item(), Item(), Item()
    wheel.arm(first, 1.0)
    wheel.arm(first, 3.0)
    wheel.arm(second, 1.0)
    wheel.disarm(second)
    wheel.disarm(second)
    wheel.arm(third, math.inf)
    clock.advance(2)
    assert not first.fired
    clock.advance(2)
    assert (len(first.fired), len(second.fired), len(third.fired)) == (1, 0, 0)


def test_an_item_may_ask_for_more_time(clock: Clock) -> None:
    clock, wheel = make(clock)
    item = Item(again=0.5)
    wheel.arm(item, 1.0)
    clock.advance(2.1)
    assert len(item.fired) == 3
    wheel.clear()
    clock.advance(10)
    assert len(item.fired) == 3


def test_an_item_that_ends_its_neighbour_in_the_same_bucket(clock: Clock) -> None:
    clock, wheel = make(clock)
    neighbour = Item()

    class Killer(Item):
        def expired(self, now: float) -> float | None:
            wheel.disarm(neighbour)
            wheel.arm(neighbour, 5.0)
            return None

    wheel.arm(Killer(), 1.0)
    wheel.arm(neighbour, 1.0)
    clock.advance(2)
    assert not neighbour.fired
    clock.advance(5)
    assert len(neighbour.fired) == 1


def test_many_deadlines_make_few_timers(clock: Clock) -> None:
    clock, wheel = make(clock)
    for _ in range(1000):
        wheel.arm(Item(), 60.0)
        clock.advance(0.01)
    assert len(wheel) == 1000
    assert sum(handle.live for handle in clock.handles) == 1
    assert len(clock.handles) < 5
