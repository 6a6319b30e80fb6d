"""What an adapter holds for each session: its configuration, its composed chains, its counters.

Rules of this file:

- Chains are composed once per plan and kept; a request without routes or overrides finds its chain by one
  attribute access.
- One layer instance serves every chain of a session that uses it with the same options, so that state (a breaker,
  a budget, a queue) is shared between routes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from netkit import fork, process
from netkit.config import Config, PluginSettings
from netkit.errors import ConfigError, PluginError
from netkit.events import CallEnded, CallStarted, Emitter
from netkit.flow import Layer, Send, compose
from netkit.plugins import Context, Registration, Registry, registry
from netkit.stats import Call, Meter, PoolStats, Stats
from netkit.urls import origin_of

if TYPE_CHECKING:
    from netkit.config import Plan
    from netkit.events import Event
    from netkit.http2.port import Http2Port
    from netkit.knobs import Knob
    from netkit.messages import Request
    from netkit.pooling import NativePool
    from netkit.runtime import Runtime

__all__ = ["Edge", "configured", "overrides"]

MAX_CHAINS: Final = 256
"""Distinct (routes, overrides) pairs kept per session; beyond it the oldest is composed anew when needed."""


class _Overrides:
    """One frozen set of overrides; its identity is part of a chain's key, so equal sets must be one object."""

    __slots__ = ("key", "plugins")

    def __init__(self, plugins: Mapping[str, Any]) -> None:
        self.plugins = plugins
        self.key = repr(sorted((name, _frozen(value)) for name, value in plugins.items()))


def _frozen(value: Any) -> Any:
    return sorted((key, repr(item)) for key, item in value.items()) if isinstance(value, Mapping) else repr(value)


_overrides: ContextVar[_Overrides | None] = ContextVar("netkit_overrides", default=None)


@contextmanager
def overrides(**plugins: PluginSettings) -> Iterator[None]:
    """Change plugins for the calls made inside, on every stack.

    Example::

        with netkit.overrides(retry={"attempts": 1}, cache=False):
            session.get(url)

    True switches a plugin on with its configured options, False off, a table changes single options. Nested uses
    add up, the inner one wins. It follows the context: threads started inside do not inherit it, tasks do.
    Raises `ConfigError` at once for an unknown plugin or option.
    """
    Config().with_plugins(plugins, source="overrides").check(registry(), complete=False)
    outer = _overrides.get()
    merged: dict[str, Any] = dict(outer.plugins) if outer else {}
    for name, value in plugins.items():
        known = merged.get(name)
        if isinstance(known, Mapping) and value is not False:
            merged[name] = {**known, **value} if isinstance(value, Mapping) else known
        else:
            merged[name] = value
    token = _overrides.set(_Overrides(merged))
    try:
        yield
    finally:
        _overrides.reset(token)


def configured(
    plugins: Mapping[str, PluginSettings] | None, config: Config | str | None, known: Registry | None = None
) -> Config:
    """What a session's arguments come to on top of its configuration; see `Edge`. Raises `ConfigError` for what is
    wrong in either: an adapter asks before it takes apart what a session has."""
    loaded = config if isinstance(config, Config) else Config.default() if config is None else Config.load(config)
    whole = loaded.with_plugins(plugins or {}, source="arguments")
    whole.check(known or registry())
    return whole


