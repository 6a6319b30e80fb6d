"""Finding and reading the configuration file.

Rules of this file:

- The nearest netkit.toml or pyproject.toml upward decides, with or without a netkit table; nothing is merged.
- What other tools wrote into pyproject.toml never stops a program; what may be netkit's never fails in silence.
- A file is parsed once per content (path, modification time, size).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netkit.config._levels import Level, frozen_copy
from netkit.config._redact import shown
from netkit.config._routes import Route, compile_match
from netkit.config._suggest import did_you_mean
from netkit.errors import ConfigError

__all__ = ["EMPTY", "Document", "document_of", "environment_path", "find", "read"]

FILE_NAMES: Final = ("netkit.toml", "pyproject.toml")
TOP_LEVEL_KEYS: Final = ("layers", "route")
MAX_PARSED: Final = 64
_OURS = re.compile(rb"""tool["']?\s*\.\s*["']?netkit""")
_parsed: dict[tuple[str, bool], tuple[int, int, Document]] = {}


@dataclass(frozen=True)
class Document:
    """What one file (or mapping) says: plugin tables, the order of layers, routes."""

    level: Level
    layers: tuple[str, ...] | None = None
    routes: tuple[Route, ...] = ()


EMPTY: Final = Document(Level("default", {}))


def find(start: Path | None = None) -> Path | None:
    """The nearest netkit.toml or pyproject.toml from `start` (the working directory) upward, or None."""
    try:
        directory = (start or Path.cwd()).absolute()
    except OSError:  # the working directory is gone
        return None
    for parent in (directory, *directory.parents):
        for name in FILE_NAMES:
            candidate = parent / name
            try:
                if candidate.is_file():
                    return candidate
            except OSError:  # not allowed to look there
                continue
    return None


def read(path: Path, *, named_by: str | None = None) -> Document:
    """The document in `path`. `named_by`: who asked for just this file; None: it was found."""
    origin = f" (from {named_by})" if named_by else ""
    try:
        path = path.absolute()
        status, key = path.stat(), (str(path), named_by is not None)
        known = _parsed.get(key)
        if known is not None and known[:2] == (status.st_mtime_ns, status.st_size):
            return known[2]
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{_printable(path)}: cannot be read: {reason}{origin}") from error
    document = _parse(path, content, explicit=named_by is not None)
    if len(_parsed) >= MAX_PARSED:
        _parsed.clear()
    _parsed[key] = (status.st_mtime_ns, status.st_size, document)
    return document


def document_of(table: Mapping[str, Any], source: str, prefix: str = "") -> Document:
    """The document in one mapping: what stands below `[tool.netkit]`, or below nothing in netkit.toml."""
    settings = {str(key): frozen_copy(value) for key, value in table.items() if key not in TOP_LEVEL_KEYS}
    return Document(
        Level(source, settings, prefix),
        _layers(table, source, prefix),
        _routes(table.get("route", []), source, prefix),
    )


def _parse(path: Path, content: bytes, *, explicit: bool) -> Document:
    shared = path.name == "pyproject.toml"
    try:
        data = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if shared and not explicit and not _OURS.search(content):
            return EMPTY
        raise ConfigError(_syntax(path, content, error)) from error
    tool = data.get("tool")
    if not shared and tool is None:
        return document_of(data, str(path))
    if path.name == "netkit.toml":
        _refuse_strangers(path, data, tool)
    table = tool.get("netkit", {}) if isinstance(tool, Mapping) else {}
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: tool.netkit: must be a table, not {shown('netkit', table)}")
    return document_of(table, str(path), "tool.netkit.")


def _printable(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() else repr(text)


def _refuse_strangers(path: Path, data: Mapping[str, Any], tool: Any) -> None:
    """In netkit.toml everything is netkit's business, so nothing may stand where it is not read."""
    strangers = [key for key in data if key != "tool"]
    strangers += [f"tool.{key}" for key in tool if key != "netkit"] if isinstance(tool, Mapping) else ["tool"]
    if strangers:
        raise ConfigError(f"{path}: {strangers[0]}: stands outside [tool.netkit], where nothing is read")


def _syntax(path: Path, content: bytes, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"{path}: line {_line(content[: error.start])}: is not UTF-8"
    message = str(error)
    where = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if where is None:
        return f"{path}: line {_line(content)}: {message}"
    return f"{path}: line {where[1]}: {message[: where.start()]} (column {where[2]})"


def _line(content: bytes) -> int:
    return content.count(b"\n") + 1


def _layers(table: Mapping[str, Any], source: str, prefix: str) -> tuple[str, ...] | None:
    layers = table.get("layers")
    if layers is None:
        return None
    if not isinstance(layers, list | tuple) or not all(isinstance(name, str) for name in layers):
        raise ConfigError(f"{source}: {prefix}layers: must be a list of plugin names, not {shown('layers', layers)}")
    return tuple(layers)


def _routes(tables: Any, source: str, prefix: str) -> tuple[Route, ...]:
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"{source}: {prefix}route: must be a list of tables ([[{prefix}route]])")
    return tuple(_route(table, source, f"{prefix}route[{index}]") for index, table in enumerate(tables))


def _route(table: Any, source: str, place: str) -> Route:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{source}: {place}: must be a table, not {shown('route', table)}")
    if "match" not in table:
        hint = next((did_you_mean(key, ["match"]) for key in table if did_you_mean(key, ["match"])), "")
        raise ConfigError(f"{source}: {place}.match: is missing{hint and '; it is spelled match'}")
    match = table["match"]
    if not isinstance(match, str):
        raise ConfigError(f"{source}: {place}.match: must be a text, not {shown('match', match)}")
    try:
        pattern = compile_match(match)
    except ValueError as error:
        raise ConfigError(f"{source}: {place}.match: {error}, not {shown('match', match)}") from error
    settings = {key: frozen_copy(value) for key, value in table.items() if key != "match"}
    return Route(match, Level(source, settings, f"{place}."), pattern)


def environment_path(environment: Mapping[str, str], variable: str) -> Path | None:
    """The file that an environment variable names, or None when it is empty or not set."""
    text = environment.get(variable, "").strip()
    return Path(text).expanduser() if text else None
