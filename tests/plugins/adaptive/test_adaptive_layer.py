"""The layer on the Scripted runtime: when it measures, when it moves, and what it never does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from netkit_plugins.adaptive import AdaptiveLayer, AdaptiveOptions

from netkit import Context, Request, Response, TransportError
from netkit.errors import BodyClosed, FailureKind
from netkit.events import Emitter, KnobMoved
from netkit.knobs import Knob
from netkit.runtime import Scripted
from netkit.stats import Meter


class Rig:
    """Callers one after the other, a server whose time depends on one knob."""

    def __init__(self, takes: Callable[[float], float], start: float = 4, **options: Any) -> None:
        self.value = start
        self.takes = takes
        self.runtime = Scripted()
        self.events: list[KnobMoved] = []
        self.status = 200
        self.error: Exception | None = None
        self.extensions: dict[str, Any] = {}
        self.seen: list[float] = []
        self.open: list[Response] = []
        self.held = False
        emit = Emitter()
        emit.add(self.events.append)
        self.meter = Meter()
        self.context = Context(
            runtime=self.runtime, emit=emit, stack="scripted", meter=self.meter, knobs=lambda: {"gpu.size": self.knob}
        )
        self.knob = Knob("size", get=lambda: self.value, set=self.move, lowest=1, highest=64)
        self.options = AdaptiveOptions(**{"knobs": ("gpu.size",), "min_calls": 5, "window": 1.0, **options})
        self.layer = AdaptiveLayer(self.options, self.context)

    def move(self, value: float) -> None:
        self.value = value

    async def send(self, request: Request) -> Response:
        self.seen.append(self.value)
        await self.runtime.sleep(self.takes(self.value))
        if self.error is not None:
            raise self.error
        return Response.of(self.status, **self.extensions)

    async def call(self) -> Response:
        response = await self.layer(Request("GET", "http://gpu.test/"), self.send)
        if self.held:
            self.open.append(response)
        else:
            response.body.end()
        return response

    async def calls(self, count: int) -> None:
        for _ in range(count):
            try:
                await self.call()
            except TransportError:
                pass

    def run(self, count: int, cancel_at: int | None = None) -> Any:
        task = self.runtime.task(self.calls(count), cancel_at=cancel_at)
        self.runtime.run_to_end(1e6)
        return task

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]


def test_a_setting_that_pays_is_climbed_and_told(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(lambda size: 0.4 / size)
    with caplog.at_level(logging.INFO, "netkit.adaptive"):
        rig.run(8000)
    found = rig.layer.stats()
    assert rig.value == 64
    assert rig.reasons[:4] == ["trial", "win", "trial", "win"]
    assert [(event.before, event.after) for event in rig.events[:3]] == [(4, 8), (4, 8), (8, 16)]
    assert found.moves == 4
    assert (found.knobs["gpu.size"].start, found.knobs["gpu.size"].value, found.knobs["gpu.size"].moves) == (4, 64, 4)
    assert found.trials == found.moves + found.reverted + ("trial" in rig.reasons[-1:])
    assert "gpu.size from 4 to 8: win" in caplog.text


def test_a_setting_that_pays_not_stays() -> None:
    rig = Rig(lambda size: 0.1)
    rig.run(3000)
    found = rig.layer.stats()
    assert found.moves == 0
    assert found.reverted >= 3
    assert rig.seen.count(4) / len(rig.seen) > 0.8


def test_a_setting_that_hurts_is_taken_back_within_its_window() -> None:
    rig = Rig(lambda size: 0.02 if size <= 4 else 0.03)
    rig.run(100)
    assert rig.reasons == ["trial", "no win"]
    assert rig.value == 4
    # One that leaves the old value, and what a third of a window holds.
    assert 5 <= rig.seen.count(8) <= 14


def test_too_few_calls_say_nothing_and_end_a_trial() -> None:
    rig = Rig(lambda size: 0.1)
    rig.run(13)
    assert rig.reasons == ["trial"]
    assert rig.value == 8
    rig.runtime.advance(3600)
    rig.run(2)
    assert rig.reasons == ["trial", "idle"]
    assert rig.value == 4
    assert rig.layer.stats().idle == 1


def test_sparse_traffic_moves_nothing() -> None:
    rig = Rig(lambda size: 5.0)
    rig.run(500)
    assert rig.events == []
    assert rig.layer.stats().windows == 0
    assert rig.layer.stats().idle > 10


def test_failures_take_a_step_back() -> None:
    rig = Rig(lambda size: 0.1)
    rig.run(15)
    assert rig.value == 8
    rig.status = 429
    rig.run(22)
    assert rig.reasons[:2] == ["trial", "failures"]
    assert set(rig.seen[-3:]) == {4}


def test_errors_count_as_failures() -> None:
    rig = Rig(lambda size: 0.1)
    rig.run(15)
    rig.error = TransportError("gone", kind=FailureKind.OTHER)
    rig.run(22)
    assert rig.reasons[:2] == ["trial", "failures"]


@pytest.mark.parametrize("case", ["cached", "fault", "closed"])
def test_what_says_nothing_about_the_server_is_not_counted(case: str) -> None:
    rig = Rig(lambda size: 0.1)
    if case == "cached":
        rig.extensions = {"cached": True}
    elif case == "fault":
        rig.status = 400
    else:
        rig.held = True
    rig.run(100)
    for response in rig.open:
        response.body.end(BodyClosed("left"))
    rig.held = False
    assert rig.layer.stats().windows == 0


def test_calls_from_before_a_turn_are_waited_for_and_not_counted() -> None:
    rig = Rig(lambda size: 0.1)
    rig.held = True
    for _ in range(3):
        rig.runtime.task(rig.call())
    rig.runtime.advance(0.2)
    assert len(rig.open) == 3
    rig.held = False
    while not rig.events:
        rig.run(1)
    assert rig.layer._settling
    rig.open.pop().body.end()
    # Two are left. They end, or as many others do in their stead.
    rig.run(1)
    assert rig.layer._settling
    rig.run(2)
    assert not rig.layer._settling
    counted = len(rig.layer._phase.calls)
    for response in rig.open:
        response.body.end()
    assert len(rig.layer._phase.calls) == counted


def test_every_way_out_is_counted_once() -> None:
    for step in range(6):
        rig = Rig(lambda size: 0.1)
        rig.run(3, cancel_at=step)
        assert rig.layer._phase.under_way == 0, step
        rig.run(1)
        assert rig.layer._phase.under_way == 0


def test_a_forked_child_begins_anew_with_the_old_value() -> None:
    rig = Rig(lambda size: 0.1)
    rig.run(15)
    assert rig.value == 8
    rig.layer._lock.acquire()
    rig.layer.after_fork_in_child()
    rig.run(1)
    assert rig.value == 4
    assert rig.reasons == ["trial", "fork"]
    rig.run(60)
    assert rig.layer.stats().windows > 0


def test_closing_puts_a_trial_back() -> None:
    rig = Rig(lambda size: 0.1)
    rig.run(15)
    rig.layer.close()
    rig.layer.close()
    assert rig.value == 4
    assert rig.reasons == ["trial", "closed"]


def test_only_one_layer_of_a_session_moves_its_settings() -> None:
    rig = Rig(lambda size: 0.1)
    second = AdaptiveLayer(rig.options, rig.context)
    rig.layer = second
    rig.run(500)
    assert rig.events == []
    assert second.stats().knobs == {}


def test_a_knob_that_cannot_be_turned_stops_it_and_no_call(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(lambda size: 0.1)
    refused = []

    def refuse(value: float) -> None:
        refused.append(value)
        raise RuntimeError("stuck")

    rig.knob = Knob("size", get=lambda: 4, set=refuse, lowest=1, highest=64)
    task = rig.run(200)
    task.result()
    assert len(rig.seen) == 200
    assert refused == [8, 4]
    assert "cannot be moved" in caplog.text


def test_a_caller_never_waits_for_another_ones_decision() -> None:
    rig = Rig(lambda size: 0.1)
    rig.run(5)
    with rig.layer._lock:
        rig.run(55)
    assert len(rig.seen) == 60
    assert rig.events == []


def test_bounds_from_the_configuration_count() -> None:
    rig = Rig(lambda size: 0.4 / size, bounds=(("gpu.size", (2, 12)),))
    rig.run(3000)
    assert rig.value == 12
    assert max(rig.seen) == 12
