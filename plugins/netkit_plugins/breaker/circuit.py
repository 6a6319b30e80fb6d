"""One circuit: who may pass, and what each outcome makes of it. Pure: knows no runtime, no Redis and no clock.

Rules of this file:

- The lock is held for a few assignments, never over a call. It can be entered again: a collector that runs inside it
  may end the body of another call.
- Each permit is settled once, and counts only while the state in which it was given lasts (`generation`).
- pybreaker keeps the state and the count of failures; the times are monotonic, which its own are not.
"""

from __future__ import annotations

import random
import threading
from typing import Final, NamedTuple

import msgspec
from pybreaker import (
    STATE_CLOSED,
    STATE_OPEN,
    CircuitBreaker,
    CircuitMemoryStorage,
)

from netkit.runtime import Event
from netkit_plugins.breaker.options import BreakerOptions
from netkit_plugins.breaker.window import Window

__all__ = ["Change", "Circuit", "CircuitStats", "Permit", "Snapshot", "jitter", "open_seconds"]

LEASE: Final = 30.0
"""Seconds, at least, after which a probe of which nothing was heard does not keep the next one out."""

JITTER: Final = 0.1
MAX_COPIED: Final = 1000
"""Failures in a row, seen by all processes, beyond which a copy does not count on (pybreaker counts one by one)."""


class CircuitStats(msgspec.Struct, frozen=True):
    """`state` is "closed", "open" or "half-open"; `failures` in a row; `opened_total` and `rejected` never fall;
    `next_probe` is the time in seconds until a probe is let through (0.0 when it is closed or the time has come);
    `in_use` counts probes under way."""

    state: str
    failures: int
    opened_total: int
    rejected: int
    next_probe: float
    in_use: int


class Change(NamedTuple):
    """The circuit changed its state. `seconds` until the next probe, and why it opened: "failures", "ratio", "probe"
    or "shared"."""

    state: str
    reason: str = ""
    seconds: float = 0.0


class Snapshot(NamedTuple):
    """A circuit as all processes see it. `remaining` seconds of being open; `epoch` rises with every opening and
    closing; `granted`: this process got the probe that it asked for."""

    state: str
    failures: int
    remaining: float
    epoch: int
    cycle: int
    granted: bool


class Permit:
    """What an admitted call holds until its outcome is known."""

    __slots__ = ("epoch", "expires", "generation", "is_probe", "settled")

    def __init__(self, generation: int, epoch: int, expires: float | None = None) -> None:
        self.generation = generation
        self.epoch = epoch
        self.expires = expires
        self.is_probe = expires is not None
        self.settled = False


