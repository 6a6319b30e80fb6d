"""The faults: what goes wrong with one or both of two replicas, from `begin` to `end`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from netkit.testing import MockGPU, faults

__all__ = ["SCENARIOS", "Replicas", "Scenario"]

Replicas = Sequence[MockGPU]
SLOW: Final = 5.0
"""Seconds by which a slow replica is late: more than any caller waits."""


@dataclass(frozen=True)
class Scenario:
    """A fault. Inside `happens(replicas)` it lasts; `summary` is for people."""

    name: str
    summary: str
    happens: Callable[[Replicas], AbstractContextManager[None]]


@contextmanager
def _dies(replicas: Replicas) -> Iterator[None]:
    first = replicas[0]
    first.pause_listening()
    first.close_connections("reset", idle_only=False)
    try:
        yield
    finally:
        first.resume_listening()


def _while(
    make: Callable[[Callable[[object], bool]], faults.Fault], *, first_only: bool = False
) -> Callable[[Replicas], AbstractContextManager[None]]:
    """A fault that meets requests as long as it lasts."""

    @contextmanager
    def happens(replicas: Replicas) -> Iterator[None]:
        lasts = threading.Event()
        lasts.set()
        for replica in replicas[:1] if first_only else replicas:
            replica.faults.push(make(lambda _: lasts.is_set()))
        try:
            yield
        finally:
            lasts.clear()

    return happens


def _resets(lasts: Callable[[object], bool]) -> faults.Fault:
    count = itertools.count(1)
    return faults.ResetBeforeHeaders(times=None, when=lambda exchange: lasts(exchange) and next(count) % 5 == 0)


def _flaps(lasts: Callable[[object], bool]) -> faults.Fault:
    started = time.monotonic()

    def is_down(exchange: object) -> bool:
        return lasts(exchange) and (time.monotonic() - started) % 0.5 < 0.25

    return faults.Status(503, times=None, when=is_down)


SCENARIOS: Final = (
    Scenario("replica-dies", "one of two replicas refuses connections", _dies),
    Scenario(
        "replica-slow",
        f"one of two replicas answers {SLOW:g} s late",
        _while(lambda lasts: faults.Latency(seconds=SLOW, when=lasts), first_only=True),
    ),
    Scenario("resets", "a fifth of all requests is reset before its answer", _while(_resets)),
    Scenario(
        "429-storm",
        "five answers per second and replica, else 429 with Retry-After: 1",
        _while(lambda lasts: faults.RateLimit(allowed=5, seconds=1.0, when=lasts)),
    ),
    Scenario("flapping", "a quarter of a second down (503), a quarter up, in turn", _while(_flaps)),
    Scenario("black-hole", "nobody answers", _while(lambda lasts: faults.BlackHole(times=None, when=lasts))),
)
