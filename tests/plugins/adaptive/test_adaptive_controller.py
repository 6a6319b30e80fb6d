"""The controller against model servers: it climbs where that pays, and leaves alone what does not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import permutations

import pytest
from netkit_plugins.adaptive import AdaptiveOptions
from netkit_plugins.adaptive.controller import Controller
from netkit_plugins.adaptive.evidence import chance, rounds_for
from netkit_plugins.adaptive.trial import Trial
from netkit_plugins.adaptive.window import Ended, Window, outcome_of, window_of

from netkit.knobs import Knob

Server = Callable[[dict[str, float]], Window]


class World:
    """Knobs, a server whose windows depend on them, and the controller between."""

    def __init__(self, server: Server, start: dict[str, float], **bounds: tuple[float, float]) -> None:
        self.values = dict(start)
        self.server = server
        self.knobs = {name: self.knob(name) for name in start}
        self.controller = Controller(start, {}, 0.01)
        self.history: list[dict[str, float]] = []
        self.reasons: list[str] = []

    def knob(self, name: str, lowest: float = 1, highest: float = 256, patience: float | None = None) -> Knob:
        return Knob(
            name,
            get=lambda: self.values[name],
            set=lambda value: self.values.__setitem__(name, value),
            lowest=lowest,
            highest=highest,
            patience=patience,
        )

    def run(self, windows: int) -> None:
        for _ in range(windows):
            self.history.append(dict(self.values))
            move = self.controller.step(self.server(self.values), self.knobs)
            if move is not None:
                self.knobs[move.knob].set(move.after)
                self.reasons.append(move.reason)


def window(rate: float, wait: float | None = None, bad: int = 0, p99: float | None = None) -> Window:
    wait = 10 / rate if wait is None else wait
    return Window(calls=100, rate=rate, wait=wait, p99=2 * wait if p99 is None else p99, bad=bad)


def noisy(rate: Callable[[dict[str, float]], float], spread: float, seed: int) -> Server:
    draw = random.Random(seed)
    return lambda values: window(rate(values) * math.exp(draw.gauss(0, spread)))


def gpu(values: dict[str, float]) -> float:
    """20 ms to launch, 0.5 ms an item, and beyond 64 items its memory is full."""
    items = values["items"]
    return items / (0.02 + 0.0005 * items + (0.002 * (items - 64) if items > 64 else 0.0))


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_that_pays_grows_until_it_does_not(seed: int) -> None:
    world = World(noisy(gpu, 0.02, seed), {"items": 4})
    world.run(600)
    assert 40 <= world.values["items"] <= 96
    assert gpu(world.values) > 0.85 * gpu({"items": 64})
    assert gpu(world.values) > 4 * gpu({"items": 4})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
def test_where_nothing_wins_nothing_moves_for_long(spread: float, seed: int) -> None:
    """Throughput is best where it starts: whatever is tried, the sum of all windows loses next to nothing."""

    def rate(values: dict[str, float]) -> float:
        return 100 * math.exp(-0.2 * abs(math.log2(values["a"] / 16)))

    world = World(noisy(rate, spread, seed), {"a": 16})
    world.run(1000)
    served = sum(rate(values) for values in world.history) / len(world.history)
    assert served > 97.0
    assert 11 <= world.values["a"] <= 24


@pytest.mark.parametrize("seed", range(10))
def test_knobs_without_any_effect_hardly_move(seed: int) -> None:
    world = World(noisy(lambda values: 100.0, 0.1, seed), {"a": 16, "b": 16, "c": 16})
    world.run(1000)
    assert world.reasons.count("trial") >= 20
    assert world.reasons.count("win") <= 2


@pytest.mark.parametrize("seed", range(5))
def test_a_load_that_rises_is_not_taken_for_a_win(seed: int) -> None:
    draw, passed = random.Random(seed), iter(range(10_000))
    world = World(lambda values: window(100 * 1.02 ** next(passed) * math.exp(draw.gauss(0, 0.01))), {"a": 16})
    world.run(200)
    assert world.reasons.count("trial") >= 5
    assert "win" not in world.reasons


@pytest.mark.parametrize("seed", range(5))
def test_what_hurts_ends_with_its_first_window(seed: int) -> None:
    world = World(noisy(lambda values: 100 if values["a"] == 16 else 60, 0.05, seed), {"a": 16})
    world.run(500)
    assert world.values["a"] == 16
    away = [values["a"] != 16 for values in world.history]
    assert sum(away) == world.reasons.count("trial") == world.reasons.count("no win") >= 8
    assert sum(away) / len(away) < 0.04


def test_what_hurts_by_far_ends_within_its_window() -> None:
    world = World(lambda values: window(100), {"a": 16})
    world.run(1)
    assert world.values["a"] == 32
    assert world.controller.glance(window(85), world.knobs) is None
    move = world.controller.glance(window(75), world.knobs)
    assert move is not None
    assert (move.knob, move.before, move.after, move.reason) == ("a", 32, 16, "no win")
    assert world.controller.trial is None
    # It rests as after any other trial that did not win.
    assert world.controller.step(window(100), world.knobs) is None


def test_a_glance_at_the_old_value_or_between_trials_says_nothing() -> None:
    world = World(lambda values: window(100), {"a": 16})
    assert world.controller.glance(window(1), world.knobs) is None
    world.run(2)
    assert world.values["a"] == 16
    assert world.reasons == ["trial", "turn"]
    assert world.controller.glance(window(1), world.knobs) is None


def test_a_longer_wait_is_no_harm_where_more_is_served() -> None:
    world = World(
        lambda values: window(100, wait=0.1) if values["a"] <= 16 else window(150, wait=0.2, p99=0.2), {"a": 16}
    )
    world.run(30)
    assert "win" in world.reasons


def test_failures_end_a_trial_at_once() -> None:
    world = World(lambda values: window(100, bad=0) if values["a"] <= 16 else window(500, bad=20), {"a": 16})
    world.run(2)
    assert world.reasons == ["trial", "failures"]
    assert world.values["a"] == 16


def test_failures_that_were_there_before_do_not_veto() -> None:
    world = World(lambda values: window(values["a"] * 10, bad=20), {"a": 16})
    world.run(60)
    assert "win" in world.reasons


def test_a_worse_tail_vetoes() -> None:
    world = World(lambda values: window(100 * values["a"], p99=values["a"]), {"a": 16})
    world.run(60)
    assert "tail" in world.reasons
    assert "win" not in world.reasons
    world.controller.drop("idle")
    assert {values["a"] for values in world.history} == {16, 32, 24, 8, 11}


def test_callers_at_their_own_pace_are_served_sooner() -> None:
    """100 calls a second whatever is set; each waits for as long as the knob says."""
    draw = random.Random(1)
    world = World(lambda values: window(100 + draw.gauss(0, 1), wait=values["a"] / 100 + 0.01), {"a": 32})
    world.run(400)
    assert world.values["a"] <= 4


def test_nothing_is_lowered_while_callers_would_be_turned_away() -> None:
    world = World(lambda values: window(100, wait=0.4, p99=0.6), {"a": 16})
    world.knobs["a"] = world.knob("a", patience=1.0)
    world.run(300)
    assert min(values["a"] for values in world.history) == 16
    world.knobs["a"] = world.knob("a", patience=10.0)
    world.run(300)
    assert min(values["a"] for values in world.history) < 16


def test_bounds_hold_and_a_value_outside_is_only_brought_nearer() -> None:
    world = World(lambda values: window(100 * values["a"]), {"a": 4})
    world.knobs["a"] = world.knob("a", lowest=1, highest=40)
    world.run(300)
    assert world.values["a"] == 40
    world = World(lambda values: window(100 / values["a"]), {"a": 400})
    world.knobs["a"] = world.knob("a", lowest=30, highest=40)
    world.run(300)
    assert world.values["a"] == 30
    assert max(values["a"] for values in world.history) == 400


def test_a_grain_is_the_least_step_and_zero_can_be_left() -> None:
    values = {"wait": 0.0}
    knob = Knob("wait", lambda: values["wait"], lambda new: values.__setitem__("wait", new), 0.0, 0.05, grain=0.001)
    controller = Controller(["wait"], {}, 0.01)
    seen = set()
    for _ in range(400):
        seen.add(values["wait"])
        move = controller.step(window(100 + 10_000 * values["wait"]), {"wait": knob})
        if move is not None:
            knob.set(move.after)
    assert values["wait"] == 0.05
    assert {0.001, 0.002, 0.004} <= seen
    assert all(abs(each * 1000 - round(each * 1000)) < 1e-6 for each in seen)


def test_rests_grow_while_nothing_wins() -> None:
    world = World(lambda values: window(100), {"a": 16})
    world.run(2000)
    begun = world.reasons.count("trial")
    world.run(2000)
    assert begun <= 20
    assert world.reasons.count("trial") - begun <= 5


def test_a_knob_that_somebody_else_moves_is_left_as_they_set_it() -> None:
    world = World(lambda values: window(100), {"a": 16})
    world.run(2)
    assert world.controller.trial is not None
    world.values["a"] = 77
    world.run(1)
    assert world.controller.trial is None
    assert world.values["a"] == 77


def test_a_trial_that_is_dropped_goes_back() -> None:
    world = World(lambda values: window(100), {"a": 16})
    assert world.controller.drop("idle") is None
    world.run(1)
    move = world.controller.drop("idle")
    assert move is not None
    assert (move.knob, move.after, move.reason) == ("a", 16, "idle")


def test_turns_are_balanced() -> None:
    trial = Trial("a", 1, 2, 0.01, before=window(100))
    turns = []
    while True:
        turns.append(trial.value)
        if trial.add(window(100 * trial.value)) is not None:
            break
    assert turns[:8] == [2, 1, 1, 2, 2, 1, 1, 2]
    assert turns.count(1) == turns.count(2) == 6


def test_chance_is_the_share_of_all_orders() -> None:
    for larger in ([4, 5, 6], [1, 5, 6], [2, 3, 6], [1, 2, 3]):
        smaller = [value for value in range(1, 7) if value not in larger]
        wins = sum(a > b for a in larger for b in smaller)
        orders = [set(order[:3]) for order in permutations(range(1, 7))]
        as_good = [each for each in orders if sum(a > b for a in each for b in {*range(1, 7)} - each) >= wins]
        assert chance(larger, smaller) == pytest.approx(len(as_good) / len(orders))


def test_equal_measurements_prove_nothing() -> None:
    assert chance([1.0] * 6, [1.0] * 6) == 1.0


def test_a_stricter_test_takes_more_windows() -> None:
    assert [rounds_for(each) for each in (0.1, 0.01, 0.001, 0.0001)] == [4, 5, 7, 9]


def test_time_without_calls_does_not_count() -> None:
    calls = [Ended(0.0, 0.5, 1.0, "done"), Ended(0.5, 1.0, 1.5, "done"), Ended(9.5, 9.8, 10.0, "done")]
    found = window_of(calls, start=0.0)
    assert found.rate == pytest.approx(3 / 2.0)
    assert found.wait == pytest.approx((0.5 + 0.5 + 0.3) / 3)
    assert found.p99 == 0.5
    assert window_of(calls, start=0.75).rate == pytest.approx(3 / 1.25)
    assert window_of([], start=0.0) == Window(0, 0.0, 0.0, 0.0, 0)


def test_failures_are_no_throughput() -> None:
    found = window_of([Ended(0, 1, 1, "done"), Ended(0, 1, 1, "failed"), Ended(0, 1, 1, "refused")], 0.0)
    assert (found.calls, found.bad, found.rate) == (3, 2, 1.0)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "done"), (304, "done"), (400, None), (404, None), (429, "refused"), (500, "failed"), (503, "refused")],
)
def test_whose_fault_an_answer_is(status: int, outcome: str | None) -> None:
    assert outcome_of(status) == outcome


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"knobs": ()}, "knobs must name"),
        ({"knobs": ("max_items",)}, "plugin.option"),
        ({"knobs": ("a.b",), "bounds": (("c.d", (1, 2)),)}, "not among knobs"),
        ({"bounds": (("batch.max_items", (5, 2)),)}, "larger"),
        ({"bounds": (("batch.max_items", (1, math.inf)),)}, "larger"),
        ({"window": 0.0}, "window"),
        ({"min_calls": 0}, "min_calls"),
        ({"significance": 0.5}, "significance"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AdaptiveOptions(**options)  # type: ignore[arg-type]