class Circuit:
    """Times are monotonic seconds. Safe from any thread."""

    def __init__(self, name: str, options: BreakerOptions) -> None:
        self.name = name
        self._options = options
        self._storage = CircuitMemoryStorage(STATE_CLOSED)
        self._breaker = CircuitBreaker(
            fail_max=options.fail_max or 0,
            reset_timeout=options.reset_timeout,
            state_storage=self._storage,
            throw_new_error_on_trip=False,
            name=name,
        )
        self._window = Window(options.window)
        self._probes: set[Permit] = set()
        self._lock = threading.RLock()
        self._generation = 0
        self._cycle = 0
        """How many probes have failed since it opened."""
        self._until = 0.0
        self._hold = 0.0
        self._opened_total = self._rejected = 0
        self.used = 0.0
        """When it was last asked: what is not used goes first when there are too many."""
        self.epoch = -1
        """The last that was seen; -1 before the first."""
        self.synced = float("-inf")
        """When it was last compared with what the other processes see."""
        self.waiting: set[Event] = set()
        """Callers to wake when it closes; the layer's own."""
        self.is_looked_at = False
        self._is_ahead = False
        """It opened while the others could not be told."""

    @property
    def state(self) -> str:
        return str(self._storage.state)

    @property
    def failures(self) -> int:
        return int(self._storage.counter)

    def admit(self, now: float) -> Permit | None:
        """A permit for one call; None when it has to be refused."""
        self.used = now
        if self._storage.state == STATE_CLOSED:
            return Permit(self._generation, self.epoch)
        with self._lock:
            if self._storage.state == STATE_CLOSED:
                return Permit(self._generation, self.epoch)
            permit = self._probe(now)
            if permit is None:
                self._rejected += 1
            return permit

    def _probe(self, now: float) -> Permit | None:
        if now < self._until or now < self._hold:
            return None
        for probe in list(self._probes):
            if probe.expires is not None and now >= probe.expires:
                self._probes.discard(probe)
        if len(self._probes) >= self._options.probes:
            return None
        if self._storage.state == STATE_OPEN:
            self._breaker.half_open()
        permit = Permit(self._generation, self.epoch, now + max(LEASE, self._options.reset_timeout))
        self._probes.add(permit)
        return permit

    def retry_after(self, now: float) -> float:
        """Seconds until a call has a chance: until the next probe, or, while one is under way, for as long as a
        failure of it would keep the circuit open at least."""
        wait = max(self._until, self._hold) - now
        return wait if wait > 0 else self._options.reset_timeout

    def succeed(self, permit: Permit, now: float) -> Change | None:
        """The call ended well."""
        with self._lock:
            if not self._settle(permit):
                return None
            if permit.is_probe:
                return self._close()
            if self._storage.counter:
                self._storage.reset_counter()
            self._window.count(now, failed=False)
            return None

    def fail(self, permit: Permit, now: float, *, reported: bool = False) -> Change | None:
        """The call failed, and this process alone knows. `reported`: others were to be told, and could not be."""
        with self._lock:
            if reported:
                if permit.generation != self._generation:
                    return None
            elif not self._settle(permit):
                return None
            else:
                self._window.count(now, failed=True)
            self._is_ahead = True
            if permit.is_probe:
                return self._open(now, self._cycle + 1, "probe")
            self._storage.increment_counter()
            if self._options.fail_max is not None and self._storage.counter >= self._options.fail_max:
                return self._open(now, 0, "failures")
            return self._open(now, 0, "ratio") if self._has_tipped(now) else None

    def report(self, permit: Permit, now: float) -> str | None:
        """The call failed, and all processes are to be told: what that means to them ("failed" probe, "trip" by
        ratio, or one more to "count"). None when it belongs to the past. The answer comes through `adopt`."""
        with self._lock:
            if not self._settle(permit):
                return None
            self._window.count(now, failed=True)
            if permit.is_probe:
                return "failed"
            return "trip" if self._has_tipped(now) else "count"

    def release(self, permit: Permit) -> None:
        """The call said nothing about the server (cancelled, its own fault): its place is free again."""
        with self._lock:
            self._settle(permit)

    def adopt(self, snapshot: Snapshot, now: float) -> Change | None:
        """Take over what all processes see, unless this one knows better."""
        with self._lock:
            self.synced = now
            state = self._storage.state
            if snapshot.epoch < self.epoch or (self._is_ahead and state == STATE_OPEN and now < self._until):
                return None
            self.epoch, self._cycle, self._is_ahead = snapshot.epoch, snapshot.cycle, False
            if snapshot.state == STATE_CLOSED:
                change = None if state == STATE_CLOSED else self._close()
                self._storage.reset_counter()
                for _ in range(min(snapshot.failures, MAX_COPIED)):
                    self._storage.increment_counter()
                return change
            if snapshot.state == STATE_OPEN:
                if state == STATE_OPEN:
                    self._until = now + snapshot.remaining
                    return None
                return self._open(now, snapshot.cycle, "shared", snapshot.remaining)
            # Another process probes: this one asks when it has a call.
            return self._open(now, snapshot.cycle, "shared", 0.0) if state == STATE_CLOSED else None

    def hold(self, until: float) -> None:
        """Admit no probe before `until`: other processes have them all."""
        self._hold = until

    def stats(self, now: float) -> CircuitStats:
        with self._lock:
            state = str(self._storage.state)
            return CircuitStats(
                state=state,
                failures=int(self._storage.counter),
                opened_total=self._opened_total,
                rejected=self._rejected,
                next_probe=max(0.0, self._until - now) if state == STATE_OPEN else 0.0,
                in_use=len(self._probes),
            )

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held it."""
        self._lock = threading.RLock()

    def _settle(self, permit: Permit) -> bool:
        """Whether this is the permit's first outcome, and of the present state."""
        if permit.settled:
            return False
        permit.settled = True
        self._probes.discard(permit)
        return permit.generation == self._generation

    def _has_tipped(self, now: float) -> bool:
        ratio = self._options.failure_ratio
        return ratio is not None and self._window.exceeds(now, ratio, self._options.min_calls)

    def _open(self, now: float, cycle: int, reason: str, seconds: float | None = None) -> Change:
        if seconds is None:
            seconds = open_seconds(self._options, cycle) * jitter()
        self._breaker.open()
        self._generation += 1
        self._cycle = cycle
        self._until = now + seconds
        self._hold = 0.0
        self._probes.clear()
        self._opened_total += 1
        return Change(STATE_OPEN, reason, seconds)

    def _close(self) -> Change:
        self._breaker.close()
        self._generation += 1
        self._cycle = 0
        self._until = self._hold = 0.0
        self._probes.clear()
        self._window.clear()
        self._is_ahead = False
        return Change(STATE_CLOSED)

    def __repr__(self) -> str:
        return f"<Circuit {self.name} {self._storage.state} failures={self._storage.counter}>"


def open_seconds(options: BreakerOptions, cycle: int) -> float:
    """How long it stays open after `cycle` failed probes, before jitter."""
    return float(
        min(options.reset_timeout * 2.0 ** min(cycle, 32), max(options.reset_timeout_max, options.reset_timeout))
    )


def jitter() -> float:
    """What the time of being open is multiplied with: it only grows."""
    return 1.0 + random.random() * JITTER
