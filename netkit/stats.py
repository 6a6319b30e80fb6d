"""Always-on counters: what `netkit.stats()` shows, cheap enough never to be switched off.

Rules of this file:

- A call is in flight until its body has ended, was closed or failed; latency runs to that moment.
- Percentiles come from the last `WINDOW` calls; counters never fall.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from netkit import fork
from netkit.errors import BodyClosed
from netkit.percentile import nearest_rank

__all__ = ["Call", "Counter", "Latency", "Meter", "PoolStats", "RequestStats", "Stats", "summary"]

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
    """A frozen snapshot. `first_byte` counts to the first body byte, not to the headers; `gaps` are the seconds
    between the chunks of a body, which for a token stream are its events. `plugins` holds what each
    plugin reports about itself, by name."""

    requests: RequestStats = RequestStats()
    latency: Latency = Latency()
    first_byte: Latency = Latency()
    gaps: Latency = Latency()
    pool: PoolStats = PoolStats()
    plugins: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        # `stats.http2`, `stats.batch`, …: sections that plugins bring.
        plugins = object.__getattribute__(self, "plugins")
        if name in plugins:
            return plugins[name]
        raise AttributeError(f"no plugin of this session reports {name!r}")


class Counter:
    """A number that only rises. `add()` is one step, atomic in every thread without a lock (it is C's own)."""

    __slots__ = ("_count", "add")

    def __init__(self, start: int = 0) -> None:
        self._count = itertools.count(start)
        self.add: Callable[[], int] = self._count.__next__

    @property
    def value(self) -> int:
        # itertools.count shows where it stands only in its repr: "count(7)".
        return int(repr(self._count)[6:-1])

    def __repr__(self) -> str:
        return f"<Counter {self.value}>"


class Call:
    """One call's clock: made by `Meter.begin()`, ended once."""

    __slots__ = ("_last_at", "_meter", "attempts", "ended", "first_byte_at", "started")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.attempts = 0
        self.first_byte_at = self._last_at = 0.0
        self.ended = False
        self.started = _now()

    def first_byte(self, chunk: bytes) -> bytes:
        """An `on_chunk` observer: the first one, and how far apart the others are."""
        if chunk:
            now = _now()
            if self.first_byte_at:
                self._meter.gap_window.append(now - self._last_at)
            else:
                self.first_byte_at = now
            self._last_at = now
        return chunk

    def end(self, error: BaseException | None = None) -> None:
        """An `on_end` observer. Leaving a body early, or being cancelled, is no error."""
        if not self.ended:
            self.ended = True
            meter = self._meter
            if self.started < meter.since:
                return
            meter.ended.add()
            if error is not None and isinstance(error, Exception) and not isinstance(error, BodyClosed):
                meter.errors.add()
            meter.window.append((self.started, self.first_byte_at, _now()))


class Meter:
    """Counts the calls of one session. Safe from any thread."""

    __slots__ = (
        "__weakref__",
        "attempts",
        "begun",
        "ended",
        "errors",
        "gap_window",
        "http1_opened",
        "http2_opened",
        "retries",
        "retry_denied",
        "since",
        "window",
    )

    def __init__(self) -> None:
        self.since = 0.0
        """Calls that began before this time are another process's."""
        self.begun = Counter()
        self.ended = Counter()
        self.errors = Counter()
        self.attempts = Counter()
        self.retries = Counter()
        self.retry_denied = Counter()
        self.http1_opened = Counter()
        """Connections. The stack's pool counts them: its counter takes this one's place."""
        self.http2_opened = Counter()
        self.window: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        """The last calls: when each began, when its first body byte came (0.0: none did), when it ended."""
        self.gap_window: deque[float] = deque(maxlen=WINDOW)
        """Seconds between the chunks of the last bodies."""
        fork.register(self)

    def after_fork_in_child(self) -> None:
        # The parent's calls in flight are not the child's, also when what is left of them ends here.
        self.ended = Counter(self.begun.value)
        self.since = _now()

    def begin(self) -> Call:
        self.begun.add()
        return Call(self)

    def attempt(self, call: Call | None) -> None:
        self.attempts.add()
        if call is not None:
            call.attempts += 1

    def retry(self) -> None:
        """A layer sends a call again."""
        self.retries.add()

    def deny_retry(self) -> None:
        """A retry was due by policy and is not sent."""
        self.retry_denied.add()

    def requests(self) -> RequestStats:
        window = list(self.window)
        span = window[-1][2] - window[0][2] if len(window) > 1 else 0.0
        ended = self.ended.value
        return RequestStats(
            total=self.begun.value,
            errors=self.errors.value,
            in_flight=self.begun.value - ended,
            attempts=self.attempts.value,
            retries=self.retries.value,
            retry_denied=self.retry_denied.value,
            qps=(len(window) - 1) / span if span > 0 else 0.0,
        )

    def latency(self) -> Latency:
        return summary([end - begin for begin, _, end in list(self.window)])

    def gaps(self) -> Latency:
        return summary(list(self.gap_window))

    def first_byte(self) -> Latency:
        return summary([first - begin for begin, first, _ in list(self.window) if first])

    def __repr__(self) -> str:
        return f"<Meter {self.requests()}>"


def summary(window: list[float]) -> Latency:
    """Mean and percentiles of some durations in seconds, in any order."""
    values = sorted(window)
    if not values:
        return Latency()

    return Latency(sum(values) / len(values), *(nearest_rank(values, share) for share in (0.5, 0.95, 0.99)))
