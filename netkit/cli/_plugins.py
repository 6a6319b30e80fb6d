"""`netkit plugins`: every known plugin, whether it is on here, and its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from netkit.cli._output import console, print_json, table, value_text
from netkit.config import MISSING, Config, describe, options_of, redact, standing
from netkit.errors import ConfigError, PluginError
from netkit.plugins import Registration, Registry, registry

__all__ = ["describe_plugins", "show_plugins"]

STATES: Final = {True: "on", False: "off", None: "unknown"}


def show_plugins(names: Sequence[str], file: str | None, *, as_json: bool) -> None:
    """Print what `describe_plugins` finds."""
    described = describe_plugins(names, Config.load(file), registry())
    if as_json:
        print_json(described)
        return
    out = console()
    for plugin in described:
        state = "broken" if "error" in plugin else STATES[plugin["on"]]
        out.print(Text.assemble((plugin["name"], "bold"), f"  {state}  {plugin['summary']}  ({plugin['module']})"))
        rows = table("  option", "type", "default")
        for option in plugin["options"]:
            default = Text("(required)") if option["required"] else value_text(option["default"])
            rows.add_row(Text(f"  {option['name']}"), Text(option["type"]), default)
        if plugin["options"]:
            out.print(rows)


def describe_plugins(names: Sequence[str], config: Config, known: Registry) -> list[dict[str, Any]]:
    """One dictionary per plugin of `names` (none: all, in the order of the layers). A plugin that cannot be loaded is
    listed with its error; `on` is None where no plan can be made because a broken plugin is part of it."""
    unknown = [name for name in names if name not in known.names()]
    if unknown:
        raise ConfigError(f"arguments: unknown plugin {unknown[0]!r} (known: {', '.join(known.names())})")
    try:
        config.check(known)
        steps = config.plan(known).steps
    except PluginError:  # a plugin that is used here is broken: no session could be made, so nothing is on or off
        steps = None
    described = []
    for name in names or standing(config, known, steps or ()):
        try:
            described.append(_described(known.get(name)))
        except PluginError as error:
            described.append(
                {"name": name, "on": None, "summary": str(error), "module": "", "options": [], "error": str(error)}
            )
    active = {step.name for step in steps or ()}
    for plugin in described:
        plugin["on"] = None if steps is None else plugin["name"] in active
    return described


def _described(registration: Registration) -> dict[str, Any]:
    return {
        "name": registration.name,
        "on": None,
        "kind": registration.kind,
        "summary": registration.summary,
        "module": registration.module,
        "request_headers": list(registration.request_headers),
        "options": [
            {
                "name": option.name,
                "type": describe(option.hint),
                "required": option.default is MISSING,
                "default": None if option.default is MISSING else redact(option.name, option.default),
            }
            for option in options_of(registration.options).values()
        ],
    }
