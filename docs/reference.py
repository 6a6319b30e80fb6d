"""Writes what the code says of itself into the pages: options of plugins, and the order of layers.

`python -m docs.reference` brings every page up to date, `--check` only names those that are not.

Rules of this file:

- A page marks where it wants what: `<!-- options: retry -->` … `<!-- end -->`, or `<!-- order of layers -->` …
  `<!-- end -->`. What stands between the marks is written here; all else is left as it is.
- Names, types and defaults come from the options' fields, meanings from their docstrings, places in the order from
  the "Order:" paragraph of a plugin's module. An option without a meaning is an error.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Final, get_args

from netkit.config import MISSING, describe, options_of, redact
from netkit.plugins import DEFAULT_LAYERS, DEFAULT_PLUGINS, TRANSPORTS, Registry

__all__ = ["main", "meanings", "options_table", "order_of_layers", "rewritten"]

HERE: Final = Path(__file__).parent
BLOCK: Final = re.compile(r"(<!-- (options: [\w.-]+|order of layers) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES: Final = {"coalesce": "sharing", "cache": "sharing"}
"""Where a plugin is described, if not on the page of its name."""


def rewritten(page: str) -> str:
    """The text of a page with each of its marked blocks as it has to be."""

    def block(match: re.Match[str]) -> str:
        opening, wanted, closing = match.groups()
        kind, _, name = wanted.partition(": ")
        return f"{opening}\n{options_table(name) if kind == 'options' else order_of_layers()}\n{closing}"

    return BLOCK.sub(block, page)


def options_table(plugin: str) -> str:
    """The table of a built-in plugin's options, and one for each kind of table that an option may hold."""
    cls = Registry(use_entry_points=False).get(plugin).options
    tables = [_table(cls)]
    for option in options_of(cls).values():
        tables += [f"In each table of `{option.name}`:\n\n{_table(cls)}" for cls in _tables_within(option.hint)]
    return "\n".join(tables)


def order_of_layers() -> str:
    """Layers and transports, outermost first, with the reasons that their modules give."""
    registry = Registry(use_entry_points=False)
    rows = ["| layer | what it does | why here |", "|---|---|---|"]
    names = [name for name in (*DEFAULT_LAYERS, *TRANSPORTS) if name in DEFAULT_PLUGINS]
    for name in names:
        found = registry.get(name)
        reason = _order(importlib.import_module(found.module).__doc__ or "")
        link = f"[`{name}`]({PAGES.get(name, name)}.md)"
        rows.append(f"| {link} | {_cell(found.summary.rstrip('.'))} | {_cell(reason)} |")
    return "\n".join(rows) + "\n"


def meanings(cls: type) -> dict[str, str]:
    """Field → what its docstring says. Two spellings are read: `name, other: text` in the docstring of the class,
    and a text under the field. Inherited fields have the words of the class that declares them."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if dataclasses.is_dataclass(owner):
            names = [name for name in getattr(owner, "__annotations__", {}) if not name.startswith("_")]
            found |= _in_docstring(inspect.getdoc(owner) or "", names) | _under_fields(owner)
    missing = [name for name in options_of(cls) if not found.get(name)]
    if missing:
        raise ValueError(f"{cls.__module__}.{cls.__qualname__}: no docstring says what {', '.join(missing)} means")
    return found


def _in_docstring(text: str, names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    current: list[str] = []
    for line in text.splitlines():
        before, colon, rest = line.partition(": ")
        listed = before.split(", ")
        if colon and all(name in names for name in listed):
            current = listed
            found |= dict.fromkeys(current, rest.strip())
        elif current and line.startswith(" "):
            found |= {name: f"{found[name]} {line.strip()}" for name in current}
        else:
            current = []
    return found


def _under_fields(cls: type) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(inspect.cleandoc(text.value.value).split())
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _table(cls: type) -> str:
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    said = meanings(cls)
    first: dict[str, str] = {}
    for option in options_of(cls).values():
        meaning, shared = said[option.name], first.setdefault(said[option.name], option.name)
        if shared != option.name:
            meaning = f"see `{shared}`"
        default = "(required)" if option.default is MISSING else _code(_written(redact(option.name, option.default)))
        rows.append(f"| `{option.name}` | {_cell(describe(option.hint))} | {default} | {_cell(meaning)} |")
    return "\n".join(rows) + "\n"


def _tables_within(hint: Any) -> list[type]:
    hint = getattr(hint, "__value__", hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [found for argument in get_args(hint) for found in _tables_within(argument)]


def _written(value: Any) -> str:
    """A default as TOML has it; None is "none"."""
    if value is None:
        return '"none"'
    if isinstance(value, frozenset | set):
        value = sorted(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 16 and value % 1024 == 0:
        unit = "MiB" if value % (1 << 20) == 0 else "KiB"
        return f"{value} ({value >> (20 if unit == 'MiB' else 10)} {unit})"
    return json.dumps(value, ensure_ascii=False, default=str)


def _order(docstring: str) -> str:
    match = re.search(r"^Order: (.*?)(?:\n\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"no 'Order:' paragraph in a plugin's docstring: {docstring[:60]!r}")
    return " ".join(match.group(1).split())


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    """A docstring's words as a table's cell, from a capital letter on; marks of Markdown in them are no marks."""
    pieces = re.split(r"(`[^`]*`)", text)
    plain = [piece if piece.startswith("`") else re.sub(r"([*<>\[\]{}])", r"\\\1", piece) for piece in pieces]
    text = "".join(plain).replace("|", r"\|")
    return text[:1].upper() + text[1:]


def main(arguments: list[str]) -> int:
    stale = []
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        right = rewritten(text)
        if right != text:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(right, encoding="utf-8")
    if stale:
        print(("out of date: " if "--check" in arguments else "written: ") + ", ".join(stale))
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
