"""Every effective value and where it came from: what `netkit config` prints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netkit.config._options import options_of
from netkit.config._redact import redact
from netkit.config._resolve import Choice, value_of
from netkit.plugins import DEFAULT_LAYERS, TRANSPORTS

if TYPE_CHECKING:
    from netkit.config._config import Config, Step
    from netkit.plugins import Registry

__all__ = ["Setting", "explain", "standing"]


@dataclass(frozen=True)
class Setting:
    """One row: `table` is a plugin ("retry"), a route ("route[0].retry") or "" for the top level; `value` is
    redacted; `source` is a file, "environment NETKIT_…", "arguments", "default" or "implicit default".

    The key "on" of a plugin tells whether it takes part.
    """

    table: str
    key: str
    value: Any
    source: str


def explain(config: Config, registry: Registry, *, routes: Sequence[int] = ()) -> list[Setting]:
    """The rows of a configuration. Raises `ConfigError` when it is wrong: nothing is effective then."""
    config.check(registry)
    order, order_source = config.layers
    path = None if config.path is None else str(config.path)
    rows = [Setting("", "file", path, "read" if path else "no file found")]
    if order_source == "default":
        # The whole order, with places for what this version lacks, is in netkit.plugins; here stands what can be on.
        order = tuple(name for name in order if name in registry.names())
    rows.append(Setting("", "layers", list(order), order_source))
    choices = config.choices(registry, routes=routes)
    steps = {step.name: step for step in config.plan(registry, routes=routes).steps}
    for name in standing(config, registry, steps.values()):
        choice = choices.get(name)
        step = steps.get(name)
        if step is None:
            rows.append(Setting(name, "on", False, "default" if choice is None else choice.switch.origin(name)))
            continue
        rows.append(Setting(name, "on", True, "implicit default" if choice is None else choice.switch.origin(name)))
        for key in options_of(step.registration.options):
            value = redact(key, getattr(step.options, key))
            rows.append(Setting(name, key, value, _source(choice, name, key)))
    for index in range(len(config.routes)):
        rows += _route_rows(config, registry, index, taken=index in routes)
    return rows


def standing(config: Config, registry: Registry, steps: Collection[Step] = ()) -> list[str]:
    """All known plugins in the order of their layers, outermost first; `steps`, which are on, as they are applied.
    Third-party plugins that are off come last: where they would stand is known when they are loaded."""
    inner = [*config.layers[0], *DEFAULT_LAYERS]
    ranks = {name: place for place, name in reversed(list(enumerate([*inner, *TRANSPORTS])))}
    applied = {step.name: place for place, step in enumerate(steps)}
    layers = {step.name for step in steps if step.registration.kind == "layer"}

    def place(name: str) -> tuple[float, int]:
        if name in ranks:
            return ranks[name], 0
        if name not in applied:
            return len(ranks) + len(inner), 0
        return (-1 if name in layers else len(inner) - 0.5), applied[name]

    return sorted(registry.names(), key=place)


def _source(choice: Choice | None, name: str, key: str) -> str:
    if choice is None:
        return "implicit default"
    level = choice.values.get(key)
    return "default" if level is None else level.origin(name, key)


def _route_rows(config: Config, registry: Registry, index: int, *, taken: bool) -> list[Setting]:
    route = config.routes[index]
    table, source = f"route[{index}]", route.level.source
    rows = [Setting(table, "match", route.match, f"{source} (applies)" if taken else source)]
    for name, setting in route.level.settings.items():
        if isinstance(setting, bool):
            rows.append(Setting(table, name, setting, source))
            continue
        registration = registry.get(name)
        rows += [
            Setting(f"{table}.{name}", key, redact(key, value_of(route.level, registration, key, registry)), source)
            for key in setting
        ]
    return rows
