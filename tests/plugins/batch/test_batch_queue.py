"""When a batch is due: the queue's decisions on counts and times, by plain asserts."""

from __future__ import annotations

from batch_rig import URL, request
from netkit_plugins.batch.queue import BUSY_TURN, CROWDED, DRY_TURNS, Group, Limits, Unit
from netkit_plugins.batch.ticket import Ticket

from netkit.forms import PRESETS

LIMITS = Limits(items=8, bytes=10_000, tokens=10_000, wait=0.5, in_flight=4)


async def nowhere(_: object) -> None:
    raise AssertionError(URL)


def come(group: Group, now: float) -> Ticket:
    sent = request("a")
    form = PRESETS["openai"]
    inputs = form.read(sent.body.content or b"")
    assert inputs is not None
    ticket = Ticket(sent, nowhere, form, inputs, now)  # type: ignore[arg-type]
    group.join(ticket, Unit(ticket, 0, 1, now).cut(LIMITS, group.items), now)
    return ticket


def busy() -> Group:
    """One call is under way by itself, another waits since 0.0."""
    group = Group(LIMITS)
    first = come(group, 0.0)
    assert group.open(first, 0.0)
    come(group, 0.0)
    return group


def test_time_that_is_up_is_told_once_others_had_their_turn() -> None:
    group = busy()
    assert group.take(0.49, None) is None
    assert group.take(0.5, None) is None
    group.gave_turn(0.0)
    come(group, 0.5)
    group.gave_turn(0.0)
    assert group.take(0.5, None) is None, "somebody came in"
    group.gave_turn(BUSY_TURN / 2)
    batch = group.take(0.5, None)
    assert batch is not None
    assert batch.size == 2


def test_a_busy_process_is_given_several_turns_until_somebody_comes_and_not_for_ever() -> None:
    group = busy()
    group.gave_turn(1.0)
    for _ in range(3):
        for _ in range(DRY_TURNS - 1):
            group.gave_turn(BUSY_TURN)
            assert group.take(0.6, None) is None
        come(group, 0.6)
        group.gave_turn(BUSY_TURN)
        assert group.take(0.6, None) is None
    for _ in range(DRY_TURNS):
        group.gave_turn(BUSY_TURN)
    batch = group.take(0.6, None)
    assert batch is not None
    assert batch.size == 4


def test_a_crowd_that_keeps_coming_is_sent_when_the_batch_is_full_or_at_the_latest_time() -> None:
    group = busy()
    group.gave_turn(0.0)
    for _ in range(7):
        assert group.take(0.6, None) is None
        come(group, 0.6)
        group.gave_turn(0.0)
    full = group.take(0.6, None)
    assert full is not None
    assert full.size == 8

    group = busy()
    group.gave_turn(0.0)
    come(group, 0.1)
    group.gave_turn(0.0)
    assert group.take(LIMITS.wait * CROWDED - 0.01, None) is None
    assert group.take(LIMITS.wait * CROWDED, None) is not None


def test_the_first_of_many_waits_for_those_behind_it() -> None:
    group = Group(LIMITS)
    first = come(group, 0.0)
    assert group.take(0.0, None) is None, "it looks around first"
    come(group, 0.001)
    assert not group.open(first, 0.002)
    assert group.take(0.002, None) is None, "more may be on their way"
    assert group.due == 0.002, "and that shows in one more turn, not in time"
    group.gave_turn(0.0)
    group.gave_turn(0.0)
    batch = group.take(0.003, None)
    assert batch is not None
    assert batch.size == 2


def test_what_a_caller_took_and_left_is_found_whole_at_any_step() -> None:
    """Also where the interruption came before the inputs had left the queue."""
    group = busy()
    group.gave_turn(0.0)
    group.gave_turn(0.0)
    (unit,) = group.units
    batch = group.take(0.6, unit.ticket)
    assert batch is not None
    group.units.append(unit)
    assert group.leave(come(group, 0.7)) == []
    assert group.leave(unit.ticket) == [batch]
    assert (list(group.units), group.waiting, group.in_flight) == ([], 0, 2)
    batch.started = True
    assert group.leave(unit.ticket) == []
