"""Which connection serves a request: every rule by plain asserts."""

from __future__ import annotations

from dataclasses import dataclass

from netkit.http2.choice import Choice, choose


@dataclass
class View:
    open: int
    limit: int = 100
    uploads: int = 0
    promised: int = 0

    @property
    def expected(self) -> int:
        return self.promised or self.limit


def test_oldest_with_room() -> None:
    assert choose([View(99), View(0)], dialing=0, max_connections=16) == Choice(0, False)
    assert choose([View(100), View(3)], dialing=0, max_connections=16) == Choice(1, False)


def test_dial_only_when_all_are_full_and_none_is_being_opened() -> None:
    assert choose([], dialing=0, max_connections=1) == Choice(None, True)
    assert choose([], dialing=1, max_connections=16) == Choice(None, False)
    assert choose([View(100)], dialing=0, max_connections=2) == Choice(None, True)
    assert choose([View(100)], dialing=1, max_connections=3) == Choice(None, False)
    assert choose([View(100)], dialing=0, max_connections=1) == Choice(None, False)


def test_a_burst_grows_while_settings_are_awaited_by_as_much_as_it_needs() -> None:
    new = View(1, limit=1, promised=100)
    assert choose([new], dialing=0, max_connections=16, waiting=99) == Choice(None, False)
    assert choose([new], dialing=0, max_connections=16, waiting=100) == Choice(None, True)
    assert choose([new], dialing=1, max_connections=16, waiting=999) == Choice(None, False)
    assert choose([new, new], dialing=0, max_connections=16, waiting=198) == Choice(None, False)
    assert choose([new, View(100)], dialing=0, max_connections=2, waiting=999) == Choice(None, False)


def test_a_limit_of_zero_is_full() -> None:
    assert choose([View(0, limit=0)], dialing=0, max_connections=1) == Choice(None, False)
    assert choose([View(5, limit=1), View(1)], dialing=0, max_connections=2) == Choice(1, False)


def test_spread_takes_the_least_loaded_and_dials_while_all_are_busy() -> None:
    assert choose([View(3), View(1)], dialing=0, max_connections=2, spread=True) == Choice(1, False)
    assert choose([View(3)], dialing=0, max_connections=2, spread=True) == Choice(0, True)
    assert choose([View(3)], dialing=1, max_connections=4, spread=True) == Choice(0, False)
    assert choose([View(3), View(0)], dialing=0, max_connections=4, spread=True) == Choice(1, False)


def test_others_avoid_lanes_with_uploads() -> None:
    assert choose([View(1, uploads=1), View(5)], dialing=0, max_connections=2) == Choice(1, False)
    assert choose([View(1, uploads=1)], dialing=0, max_connections=1) == Choice(0, False)


def test_an_upload_wants_a_lane_of_its_own() -> None:
    lanes = [View(1), View(0)]
    assert choose(lanes, dialing=0, max_connections=4, upload=True) == Choice(1, False)
    assert choose([View(1)], dialing=0, max_connections=4, upload=True) == Choice(None, True)
    assert choose([View(1)], dialing=1, max_connections=4, upload=True) == Choice(None, True)
    assert choose([], dialing=1, max_connections=4, upload=True, negotiated=False) == Choice(None, False)
    assert choose([View(1)], dialing=1, max_connections=2, upload=True) == Choice(None, False)
    assert choose([View(2), View(1, uploads=1)], dialing=0, max_connections=2, upload=True) == Choice(0, False)
