"""What all sessions of a process did, those included that are gone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from netkit.process import _Process
from netkit.stats import Meter


class Session:
    """As much of an `Edge` as is counted."""

    stack = "requests"

    def __init__(self) -> None:
        self.meter = Meter()
        self.meter.begin().end()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns after each few steps of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_session_that_goes_leaves_its_counters() -> None:
    process = _Process()
    staying: Any = Session()
    process.register(staying)
    going: Any = Session()
    process.register(going)
    del going
    total = process.totals()["requests"]
    assert (total.sessions, total.requests, len(process.edges())) == (2, 2, 1)
    assert process.totals() == process.totals()


@pytest.mark.usefixtures("hasty")
def test_sessions_that_go_in_many_threads_at_once_are_all_counted() -> None:
    """`requests.get` makes a session for each call and drops it."""
    process, start = _Process(), threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(100):
            session: Any = Session()
            process.register(session)
            del session

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = process.totals()["requests"]
    assert (total.sessions, total.requests, process.edges()) == (800, 800, [])
