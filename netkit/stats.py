"""Always-on counters: what `netkit.stats()` shows, cheap enough never to be switched off.

Rules of this file:

- A call is in flight until its body has ended, was closed or failed; latency runs to that moment.
- Percentiles come from the last `WINDOW` calls; counters never fall.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from netkit import fork
from netkit.errors import BodyClosed

__all__ = ["Call", "Latency", "Meter", "PoolStats", "RequestStats", "Stats"]

WINDOW: Final = 2048
_now = time.monotonic


class RequestStats(msgspec.Struct, frozen=True):
    """`total` calls begun, `errors` of them failed, `in_flight` now, `attempts` sent to a transport, `qps` calls
    ended per second over the last calls (0.0 before two have ended)."""

    total: int = 0
    errors: int = 0
    in_flight: int = 0
    attempts: int = 0
    retries: int = 0
    retry_denied: int = 0
    qps: float = 0.0


class Latency(msgspec.Struct, frozen=True):
    """Seconds over the last calls; 0.0 before the first. P50, P95 and P99 are nearest-rank percentiles."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class PoolStats(msgspec.Struct, frozen=True):
    """Connections now (`open` = `idle` + `in_use`), callers `queued` for one, and totals that never fall."""

    open: int = 0
    idle: int = 0
    in_use: int = 0
    queued: int = 0
    opened_total: int = 0
    discarded_stale: int = 0
    timeouts: int = 0


class Stats(msgspec.Struct, frozen=True):
    """A frozen snapshot. `first_byte` counts to the first body byte, not to the headers. `plugins` holds what each
    plugin reports about itself, by name."""

    requests: RequestStats = RequestStats()
    latency: Latency = Latency()
    first_byte: Latency = Latency()
    pool: PoolStats = PoolStats()
    plugins: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        # `stats.http2`, `stats.batch`, …: sections that plugins bring.
        plugins = object.__getattribute__(self, "plugins")
        if name in plugins:
            return plugins[name]
        raise AttributeError(f"no plugin of this session reports {name!r}")


class Call:
    """One call's clock: made by `Meter.begin()`, ended once."""

    __slots__ = ("_meter", "attempts", "ended", "first_byte_at", "started")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.started = _now()
        self.attempts = 0
        self.first_byte_at = 0.0
        self.ended = False

    def first_byte(self, chunk: bytes) -> bytes:
        """An `on_chunk` observer."""
        if not self.first_byte_at and chunk:
            self.first_byte_at = _now()
        return chunk

    def end(self, error: BaseException | None = None) -> None:
        """An `on_end` observer; leaving a body early is no error."""
        if not self.ended:
            self.ended = True
            self._meter.ended(self, error is not None and not isinstance(error, BodyClosed))


class Meter:
    """Counts the calls of one session. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = self._errors = self._ended = self._attempts = 0
        self.retries = self.retry_denied = 0
        self._latencies: deque[float] = deque(maxlen=WINDOW)
        self._first_bytes: deque[float] = deque(maxlen=WINDOW)
        self._ends: deque[float] = deque(maxlen=WINDOW)
        fork.register(self)

    def after_fork_in_child(self) -> None:
        # The parent's calls in flight are not the child's; the lock may have been held by a thread that is not here.
        self._lock = threading.Lock()
        self._ended = self._total

    def begin(self) -> Call:
        with self._lock:
            self._total += 1
        return Call(self)

    def attempt(self, call: Call | None) -> None:
        with self._lock:
            self._attempts += 1
        if call is not None:
            call.attempts += 1

    def retry(self) -> None:
        """A layer sends a call again."""
        with self._lock:
            self.retries += 1

    def deny_retry(self) -> None:
        """A retry was due by policy and is not sent."""
        with self._lock:
            self.retry_denied += 1

    def ended(self, call: Call, failed: bool) -> None:
        now = _now()
        with self._lock:
            self._ended += 1
            self._errors += failed
        self._ends.append(now)
        self._latencies.append(now - call.started)
        if call.first_byte_at:
            self._first_bytes.append(call.first_byte_at - call.started)

    def requests(self) -> RequestStats:
        ends = self._ends
        span = ends[-1] - ends[0] if len(ends) > 1 else 0.0
        return RequestStats(
            total=self._total,
            errors=self._errors,
            in_flight=self._total - self._ended,
            attempts=self._attempts,
            retries=self.retries,
            retry_denied=self.retry_denied,
            qps=(len(ends) - 1) / span if span > 0 else 0.0,
        )

    def latency(self) -> Latency:
        return _summary(self._latencies)

    def first_byte(self) -> Latency:
        return _summary(self._first_bytes)

    def __repr__(self) -> str:
        return f"<Meter {self.requests()}>"


def _summary(window: deque[float]) -> Latency:
    values = sorted(window)
    if not values:
        return Latency()

    def rank(share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    return Latency(sum(values) / len(values), rank(0.5), rank(0.95), rank(0.99))
