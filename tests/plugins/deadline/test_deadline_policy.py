"""Budget, pace and progress by themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from netkit_plugins.deadline import BodyPace, Budget, DeadlineOptions, EventProgress
from netkit_plugins.deadline.budget import Shrinking

from netkit import Timeout


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pace(clock: Clock, *, read: float | None = None, events: bool = False, **options: Any) -> BodyPace:
    made = DeadlineOptions(**options)
    progress = EventProgress() if events else None
    return BodyPace(Budget(made, clock.now), clock, read=read, between=made.between_events, progress=progress)


@pytest.mark.parametrize(
    ("pieces", "progress"),
    [
        ([b"data: a\n\n"], [True]),
        ([b": ping\n\n"], [False]),
        ([b":\n", b":\n\n"], [False, False]),
        ([b"\n", b"\r\n", b""], [False, False, False]),
        ([b": pi", b"ng data: x\n", b"d"], [False, False, True]),
        ([b":", b"still", b"\ndata: x"], [False, False, True]),
        ([b"da", b"ta", b": x"], [True, True, True]),
        ([b"data: x\n: ping\n\n"], [True]),
        ([b": ping\r: pong\r\rid: 1\r"], [True]),
        ([b": ping\r", b": pong\r\n"], [False, False]),
    ],
)
def test_comments_are_no_progress(pieces: list[bytes], progress: list[bool]) -> None:
    it = EventProgress()
    assert [it.feed(piece) for piece in pieces] == progress


def test_the_sooner_of_total_and_first_byte_bounds_the_head() -> None:
    assert Budget(DeadlineOptions(total=5.0), 1.0).head() == (6.0, "deadline")
    assert Budget(DeadlineOptions(total=5.0, first_byte=2.0), 1.0).head() == (3.0, "first_byte")
    assert Budget(DeadlineOptions(total=2.0, first_byte=5.0), 1.0).head() == (3.0, "deadline")
    assert Budget(DeadlineOptions(), 1.0).head()[0] == math.inf


def test_limits_shrink_as_time_passes() -> None:
    clock = Clock()
    limits = Shrinking.of(Timeout(connect=3.0, read=None), clock.now + 2.0, clock, bounds_total=True)
    assert (limits.connect, limits.read, limits.total) == (2.0, 2.0, 2.0)
    clock.now += 1.5
    assert (limits.connect, limits.read, limits.pool) == (0.5, 0.5, 0.5)
    clock.now += 5.0
    assert limits.read == 0.001
    assert Shrinking.of(Timeout(), clock.now + 1, clock, bounds_total=False).total is None


def test_a_pace_without_limits_but_the_calls_own() -> None:
    clock = Clock()
    it = pace(clock, read=7.0)
    assert it.left() == 7.0
    clock.now += 7.0
    assert it.failure() is None
    assert pace(clock).left() == math.inf


def test_total_bounds_a_body_that_keeps_talking() -> None:
    clock = Clock()
    it = pace(clock, total=2.0)
    for _ in range(3):
        assert it.left() > 0
        clock.now += 0.9
        it.chunk(b"x")
    assert it.left() < 0
    assert it.failure().details["reason"] == "deadline"  # type: ignore[union-attr]


def test_first_byte_is_over_with_the_first_byte() -> None:
    clock = Clock()
    it = pace(clock, first_byte=1.0)
    assert it.left() == 1.0
    it.chunk(b"x")
    assert it.left() == math.inf
    late = pace(clock, first_byte=1.0)
    late.left()
    clock.now += 1.0
    assert late.failure().details["reason"] == "first_byte"  # type: ignore[union-attr]


def test_comments_neither_begin_a_stream_nor_keep_it_up() -> None:
    clock = Clock()
    it = pace(clock, between_events=1.0, events=True)
    it.left()
    for _ in range(3):
        clock.now += 0.3
        it.chunk(b": ping\n\n")
        it.left()
    assert it.left() == pytest.approx(0.1)
    clock.now += 0.1
    assert it.failure().details["reason"] == "between_events"  # type: ignore[union-attr]


def test_a_slow_reader_is_not_the_servers_silence() -> None:
    clock = Clock()
    it = pace(clock, between_events=1.0)
    it.left()
    it.chunk(b"x")
    clock.now += 60.0
    assert it.left() == 1.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["total", "first_byte", "between_events"])
def test_options_that_cannot_work(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        DeadlineOptions(**{name: value})
