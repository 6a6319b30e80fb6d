"""`Config`: every level of settings of one session, and the plan of layers that follows from them.

Rules of this file:

- A `Config` never changes; it holds plain data and can be pickled, compared and shared.
- Later levels win for each key: file, matching routes in their order, environment, arguments, overrides.
- Nothing is judged before `check` and `plan`, which know the plugins; only a file's own shape is judged on loading.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from netkit.config._environment import CONFIG_VARIABLE, environment_layers, environment_levels, variables_of
from netkit.config._files import EMPTY, TOP_LEVEL_KEYS, Document, document_of, environment_path, find, read
from netkit.config._levels import Level, PluginSettings, frozen_copy
from netkit.config._redact import redact
from netkit.config._resolve import Choice, build, check_level, check_names, choose, tolerated
from netkit.config._routes import Route, location
from netkit.config._suggest import did_you_mean
from netkit.errors import ConfigError
from netkit.plugins import DEFAULT_LAYERS, TRANSPORTS, Registration, Registry

if TYPE_CHECKING:
    from netkit.config._explain import Setting

__all__ = ["Config", "Plan", "Step"]

MAX_LOCATIONS: Final = 4096
"""Distinct scheme, host and path whose routes are remembered; beyond it the memory starts anew."""


_default: tuple[tuple[tuple[str, str], ...], str | None, Config] | None = None


@dataclass(frozen=True)
class Step:
    """One layer or transport of a plan. `options` is an instance of `registration.options`."""

    name: str
    registration: Registration
    options: Any


@dataclass(frozen=True)
class Plan:
    """What a chain is composed of, outermost first: layers, then transports."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, repr=False)
