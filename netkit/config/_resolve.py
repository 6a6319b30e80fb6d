"""From levels to checked options: which plugins are on, with which options, and what is wrong with what was said.

Rules of this file:

- Names are checked before anything is imported; a module is imported only for a plugin that is used.
- Every error is one line: where, the key's full path, what is wrong, the closest valid name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from netkit.config._convert import Mismatch, convert, parse
from netkit.config._levels import Level
from netkit.config._options import MISSING, Option, options_of
from netkit.config._redact import shown, shown_at, without_secrets
from netkit.config._suggest import did_you_mean
from netkit.errors import ConfigError, PluginError
from netkit.plugins import DEFAULT_LAYERS, DEFAULT_PLUGINS, TRANSPORTS, Registration, Registry

__all__ = [
    "Choice",
    "build",
    "check_level",
    "check_names",
    "choose",
    "tolerated",
    "value_of",
]


@dataclass
class Choice:
    """What the levels say about one plugin, taken together: the last switch, and for each key the last level."""

    on: bool
    switch: Level
    values: dict[str, Level] = field(default_factory=dict)


def choose(levels: Iterable[Level]) -> dict[str, Choice]:
    """Plugin name → choice, in the order in which they were first named. A table switches on, as True does; but an
    option in the environment only tunes what a file has switched off: it must not undo a route's `retry = false`."""
    choices: dict[str, Choice] = {}
    for level in levels:
        for name, setting in level.settings.items():
            known = choices.get(name)
            choice = known or choices.setdefault(name, Choice(False, level))
            only_tunes = level.text and isinstance(setting, Mapping) and known is not None and not known.on
            if not only_tunes:
                choice.on, choice.switch = setting is not False, level
            if isinstance(setting, Mapping):
                choice.values.update(dict.fromkeys(setting, level))
    return choices


def tolerated(names: Iterable[str]) -> set[str]:
    """Names that may be switched off or ordered: what is known here, and what netkit knows but this version lacks."""
    return {*names, *DEFAULT_LAYERS, *TRANSPORTS}


def check_names(level: Level, registry: Registry, *, top_level: Sequence[str] = ()) -> None:
    """Refuse unknown plugins and settings that are neither a boolean nor a table. Imports nothing."""
    names = registry.names()
    for name, setting in level.settings.items():
        if name not in names and not (setting is False and name in tolerated(names)):
            what = "unknown key" if top_level else "unknown plugin"
            hint = did_you_mean(name, [*names, *top_level]) or _owner(name, registry, level.prefix)
            raise ConfigError(f"{level.place(name)}: {what} {name!r}{hint or _known(names)}")
        if not isinstance(setting, bool | Mapping):
            raise ConfigError(f"{level.place(name)}: must be true, false or a table, not {shown(name, setting)}")


def check_level(level: Level, registry: Registry) -> None:
    """Refuse unknown options and values of a wrong type, whether or not another level overrides them."""
    for name, setting in level.settings.items():
        if isinstance(setting, Mapping):
            registration = registry.get(name)
            for key in setting:
                value_of(level, registration, key, registry)


def value_of(level: Level, registration: Registration, key: str, registry: Registry) -> Any:
    """The option `key` as `level` gives it, in its declared type."""
    name, options = registration.name, options_of(registration.options)
    option = options.get(key)
    if option is None:
        place = level.place(name, str(key))
        hint = _owner(str(key), registry, level.prefix) or did_you_mean(str(key), options)
        raise ConfigError(f"{place}: {name!r} has no option {str(key)!r}{hint or _known(options, 'options')}")
    raw = level.settings[name][key]
    try:
        # Through `NETKIT_X__Y` every value is a text; elsewhere a text is only ever a text.
        return parse(raw, option.hint) if level.text else convert(raw, option.hint)
    except Mismatch as mismatch:
        raise ConfigError(_explained(mismatch, level, name, option)) from mismatch


def build(registration: Registration, choice: Choice, registry: Registry) -> Any:
    """The options instance of a plugin that is on."""
    values = {key: value_of(level, registration, key, registry) for key, level in choice.values.items()}
    for option in options_of(registration.options).values():
        if option.default is MISSING and option.name not in values:
            place = choice.switch.place(registration.name)
            raise ConfigError(f"{place}: the option {option.name!r} is required")
    try:
        return registration.options(**values)
    except (ValueError, TypeError) as error:
        raise _refused(registration, choice, values, error) from error


def _refused(registration: Registration, choice: Choice, values: Mapping[str, Any], error: Exception) -> ConfigError:
    key = _culprit(registration, values, error)
    message = str(error)
    for name, value in values.items():
        message = without_secrets(message, name, value)
    message = " ".join(message.split()) or type(error).__name__
    if key is None:
        return ConfigError(f"{choice.switch.place(registration.name)}: {message}")
    return ConfigError(f"{choice.values[key].place(registration.name, key)}: {message}")


def _culprit(registration: Registration, values: Mapping[str, Any], error: Exception) -> str | None:
    """The option behind a refusal: the one that is refused by itself, else the first that the message names."""
    required = {
        option.name: values[option.name]
        for option in options_of(registration.options).values()
        if option.default is MISSING and option.name in values
    }
    for key, value in values.items():
        try:
            registration.options(**{**required, key: value})
        except (ValueError, TypeError) as alone:
            if str(alone) == str(error) and (key in str(error) or key not in required):
                return key
    named = [key for key in values if key in str(error)]
    return max(named, key=len) if named else None


def _explained(mismatch: Mismatch, level: Level, name: str, option: Option) -> str:
    place = f"{level.place(name, option.name)}{mismatch.path}"
    key = mismatch.path.rpartition(".")[2] if "." in mismatch.path else option.name
    if mismatch.unknown is not None:
        wrong, valid = mismatch.unknown
        return f"{place}: unknown key {wrong!r}{did_you_mean(wrong, valid) or _known(valid, 'keys')}"
    if mismatch.problem:
        problem = without_secrets(mismatch.problem, key, mismatch.value)
        return f"{place}: {problem}"
    return f"{place}: must be {mismatch.expected}, not {shown_at(option.name + mismatch.path, mismatch.value)}"


def _owner(key: str, registry: Registry, prefix: str) -> str:
    """A hint for an option in the wrong table. Asks built-ins only: a wrong key must not import others."""
    for name in registry.names():
        if name in DEFAULT_PLUGINS or registry.by_hand(name):
            try:
                options = options_of(registry.get(name).options)
            except PluginError:
                continue
            if key in options:
                return f"; it is an option of {name!r}: {prefix}{name}.{key}"
    return ""


def _known(names: Iterable[str], what: str = "known") -> str:
    return f" ({what}: {', '.join(names)})" if list(names) else ""
