"""Finding plugins: the built-in table, entry points, and what each registers.

Rules of this file:

- A plugin's module is imported when its name is first used in a plan, a config table or an argument; never before.
- pluggy collects registrations and checks signatures; it never runs a request.
- Every failure names the plugin.
"""

from __future__ import annotations

import dataclasses
import importlib
import threading
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

import pluggy

from netkit import fork
from netkit.errors import PluginError
from netkit.hookspecs import PROJECT, Hooks

if TYPE_CHECKING:
    from netkit.events import Emitter
    from netkit.flow import Layer
    from netkit.http2.port import Http2Port
    from netkit.knobs import Knob
    from netkit.pooling import NativePool
    from netkit.runtime import Runtime
    from netkit.stats import Meter

__all__ = [
    "DEFAULT_LAYERS",
    "DEFAULT_PLUGINS",
    "IMPLICIT_PLUGINS",
    "TRANSPORTS",
    "Context",
    "Registration",
    "Registry",
    "registry",
]

DEFAULT_PLUGINS: Final[dict[str, str]] = {
    "image": "netkit_plugins.image",
    "limit": "netkit_plugins.limit",
    "retry": "netkit_plugins.retry",
    "pool": "netkit_plugins.pool",
    "http2": "netkit_plugins.http2",
    "coalesce": "netkit_plugins.coalesce",
    "batch": "netkit_plugins.batch",
    "hedge": "netkit_plugins.hedge",
    "balance": "netkit_plugins.balance",
    "breaker": "netkit_plugins.breaker",
    "telemetry": "netkit_plugins.telemetry",
    "cache": "netkit_plugins.cache",
    "deadline": "netkit_plugins.deadline",
    "adaptive": "netkit_plugins.adaptive",
}
"""Built-in plugins: name → module."""

DEFAULT_LAYERS: Final[tuple[str, ...]] = (
    "telemetry",
    "adaptive",
    "deadline",
    "cache",
    "coalesce",
    "image",
    "batch",
    "limit",
    "retry",
    "hedge",
    "balance",
    "breaker",
)
"""The order of layers, outermost first. `layers = […]` in the configuration replaces it; nothing reorders it."""

TRANSPORTS: Final[tuple[str, ...]] = ("http2", "pool")
"""Innermost, in this order, around the stack's own transport."""

IMPLICIT_PLUGINS: Final[tuple[str, ...]] = ("retry", "http2", "pool")
"""Built-ins that may be on without being asked for. The rest is not even imported to find out: installing a package
never changes anybody's traffic by itself."""

ENTRY_POINT_GROUP: Final = "netkit"


@dataclasses.dataclass(frozen=True)
class Context:
    """What a factory gets besides its options.

    `runtime` is how its layer waits; `emit` tells listeners (false while there are none); `stack` is "requests",
    "httpx", "httpx2" or "aiohttp"; `meter` counts retries; `pool` is the stack's own connection pool where it has
    one that can be driven, `http2` its side of HTTP/2. `settings(name)` gives the options with which another plugin
    runs in this session, None when it is off. `knobs()` gives what this session's layers let others move
    (`netkit.knobs`), by "plugin.option": complete once the session is built, so to be asked at calls.
    """

    runtime: Runtime
    emit: Emitter
    stack: str
    meter: Meter
    pool: NativePool | None = None
    http2: Http2Port | None = None
    settings: Callable[[str], Any] = lambda name: None
    knobs: Callable[[], Mapping[str, Knob]] = dict


@dataclasses.dataclass(frozen=True)
class Registration:
    """One layer or transport that a plugin brings.

    `factory(options, context)` returns the layer: an `async def (request, send)` or a callable object, which may
    also have `close()` and `stats()`: its section of `netkit.stats()`, called as its attribute `stats_section` says,
    else as the plugin. `options` is a frozen dataclass whose fields, types and defaults are the plugin's
    configuration. `kind` is "layer" or "transport". `implicit` holds the options that apply when nobody configured
    the plugin: None means it is off until asked for.
    `request_headers` names the headers that it may add or change on the wire. `summary` is one line for
    `netkit plugins`.
    also have `stats()` (its section of `netkit.stats()`), `describe()` (option → how it applies on this stack),
    `close()`, and `around_attempt`, a second layer that stands inside all others and so sees each attempt.
    `options` is a frozen dataclass whose fields, types and defaults are the plugin's configuration. `kind` is "layer"
    or "transport". `implicit` holds the options that apply when nobody configured the plugin: None means it is off
    until asked for. `request_headers` names the headers that it may add or change on the wire. `summary` is one line
    for `netkit plugins`.
    """

    name: str
    factory: Callable[[Any, Context], Layer]
    options: type
    kind: str
    implicit: Any
    request_headers: tuple[str, ...]
    summary: str
    module: str