class Config:
    """What was configured, and where. `Config()` is empty: built-in defaults, no file, no environment.

    Example::

        config = netkit.Config.load()                       # what a session does when it is given none
        session = netkit.Session(config=config, plugins={"retry": {"attempts": 5}})
    """

    _document: Document = EMPTY
    _variables: tuple[tuple[str, str], ...] = ()
    _arguments: tuple[Level, ...] = ()
    path: Path | None = None
    """The file that was read, or None."""
    _located: dict[str, tuple[int, ...]] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Config:
        """The configuration in `path`; without one in the file that `NETKIT_CONFIG` names, else in the nearest
        netkit.toml or pyproject.toml from the working directory upward, else none. Then `NETKIT_*` variables.

        Raises `ConfigError` when a named file cannot be read, or is not TOML.
        """
        named_by: str | None = None
        found: Path | None
        if path is not None:
            found, named_by = Path(path).expanduser(), "config"
        elif (found := environment_path(os.environ, CONFIG_VARIABLE)) is not None:
            named_by = f"environment variable {CONFIG_VARIABLE}"
        else:
            found = find()
        document = EMPTY if found is None else read(found, named_by=named_by)
        return cls(document, tuple(sorted(variables_of(os.environ).items())), path=found)

    @classmethod
    def default(cls) -> Config:
        """What a session uses when it is given no configuration: `load()`, done once in a process.

        It is found from the working directory of the first use and kept, since sessions are made inside event loops,
        where nobody may touch the disk. Only another value of a `NETKIT_*` variable makes it load again. Raises
        `ConfigError` as `load` does.
        """
        global _default
        variables = tuple(sorted(variables_of(os.environ).items()))
        named = os.environ.get(CONFIG_VARIABLE)
        if _default is None or _default[:2] != (variables, named):
            _default = (variables, named, cls.load())
        return _default[2]

    @classmethod
    def from_mapping(cls, table: Mapping[str, Any], source: str = "mapping") -> Config:
        """The configuration in a mapping of the shape of `[tool.netkit]`. Reads no file and no environment."""
        return cls(document_of(table, source))

    def with_plugins(self, plugins: Mapping[str, PluginSettings], source: str = "arguments") -> Config:
        """A new one with `plugins` on top. True: on as configured; False: off; a table: on, with these options."""
        if not plugins:
            return self
        if not isinstance(plugins, Mapping):
            raise ConfigError(
                f"{source}: plugins must be a mapping of names to settings, not {type(plugins).__name__}"
            )
        level = Level(source, {str(name): frozen_copy(setting) for name, setting in plugins.items()})
        return Config(self._document, self._variables, (*self._arguments, level), self.path)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The routes in the order of the file."""
        return self._document.routes

    def matching_routes(self, url: str) -> tuple[int, ...]:
        """Positions of the routes that `url` takes part in, in the order of the file: later ones win."""
        where = url.partition("?")[0]
        known = self._located.get(where)
        if known is None:
            target = location(where)
            known = tuple(index for index, route in enumerate(self.routes) if route.pattern.fullmatch(target))
            if len(self._located) >= MAX_LOCATIONS:
                self._located.clear()
            self._located[where] = known
        return known

    def check(self, registry: Registry, *, complete: bool = True) -> None:
        """Raise `ConfigError` for the first wrong thing: names, then options, then what they give together.

        False for `complete`: these are only changes to an unknown configuration, so options are judged one by one.
        """
        levels = self._levels(registry, range(len(self.routes)))
        for level in levels:
            if level is self._document.level:
                check_names(level, registry, top_level=TOP_LEVEL_KEYS)
            else:
                check_names(level, registry, top_level=("match",) if level.prefix else ())
        self._check_layers(registry)
        for level in levels:
            check_level(level, registry)
        if not complete:
            return
        self.plan(registry)
        for index in range(len(self.routes)):
            self.plan(registry, routes=(index,))

    def plan(
        self,
        registry: Registry,
        *,
        routes: Sequence[int] = (),
        overrides: Mapping[str, PluginSettings] | None = None,
    ) -> Plan:
        """The steps for requests that take part in `routes` (positions), under `overrides`."""
        choices = self.choices(registry, routes=routes, overrides=overrides)
        steps = {
            name: Step(name, registry.get(name), build(registry.get(name), choice, registry))
            for name, choice in choices.items()
            if choice.on
        }
        for registration in registry.implicit(choices):
            steps[registration.name] = Step(registration.name, registration, registration.implicit)
        return Plan(self._ordered(steps))

    def choices(
        self,
        registry: Registry,
        *,
        routes: Sequence[int] = (),
        overrides: Mapping[str, PluginSettings] | None = None,
    ) -> dict[str, Choice]:
        """What was said about each plugin that was mentioned anywhere. Names are not checked."""
        levels = self._levels(registry, routes)
        if overrides:
            levels.append(Level("overrides", overrides))
        return choose(levels)

    def explain(self, registry: Registry, *, url: str | None = None) -> list[Setting]:
        """Every effective value and where it came from; with `url`, as the routes of that URL change it."""
        from netkit.config._explain import explain

        return explain(self, registry, routes=self.matching_routes(url) if url else ())

    @property
    def layers(self) -> tuple[tuple[str, ...], str]:
        """The order of layers, outermost first, and where it came from."""
        from_environment = environment_layers(dict(self._variables))
        if from_environment is not None:
            return from_environment, "environment NETKIT_LAYERS"
        if self._document.layers is not None:
            return self._document.layers, self._document.level.source
        return DEFAULT_LAYERS, "default"

    def _levels(self, registry: Registry, routes: Iterable[int]) -> list[Level]:
        return [
            self._document.level,
            *(self.routes[index].level for index in routes),
            *environment_levels(dict(self._variables), registry.names()),
            *self._arguments,
        ]

    def _layers_place(self) -> str:
        source = self.layers[1]
        level = self._document.level
        return level.place("layers") if source == level.source else f"environment variable {source.split()[1]}"

    def _check_layers(self, registry: Registry) -> None:
        order, source = self.layers
        if source == "default":
            return
        valid = tolerated(registry.names()) - set(TRANSPORTS)
        for index, name in enumerate(order):
            if name in TRANSPORTS:
                raise ConfigError(f"{self._layers_place()}: {name!r} is a transport; it always stands innermost")
            if name not in valid:
                raise ConfigError(
                    f"{self._layers_place()}: unknown layer {name!r}{did_you_mean(name, sorted(valid))}"
                )
            if name in order[:index]:
                raise ConfigError(f"{self._layers_place()}: {name!r} is named twice")

    def _ordered(self, steps: Mapping[str, Step]) -> tuple[Step, ...]:
        order, source = self.layers
        layers = [name for name, step in steps.items() if step.registration.kind == "layer"]
        transports = [name for name in steps if name not in layers]
        outside = [name for name in layers if name not in order]
        if outside and source != "default":
            name = outside[0]
            raise ConfigError(
                f"{self._layers_place()}: {name!r} is on but not listed; list it, or set {name} = false"
            )
        names = [
            *outside,
            *(name for name in order if name in layers),
            *(name for name in transports if name not in TRANSPORTS),
            *(name for name in TRANSPORTS if name in transports),
        ]
        return tuple(steps[name] for name in names)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._document, self._variables, self._arguments, self.path)

    def __hash__(self) -> int:
        # Settings hold dicts; equal configurations have equal sources.
        return hash((self.path, self._variables, tuple(level.source for level in self._arguments)))

    def __repr__(self) -> str:
        said = [
            redact("", dict(level.settings)) for level in (self._document.level, *self._arguments) if level.settings
        ]
        # Texts of variables may be secrets under any name: only their names are told.
        variables = [name for name, _ in self._variables]
        return f"<Config {self._document.level.source} {said} routes={len(self.routes)} variables={variables}>"
