"""`netkit config`: every effective setting and where it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from netkit.cli._output import console, print_json, table, value_text
from netkit.config import Config, Setting
from netkit.plugins import registry

__all__ = ["settings_table", "show_settings"]


def show_settings(file: str | None, *, url: str | None, as_json: bool, extra: Sequence[Setting] = ()) -> None:
    """Print the settings that a session made here would have; `extra` rows stand behind those of their table."""
    rows = merged(Config.load(file).explain(registry(), url=url), extra)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        console().print(settings_table(rows))


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
