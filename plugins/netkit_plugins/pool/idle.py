"""How long an idle connection may be trusted: what the server says, else what was seen to work.

A server closes what lies idle, and a request that meets this close half-way fails though nobody did wrong. uvicorn
(and so vLLM) closes after 5 s, nginx after 75, a load balancer after 60: no one number fits, so each origin's is
learned.

Rules of this file:

- Start at 4 s. `Keep-Alive: timeout=N` sets the limit just under N, at any N.
- Without that, a reuse near the limit raises it by a quarter: a step past what was seen to work, no more.
- A connection that died idle lowers it below that age. One that died later than any that worked also bounds it; the
  bound gives way by a twentieth with each reuse close to it, so that a restart or a new server is not held against
  the origin for ever.
- Pure: no clock of its own, numbers come from the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from netkit import fork
from netkit_plugins.pool.options import PoolOptions

__all__ = ["IdlePolicy"]

START: Final = 4.0
LEAST: Final = 0.25
MOST_UNTOLD: Final = 55.0
"""Without a hint, stay below the 60 s at which load balancers commonly drop idle connections without a word."""

NEAR: Final = 0.8
STEP: Final = 1.25
EASE: Final = 1.05
MAX_ORIGINS: Final = 4096


class _Learned:
    __slots__ = ("bound", "hint", "limit", "worked")

    def __init__(self) -> None:
        self.limit = START
        self.bound = MOST_UNTOLD
        self.worked = 0.0
        self.hint: float | None = None


class IdlePolicy:
    """netkit.pooling.ConnectionPolicy for one set of options. Safe from any thread.

    `now` is the clock by which drivers measure `age`. With it a connection's time of birth is known at each look,
    and draws its place in the ±10 % of `max_lifetime`: the same at every look, another for every connection.
    """

    def __init__(self, options: PoolOptions, now: Callable[[], float], salt: int = 0) -> None:
        self._fixed = None if isinstance(options.idle_timeout, str) else float(options.idle_timeout)
        self._lifetime = options.max_lifetime
        self._max_requests = options.max_requests
        self._now = now
        self._salt = salt
        self._origins: dict[str, _Learned] = {}
        self._lock = threading.Lock()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Another thread of the parent may have held the lock; what was learned of servers stays true."""
        self._lock = threading.Lock()

    def discard_reason(self, origin: str, *, idle: float, age: float, requests: int) -> str | None:
        if idle > self.idle_limit(origin):
            return "idle"
        if self._lifetime is not None and age > 0.9 * self._lifetime and age > self.lifetime(self._now() - age):
            return "lifetime"
        if self._max_requests is not None and requests >= self._max_requests:
            return "max_requests"
        return None

    def idle_limit(self, origin: str) -> float:
        if self._fixed is not None:
            return self._fixed
        learned = self._origins.get(origin)
        return START if learned is None else learned.limit

    def lifetime(self, born: float) -> float:
        """Seconds that a connection opened at `born` may live: max_lifetime ± 10 %."""
        assert self._lifetime is not None
        share = hash((self._salt, round(born * 1000))) % 10_007 / 10_006
        return self._lifetime * (0.9 + 0.2 * share)

    def keep_alive_hint(self, origin: str, timeout: float) -> None:
        with self._lock:
            learned = self._learned(origin)
            if learned.hint == timeout:
                # It comes with every answer: only news may undo what was learned since.
                return
            learned.hint = timeout
            learned.limit = learned.bound = max(0.0, timeout - min(1.0, 0.1 * timeout))

    def reused(self, origin: str, idle: float) -> None:
        if self._fixed is not None:
            return
        known = self._origins.get(origin)
        if known is not None and idle <= known.worked and idle < NEAR * known.limit:
            return
        with self._lock:
            learned = self._learned(origin)
            learned.worked = max(learned.worked, idle)
            if idle >= NEAR * learned.bound and learned.hint is None:
                learned.bound = min(MOST_UNTOLD, learned.bound * EASE)
            if idle >= NEAR * learned.limit:
                learned.limit = max(learned.limit, min(learned.bound, idle * STEP))

    def died(self, origin: str, idle: float) -> None:
        with self._lock:
            learned = self._learned(origin)
            under = max(LEAST, NEAR * idle)
            if idle > learned.worked:
                learned.bound = min(learned.bound, under)
            else:
                learned.worked = min(learned.worked, under)
            learned.limit = min(learned.limit, under)

    def _learned(self, origin: str) -> _Learned:
        learned = self._origins.get(origin)
        if learned is None:
            if len(self._origins) >= MAX_ORIGINS:
                del self._origins[next(iter(self._origins))]
            learned = self._origins[origin] = _Learned()
        return learned

    def __repr__(self) -> str:
        limits = {origin: learned.limit for origin, learned in list(self._origins.items())[-8:]}
        return f"<IdlePolicy {self._fixed if self._fixed is not None else limits or START}>"
