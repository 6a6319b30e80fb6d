"""`netkit config`: every effective setting and where it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from netkit.cli._applied import applied
from netkit.cli._output import console, print_json, table, value_text
from netkit.config import Config, Setting
from netkit.errors import ConfigError
from netkit.plugins import registry

__all__ = ["settings_table", "show_settings"]


def show_settings(file: str | None, *, url: str | None, as_json: bool, extra: Sequence[Setting] = ()) -> None:
    """Print the settings that a session made here would have; `extra` rows stand behind those of their table."""
    if url is not None and not url.lower().startswith(("http://", "https://")):
        raise ConfigError("arguments: --url must be http://HOST… or https://HOST…")
    config = Config.load(file)
    rows = merged(config.explain(registry(), url=url), extra)
    notes = applied(config)
    if as_json:
        print_json([dataclasses.asdict(row) | _applies(notes, row) for row in rows])
        return
    console().print(settings_table(rows))
    lines = list(_differing(notes))
    if lines:
        console().print("\nNot on every stack:")
        for line in lines:
            console().print(f"  {line}", markup=False, soft_wrap=True, highlight=False)


def _applies(notes: dict[str, dict[str, dict[str, str]]], row: Setting) -> dict[str, dict[str, str]]:
    """`{"applies": {stack: how it honours the option, or that it does not}}`, where a layer says something."""
    found = notes.get(row.table, {}).get(row.key)
    return {"applies": found} if found else {}


def _differing(notes: dict[str, dict[str, dict[str, str]]]) -> Iterator[str]:
    """One line for each way in which an option does not apply, and the stacks of which that is true."""
    for name, options in notes.items():
        for option, stacks in options.items():
            ways: dict[str, list[str]] = {}
            for stack, way in stacks.items():
                if "does not apply" in way:
                    ways.setdefault(way, []).append(stack)
            for way, of in ways.items():
                yield f"{name}.{option} {way} ({', '.join(of)})"


def merged(rows: Iterable[Setting], extra: Iterable[Setting]) -> list[Setting]:
    """`rows` with each of `extra` behind the last row of its table, or at the end."""
    result = list(rows)
    for setting in extra:
        last = max((index for index, row in enumerate(result) if row.table == setting.table), default=len(result) - 1)
        result.insert(last + 1, setting)
    return result


def settings_table(rows: Iterable[Setting]) -> Table:
    """The rows for a terminal."""
    made = table("setting", "value", "from")
    for row in rows:
        made.add_row(
            Text(f"{row.table}.{row.key}" if row.table else row.key), value_text(row.value), Text(row.source)
        )
    return made
