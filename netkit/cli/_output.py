"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console", "print_json", "table", "value_text"]

UNBOUNDED: Final = 10_000
"""Columns where the output is no terminal: a path in a log must not be broken."""


def console() -> Console:
    """A console on the present standard output."""
    return Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=UNBOUNDED)


def table(*columns: str) -> Table:
    """An empty table whose cells fold instead of losing their end."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def value_text(value: Any) -> Text:
    """A value as TOML would write it, None as "none"; `Text`, so that brackets are not taken for markup."""
    if value is None:
        return Text("none")
    try:
        return Text(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError):
        return Text(str(value))


def print_json(value: Any) -> None:
    """`value` as JSON; what JSON does not know becomes text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))