class Registry:
    """Every known plugin by name; loads on demand. One per process is enough (`registry()`); tests make their own."""

    def __init__(self, builtin: dict[str, str] | None = None, *, use_entry_points: bool = True) -> None:
        self._builtin = DEFAULT_PLUGINS if builtin is None else builtin
        self._use_entry_points = use_entry_points
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(Hooks)
        self._registrations: dict[str, Registration] = {}
        self._loaded: set[str] = set()
        self._by_hand: set[str] = set()
        self._lock = threading.RLock()
        self._entry_points: dict[str, Any] | None = None
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """Every name that can be used, loaded or not: built-ins in order, then third parties by name."""
        third = sorted(set(self._third_party()) | set(self._registrations))
        return [*self._builtin, *(name for name in third if name not in self._builtin)]

    def get(self, name: str) -> Registration:
        """The registration of `name`, loading its module if need be. Raises KeyError when nobody offers it,
        PluginError when its module is broken."""
        with self._lock:
            if name not in self._registrations:
                self._load(name)
            return self._registrations[name]

    def register(self, plugin: Any, name: str | None = None) -> None:
        """Add a plugin object (a module with hook implementations) by hand."""
        with self._lock:
            before = set(self._registrations)
            self._collect(plugin, name or str(getattr(plugin, "__name__", repr(plugin))))
            self._by_hand.update(set(self._registrations) - before)

    def by_hand(self, name: str) -> bool:
        """Whether `name` came through `register`: it is here, and asking for it imports nothing."""
        return name in self._by_hand

    def implicit(self, mentioned: Collection[str] = ()) -> list[Registration]:
        """What is on although nobody `mentioned` it: of `IMPLICIT_PLUGINS` and of plugins registered by hand."""
        names = [name for name in self.names() if name in IMPLICIT_PLUGINS or self.by_hand(name)]
        found = [self.get(name) for name in names if name not in mentioned]
        return [registration for registration in found if registration.implicit is not None]

    def observers(self, name: str) -> list[Callable[[Any], None]]:
        """The `netkit_event` implementations of the plugin that brought `name`."""
        module = self.get(name).module
        plugin = self._pluggy.get_plugin(module)
        found: list[Callable[..., Any]] = [
            implementation.function
            for implementation in self._pluggy.hook.netkit_event.get_hookimpls()
            if implementation.plugin is plugin
        ]
        return found

    def _third_party(self) -> dict[str, Any]:
        if not self._use_entry_points:
            return {}
        if self._entry_points is None:
            self._entry_points = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
        return self._entry_points

    def _load(self, name: str) -> None:
        if name in self._builtin:
            module = self._builtin[name]
            load: Callable[[], Any] = lambda: importlib.import_module(module)  # noqa: E731
        elif name in self._third_party():
            entry = self._third_party()[name]
            module = entry.value
            load = entry.load
        else:
            raise KeyError(name)
        if module in self._loaded:
            raise PluginError(f"plugin {module!r} does not register {name!r}")
        try:
            plugin = load()
        except Exception as error:
            raise PluginError(f"plugin {name!r} ({module}) cannot be imported: {error}") from error
        self._collect(plugin, module)
        if name not in self._registrations:
            raise PluginError(f"plugin {module!r} does not register {name!r}")

    def _collect(self, plugin: Any, module: str) -> None:
        if module in self._loaded:
            return
        try:
            self._pluggy.register(plugin, name=module)
            self._pluggy.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._pluggy.has_plugin(module):
                self._pluggy.unregister(name=module)
            raise PluginError(f"plugin {module!r} is not valid: {error}") from error
        self._loaded.add(module)
        for implementation in self._pluggy.hook.netkit_register.get_hookimpls():
            if implementation.plugin is plugin:
                self._call(implementation.function, module)

    def _call(self, register_hook: Callable[..., object], module: str) -> None:
        def register(
            name: str,
            factory: Callable[[Any, Context], Layer],
            *,
            options: type,
            kind: str = "layer",
            implicit: Any = None,
            request_headers: tuple[str, ...] = (),
            summary: str = "",
        ) -> None:
            if name in self._registrations:
                owner = self._registrations[name].module
                raise PluginError(f"plugin {module!r} registers {name!r}, which {owner!r} already brings")
            if kind not in ("layer", "transport"):
                raise PluginError(f"plugin {module!r}: kind of {name!r} is {kind!r}, not 'layer' or 'transport'")
            if not getattr(getattr(options, "__dataclass_params__", None), "frozen", False):
                raise PluginError(f"plugin {module!r}: options of {name!r} must be a frozen dataclass")
            self._registrations[name] = Registration(
                name, factory, options, kind, implicit, request_headers, summary, module
            )

        try:
            register_hook(register)
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(f"plugin {module!r} failed in netkit_register: {error}") from error


_registry: Registry | None = None
_registry_lock = fork.lock()


def registry() -> Registry:
    """The process-wide registry."""
    global _registry
    with _registry_lock:
        if _registry is None:
            _registry = Registry()
        return _registry
