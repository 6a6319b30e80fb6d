"""`NETKIT_*` variables as levels: `NETKIT_RETRY__ATTEMPTS=5`, `NETKIT_RETRY=false`, `NETKIT_DISABLE=cache,retry`.

Rules of this file:

- An empty variable is no variable.
- `NETKIT_X__Y` is always a setting. `NETKIT_X` is one when X is a plugin; other people's variables that merely begin
  with `NETKIT_` are left alone unless they look like a mistyped setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from netkit.config._levels import Level
from netkit.config._suggest import closest
from netkit.errors import ConfigError

__all__ = ["CONFIG_VARIABLE", "environment_layers", "environment_levels", "variables_of"]

PREFIX: Final = "NETKIT_"
CONFIG_VARIABLE: Final = "NETKIT_CONFIG"
DISABLE_VARIABLE: Final = "NETKIT_DISABLE"
LAYERS_VARIABLE: Final = "NETKIT_LAYERS"
_SWITCHES: Final = {
    "true": True,
    "1": True,
    "on": True,
    "yes": True,
    "false": False,
    "0": False,
    "off": False,
    "no": False,
}


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that can be settings, without `NETKIT_CONFIG`."""
    return {
        name: text.strip()
        for name, text in environment.items()
        if name.startswith(PREFIX) and name != CONFIG_VARIABLE and text.strip()
    }


def environment_layers(variables: Mapping[str, str]) -> tuple[str, ...] | None:
    """`NETKIT_LAYERS`, or None."""
    text = variables.get(LAYERS_VARIABLE)
    return None if text is None else tuple(_listed(text))


def environment_levels(variables: Mapping[str, str], names: Iterable[str]) -> list[Level]:
    """The levels of the environment, weakest first: options, switches, `NETKIT_DISABLE`. `names`: known plugins."""
    if not variables:
        return []
    known = {_spelled(name): name for name in names}
    tables: dict[str, dict[str, str]] = {}
    switches: dict[str, Any] = {}
    disabled: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for variable, text in variables.items():
        if variable == LAYERS_VARIABLE:
            continue
        if variable == DISABLE_VARIABLE:
            for name in _listed(text):
                disabled[known.get(_spelled(name), name)] = False
            continue
        table, separator, key = variable[len(PREFIX) :].casefold().partition("__")
        name = known.get(table, table)
        if separator:
            tables.setdefault(name, {})[key] = text
            spelled[f"{name}.{key}"] = variable
            spelled.setdefault(name, variable)
        elif table in known:
            switches[name] = _switch(variable, text)
        else:
            _refuse_mistyped(variable, table, known)
    return [
        Level("environment", tables, text=True, variables=spelled),
        Level("environment", switches, variables={name: f"{PREFIX}{_spelled(name).upper()}" for name in switches}),
        Level("environment", disabled, variables=dict.fromkeys(disabled, DISABLE_VARIABLE)),
    ]


def _listed(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _spelled(name: str) -> str:
    return name.casefold().replace("-", "_").replace(".", "_")


def _switch(variable: str, text: str) -> bool:
    switch = _SWITCHES.get(text.casefold())
    if switch is None:
        raise ConfigError(
            f"environment variable {variable}: must be true or false; options are {variable}__OPTION=value"
        )
    return switch


def _refuse_mistyped(variable: str, table: str, known: Mapping[str, str]) -> None:
    for name in known:
        if table.startswith(f"{name}_"):
            right = f"{PREFIX}{name.upper()}__{table[len(name) + 1 :].strip('_').upper()}"
            raise ConfigError(
                f"environment variable {variable}: two underscores lead to an option; did you mean {right}?"
            )
    near = closest(table, [*known, "config", "disable", "layers"], cutoff=0.8)
    if near:
        raise ConfigError(f"environment variable {variable}: unknown; did you mean {PREFIX}{near.upper()}?")
