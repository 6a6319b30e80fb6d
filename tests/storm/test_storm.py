"""A short storm in the ordinary run; `make storm` makes long ones."""

from __future__ import annotations

import pytest

from .run import storm


@pytest.mark.storm
@pytest.mark.parametrize("machine", ["ngh2", "h2"])
def test_nothing_is_lost_crossed_or_left(machine: str) -> None:
    tally = storm(2.5, seed=20261201, machine=machine)
    assert tally.answers > 50
