"""Prometheus: durations as a histogram, and everything that `netkit.stats()` counts, at each scrape.

Rules of this file:

- One collector per process, registered once: it looks at all sessions, whoever switched it on.
- Labels are the stack, the method, the host and the class of the status. Series stay few however many URLs there are.
"""

from __future__ import annotations

import errno
import inspect
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final

import msgspec
from prometheus_client import REGISTRY, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from netkit import Request, Response, fork, process
from netkit.errors import BodyClosed, ConfigError
from netkit.plugins import Context
from netkit_plugins.telemetry.kinds import Few, address_of, method_of
from netkit_plugins.telemetry.options import TelemetryOptions

__all__ = ["PrometheusWatcher"]

MAX_HOSTS: Final = 100
"""Hosts with a series of their own; what comes later is counted as "other"."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

log = logging.getLogger("netkit.telemetry")

_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))

_lock = fork.lock()
_seconds: Histogram | None = None
_served: set[int] = set()
_host: Final = Few(MAX_HOSTS)


class PrometheusWatcher:
    def __init__(self, options: TelemetryOptions, context: Context) -> None:
        self._stack = context.stack
        self._seconds = _register()
        if options.prometheus_port is not None:
            _serve(options.prometheus_port)

    def begin(self, request: Request) -> _Call:
        host = _host(address_of(request.url)[0])
        return _Call(self._seconds, (self._stack, method_of(request.method), host))


class _Call:
    __slots__ = ("_labels", "_seconds", "_started")

    def __init__(self, seconds: Histogram, labels: tuple[str, str, str]) -> None:
        self._seconds = seconds
        self._labels = labels
        self._started = time.monotonic()

    def answered(self, response: Response) -> None:
        pass

    def attempt(self, request: Request) -> tuple[Request, Callable[[Response | None, BaseException | None], None]]:
        return request, _nothing

    def end(self, response: Response | None, error: BaseException | None) -> None:
        failed = error is not None and not isinstance(error, BodyClosed)
        status = "error" if failed or response is None else f"{response.status // 100}xx"
        self._seconds.labels(*self._labels, status).observe(time.monotonic() - self._started)


def _nothing(response: Response | None, error: BaseException | None) -> None:
    pass


def _register() -> Histogram:
    global _seconds
    with _lock:
        if _seconds is None:
            _seconds = Histogram(
                "netkit_call_duration_seconds",
                "Calls, from their start to the end of the answer's body",
                ("stack", "method", "host", "status"),
                buckets=BUCKETS,
            )
            sessions = _Sessions()
            fork.register(sessions)
            REGISTRY.register(sessions)
        return _seconds


def _serve(port: int) -> None:
    with _lock:
        if port in _served:
            return
        try:
            start_http_server(port, addr="127.0.0.1")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                # One setting serves all workers of a program, and a port only one of them.
                log.warning("netkit: telemetry.prometheus_port: %d is taken; this process serves no metrics", port)
                _served.add(port)
                return
            raise ConfigError(f"telemetry.prometheus_port: {port}: {error.strerror}") from error
        _served.add(port)


class _Sessions(Collector):
    """What the sessions of this process count, summed up by stack."""

    def after_fork_in_child(self) -> None:
        # prometheus_client leaves its mutexes as they were when another thread of the parent may have held them.
        for mutex in _mutexes(REGISTRY, set()):
            mutex._at_fork_reinit()

    def collect(self) -> Iterable[Metric]:
        totals = process.totals()
        for name, text in (
            ("requests", "Calls begun"),
            ("errors", "Calls that failed"),
            ("attempts", "Requests sent"),
            ("retries", "Requests sent again"),
        ):
            family = CounterMetricFamily(f"netkit_{name}", text, labels=["stack"])
            for stack, total in totals.items():
                family.add_metric([stack], getattr(total, name))
            yield family
        latency = GaugeMetricFamily(
            "netkit_latency_seconds", "Duration of the last calls", labels=["stack", "quantile"]
        )
        for stack, total in totals.items():
            for quantile, value in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99")):
                latency.add_metric([stack, quantile], getattr(total.latency, value))
        yield latency
        yield from _gauges()


def _mutexes(thing: Any, seen: set[int]) -> Iterator[Any]:
    """The locks in a registry, its metrics and their values; of values in files (PROMETHEUS_MULTIPROC_DIR) also the
    one that their methods share."""
    if isinstance(thing, _LOCKS):
        yield thing
    elif id(thing) not in seen:
        seen.add(id(thing))
        parts: list[Any] = []
        if isinstance(thing, dict):
            parts = [*thing, *thing.values()]
        elif isinstance(thing, list | tuple):
            parts = list(thing)
        elif type(thing).__module__.partition(".")[0] == "prometheus_client":
            methods = [each for each in vars(type(thing)).values() if isinstance(each, FunctionType)]
            shared = [value for each in methods for value in inspect.getclosurevars(each).nonlocals.values()]
            parts = [*vars(thing).values(), *(value for value in shared if isinstance(value, _LOCKS))]
        for part in parts:
            yield from _mutexes(part, seen)


def _gauges() -> Iterable[Metric]:
    """Numbers of the sessions that are alive: in flight, pools, and what each plugin reports about itself."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for edge in process.edges():
        stats = edge.stats()
        sums["netkit_in_flight"][edge.stack] += stats.requests.in_flight
        for section, report in (("pool", stats.pool), *stats.plugins.items()):
            for name, value in _numbers(report):
                sums[f"netkit_{section}_{name}"][edge.stack] += value
    for name, stacks in sums.items():
        family = GaugeMetricFamily(name, "netkit.stats() of live sessions, summed up", labels=["stack"])
        for stack, value in stacks.items():
            family.add_metric([stack], value)
        yield family


def _numbers(report: Any) -> Iterable[tuple[str, float]]:
    """The plain numbers of a section; what is nested (breakers by name) is left to `netkit.stats()`."""
    if isinstance(report, msgspec.Struct):
        report = msgspec.structs.asdict(report)
    if isinstance(report, Mapping):
        for name, value in report.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and str(name).isidentifier():
                yield str(name), float(value)
