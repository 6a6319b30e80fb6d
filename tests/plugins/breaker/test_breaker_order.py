"""The numbers that docs/breaker.md gives for the two orders of breaker and retry."""

from __future__ import annotations

import re
from pathlib import Path

from tests.benchmarks.breaker_order import ORDERS, SERVERS, measure

PAGE = Path(__file__).parents[3] / "docs" / "breaker.md"


def test_the_page_says_what_is_measured() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (inside|outside) of retry \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE
    )
    said = {(server, order): tuple(map(int, numbers)) for server, order, *numbers in rows}
    assert said == {(server, order): tuple(measure(order, server)) for server in SERVERS for order in ORDERS}