class Edge:
    """The netkit side of one session or client.

    `terminal` sends a request through the stack's own transport; `runtime` is how layers wait there.
    """

    def __init__(
        self,
        *,
        stack: str,
        runtime: Runtime,
        terminal: Send,
        plugins: Mapping[str, PluginSettings] | None = None,
        config: Config | str | None = None,
        pool: NativePool | None = None,
        http2: Http2Port | None = None,
        known: Registry | None = None,
    ) -> None:
        self._registry = known or registry()
        self.config = configured(plugins, config, self._registry)
        self.meter = Meter()
        if pool is not None:
            self.meter.http1_opened = pool.opened_total
        self.emit = Emitter()
        self.pool = pool
        self.stack = stack
        self._terminal = terminal
        self._context = Context(
            runtime=runtime,
            emit=self.emit,
            stack=stack,
            meter=self.meter,
            pool=pool,
            http2=http2,
            settings=self._settings,
            knobs=self._knobs,
        )
        self._instances: dict[tuple[str, Any], Layer] = {}
        self._chains: dict[tuple[tuple[int, ...], str], Send] = {}
        self._observed: set[str] = set()
        self._lock = threading.RLock()
        fork.register(self)
        self._has_routes = bool(self.config.routes)
        self.spans_hops = self._has_routes
        """Whether a layer may want to know which hops (redirects, legs of authentication) make up one call; an
        adapter that has to do something for that does it only then."""
        plan = self.config.plan(self._registry)
        self._bare = not plan.steps and not self._has_routes
        self._default = self._compose(plan)
        process.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()

    @property
    def is_bare(self) -> bool:
        """Nothing stands between the caller and the stack's transport, and nobody listens: an adapter then makes the
        native call itself and only counts it, up to its head."""
        return self._bare and not self.emit and _overrides.get() is None

    def select(self, url: str) -> Send:
        """The chain for a request to `url` in the present context."""
        override = _overrides.get()
        if override is None and not self._has_routes:
            return self._default
        routes = self.config.matching_routes(url) if self._has_routes else ()
        key = (routes, override.key if override else "")
        chain = self._chains.get(key)
        if chain is None:
            plan = self.config.plan(self._registry, routes=routes, overrides=override.plugins if override else None)
            with self._lock:
                if len(self._chains) >= MAX_CHAINS:
                    self._forget_chains()
                chain = self._chains[key] = self._compose(plan)
        return chain

    def begin(self, request: Request) -> Call:
        """Start a call's clock; the adapter ends it through `finish` or the body's observers."""
        call = self.meter.begin()
        if self.emit:
            self.emit(CallStarted(time=call.started, method=request.method, origin=origin_of(request.url)))
        return call

    def tell_end(self, request: Request, call: Call, status: int | None) -> Callable[[BaseException | None], None]:
        """An `on_end` observer that stops the clock, and tells listeners where there are any."""
        if not self.emit:
            return call.end

        def end(error: BaseException | None) -> None:
            call.end(error)
            now = self._context.runtime.now()
            self.emit(
                CallEnded(
                    time=now,
                    method=request.method,
                    origin=origin_of(request.url),
                    status=status,
                    error=None if error is None else type(error).__name__,
                    attempts=call.attempts,
                    seconds=now - call.started,
                )
            )

        return end

    def stats(self) -> Stats:
        """A frozen snapshot of everything that this session counts."""
        sections: dict[str, Any] = {}
        for (name, _), layer in list(self._instances.items()):
            report = getattr(layer, "stats", None)
            if report is not None:
                section = getattr(layer, "stats_section", name)
                found = report()
                known = sections.setdefault(section, found)
                # The default plan's instance came first; those of routes and overrides count for themselves, unless
                # their sections are tables, or know how to add up.
                if known is not found and isinstance(known, dict) and isinstance(found, dict):
                    sections[section] = {**found, **known}
                elif known is not found and type(known) is type(found) and hasattr(known, "__add__"):
                    sections[section] = known + found
        pool = sections.pop("pool", None)
        if pool is None:
            counts = self.pool.counts() if self.pool is not None else None
            pool = (
                PoolStats()
                if counts is None
                else PoolStats(
                    open=counts.open,
                    idle=counts.idle,
                    in_use=counts.in_use,
                    opened_total=counts.opened_total,
                    discarded_stale=counts.discarded_stale,
                )
            )
        return Stats(
            requests=self.meter.requests(),
            latency=self.meter.latency(),
            first_byte=self.meter.first_byte(),
            gaps=self.meter.gaps(),
            pool=pool,
            plugins=sections,
        )

    def describe(self) -> dict[str, dict[str, str]]:
        """Plugin → option → how it applies on this stack, or that it does not."""
        described: dict[str, dict[str, str]] = {}
        for (name, _), layer in list(self._instances.items()):
            describe = getattr(layer, "describe", None)
            if describe is not None:
                described.setdefault(name, describe())
        return described

    def close(self) -> None:
        """Let layers drop what they hold. The session stays usable where its stack allows that."""
        for layer in list(self._instances.values()):
            close = getattr(layer, "close", None)
            if close is not None:
                close()

    def _settings(self, name: str) -> Any:
        """The options with which another plugin runs in this session by default, None when it is off."""
        steps = self.config.plan(self._registry).steps
        return next((step.options for step in steps if step.registration.name == name), None)

    def _knobs(self) -> dict[str, Knob]:
        """What layers let others move. Of two layers of one plugin the default plan's counts: it was made first."""
        found: dict[str, Knob] = {}
        for (name, _), layer in list(self._instances.items()):
            offer = getattr(layer, "knobs", None)
            for knob in () if offer is None else offer():
                found.setdefault(f"{name}.{knob.name}", knob)
        return found

    def _forget_chains(self) -> None:
        """Too many distinct routes and overrides: all but the default chain's layers are let go and made anew."""
        plan = self.config.plan(self._registry)
        keep = {(step.registration.name, step.options) for step in plan.steps}
        dropped = [layer for key, layer in self._instances.items() if key not in keep]
        self._instances = {key: layer for key, layer in self._instances.items() if key in keep}
        self._chains.clear()
        for layer in dropped:
            close = getattr(layer, "close", None)
            if close is not None:
                close()

    def _compose(self, plan: Plan) -> Send:
        layers: list[Layer] = []
        around_attempts: list[Layer] = []
        transports: list[Layer] = []
        for step in plan.steps:
            layer = self._instance(step.registration, step.options)
            (layers if step.registration.kind == "layer" else transports).append(layer)
            around = getattr(layer, "around_attempt", None)
            if around is not None:
                around_attempts.append(around)
        return compose([*layers, *around_attempts, *transports], self._terminal)

    def _instance(self, registration: Registration, options: Any) -> Layer:
        key = (registration.name, options)
        try:
            known = self._instances.get(key)
        except TypeError as error:
            raise PluginError(f"plugin {registration.name!r}: options must be hashable: {error}") from error
        if known is not None:
            return known
        with self._lock:
            # Two threads may get here at once: two instances would be two queues, each with the whole limit.
            known = self._instances.get(key)
            if known is not None:
                return known
            try:
                layer = registration.factory(options, self._context)
            except (ConfigError, PluginError):
                raise
            except Exception as error:
                raise PluginError(f"plugin {registration.name!r} failed to build its layer: {error}") from error
            if registration.name not in self._observed:
                self._observed.add(registration.name)
                for observer in self._registry.observers(registration.name):
                    self.emit.add(partial(_observe, observer))
            self.spans_hops = self.spans_hops or getattr(layer, "spans_hops", False)
            self._instances[key] = layer
        return layer

    def __repr__(self) -> str:
        return f"<Edge {self.stack} {[name for name, _ in self._instances]}>"


def _observe(observer: Callable[..., None], event: Event) -> None:
    observer(event=event)
