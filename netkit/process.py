"""All sessions of this process: what `netkit run --stats` sums up.

Rules of this file:

- Sessions are known weakly. One that goes leaves its counters behind, nothing else.
- Counting costs a session nothing while it lives.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from netkit import fork
from netkit.stats import WINDOW, Latency, Meter, summary

if TYPE_CHECKING:
    from netkit.edge import Edge

__all__ = ["Totals", "edges", "register", "totals"]


class Totals(msgspec.Struct, frozen=True):
    """What the sessions of one stack did, those included that are gone. Connections are those that were
    opened; latency is that of the last calls."""

    sessions: int = 0
    requests: int = 0
    errors: int = 0
    attempts: int = 0
    retries: int = 0
    http1_connections: int = 0
    http2_connections: int = 0
    latency: Latency = Latency()


class _Process:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._edges: dict[int, weakref.ref[Edge]] = {}
        self._leaving: deque[tuple[str, Meter]] = deque()
        self._gone: dict[str, Totals] = {}
        self._windows: dict[str, deque[float]] = {}
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def register(self, edge: Edge) -> None:
        key = id(edge)
        with self._lock:
            self._edges[key] = weakref.ref(edge)
            self._sum_up()
        weakref.finalize(edge, self._let_go, key, edge.stack, edge.meter).atexit = False

    def _let_go(self, key: int, stack: str, meter: Meter) -> None:
        # May run in any thread, inside of a collection: no lock is taken, and what cannot be done in one step is left
        # to whoever holds the lock next.
        self._edges.pop(key, None)
        if meter.begun.value:
            self._leaving.append((stack, meter))

    def _sum_up(self) -> None:
        """Under the lock: add what has gone to the counters that it leaves behind."""
        while self._leaving:
            stack, meter = self._leaving.popleft()
            self._gone[stack] = _plus(self._gone.get(stack, Totals()), meter)
            self._windows.setdefault(stack, deque(maxlen=WINDOW)).extend(_seconds(meter))

    def edges(self) -> list[Edge]:
        with self._lock:
            known = list(self._edges.values())
        return [edge for reference in known if (edge := reference()) is not None]

    def totals(self) -> dict[str, Totals]:
        with self._lock:
            self._sum_up()
            found = dict(self._gone)
            windows = {stack: list(window) for stack, window in self._windows.items()}
        for edge in self.edges():
            found[edge.stack] = _plus(found.get(edge.stack, Totals()), edge.meter)
            windows.setdefault(edge.stack, []).extend(_seconds(edge.meter))
        return {
            stack: msgspec.structs.replace(total, latency=summary(windows.get(stack, [])))
            for stack, total in sorted(found.items())
        }


def _plus(total: Totals, meter: Meter) -> Totals:
    requests = meter.requests()
    return Totals(
        sessions=total.sessions + 1,
        requests=total.requests + requests.total,
        errors=total.errors + requests.errors,
        attempts=total.attempts + requests.attempts,
        retries=total.retries + requests.retries,
        http1_connections=total.http1_connections + meter.http1_opened.value,
        http2_connections=total.http2_connections + meter.http2_opened.value,
    )


def _seconds(meter: Meter) -> list[float]:
    return [ended - begun for begun, _, ended in list(meter.window)]


_process: Final = _Process()


def register(edge: Edge) -> None:
    """Called once for each session, when its edge is made."""
    _process.register(edge)


def edges() -> list[Edge]:
    """The netkit side of every session that is alive."""
    return _process.edges()


def totals() -> dict[str, Totals]:
    """Stack → what its sessions did since the process began. Seconds; a forked child starts from its parent's."""
    return _process.totals()
