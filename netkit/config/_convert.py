"""Turning one raw value into the type that an options dataclass declares, strictly.

Rules of this file:

- Values of TOML and of arguments are taken as they are: `"5"` is no number. Texts of environment variables are read
  by the declared type.
- What comes out is hashable where the type allows it: lists become tuples and frozensets.
- A failure is a `Mismatch`: it says which part is wrong and how, and leaves naming file and key to the caller.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import pathlib
import types
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from netkit.config._options import MISSING, Option, options_of

__all__ = ["Mismatch", "convert", "describe", "parse"]

_SEQUENCES: Final = (list, tuple, set, frozenset)
_ABSTRACT_SEQUENCES: Final = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_PLURALS: Final[dict[Any, str]] = {int: "integers", float: "numbers", str: "texts", bool: "booleans"}
_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")


class Mismatch(Exception):
    """`value`, at `path` below the option ("[0].url"), does not fit: `problem` (or: it must be `expected`)."""

    def __init__(
        self,
        value: Any,
        *,
        expected: str = "",
        problem: str = "",
        path: str = "",
        unknown: tuple[str, list[str]] | None = None,
    ) -> None:
        super().__init__(expected or problem)
        self.value, self.expected, self.problem, self.path, self.unknown = value, expected, problem, path, unknown

    def at(self, step: str) -> Mismatch:
        """The same, seen from one level further out."""
        self.path = step + self.path
        return self


def convert(value: Any, hint: Any) -> Any:
    """`value` as the type `hint`. The text "none" is None where the type admits None and has no such literal."""
    hint = getattr(hint, "__value__", hint)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(value, get_args(hint))
    if origin is Annotated:
        converted = convert(value, get_args(hint)[0])
        return _leaf(converted, hint) if isinstance(converted, str | int | float) else converted
    if hint is Any or hint is object:
        return tuple(value) if isinstance(value, list) else value
    if origin is Literal:
        for known in get_args(hint):
            if type(known) is type(value) and known == value:
                return known
        raise Mismatch(value, expected=describe(hint))
    if origin in _SEQUENCES or hint in _SEQUENCES or origin in _ABSTRACT_SEQUENCES:
        return _sequence(value, hint)
    if origin in (dict, collections.abc.Mapping) or hint in (dict, collections.abc.Mapping):
        return _mapping(value, hint)
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        if callable(value):
            return value
        raise Mismatch(value, expected="a callable")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _nested(value, hint)
    if hint is pathlib.Path and isinstance(value, str):
        return pathlib.Path(value)
    return _leaf(value, hint)


def parse(text: str, hint: Any) -> Any:
    """The text of an environment variable as the type `hint`: "5", "0.5", "true", "a,b", JSON for tables."""
    hint = getattr(hint, "__value__", hint)
    origin = get_origin(hint)
    if origin is Annotated:
        return convert(parse(text, get_args(hint)[0]), hint)
    if origin in (Union, types.UnionType):
        return _union_text(text, hint)
    if hint is type(None):
        if text.casefold() in ("none", "null"):
            return None
        raise Mismatch(text, expected="none")
    if origin is Literal:
        for known in get_args(hint):
            if str(known) == text or (isinstance(known, bool) and text.casefold() == str(known).casefold()):
                return known
        raise Mismatch(text, expected=describe(hint))
    if hint is bool:
        if text.casefold() in _TRUE + _FALSE:
            return text.casefold() in _TRUE
        raise Mismatch(text, expected=describe(hint))
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError as error:
            raise Mismatch(text, expected=describe(hint)) from error
    if origin in _SEQUENCES or hint in _SEQUENCES or origin in _ABSTRACT_SEQUENCES:
        return _sequence_text(text, hint)
    if origin in (dict, collections.abc.Mapping) or hint in (dict, collections.abc.Mapping):
        return convert(_json(text), hint)
    if dataclasses.is_dataclass(hint):
        return convert(_json(text), hint)
    return convert(text, hint)


def describe(hint: Any) -> str:
    """A type in words, for messages and for `netkit plugins`."""
    hint = getattr(hint, "__value__", hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return describe(arguments[0])
    if origin in (Union, types.UnionType):
        ordered = [item for item in arguments if item is not type(None)]
        parts = [describe(item) for item in ordered]
        return " or ".join(parts + (['"none"'] if len(ordered) < len(arguments) else []))
    if origin is Literal:
        return " or ".join(
            json.dumps(item) if isinstance(item, str | bool | int) else repr(item) for item in arguments
        )
    if origin in _SEQUENCES or origin in _ABSTRACT_SEQUENCES:
        inner = [item for item in arguments if item is not Ellipsis]
        if origin is tuple and Ellipsis not in arguments:
            return f"a list of {len(inner)} values ({', '.join(map(describe, inner))})"
        if _pairs(hint):
            return "a table, or a list of pairs"
        return f"a list of {_PLURALS.get(inner[0]) or f'({describe(inner[0])})'}" if inner else "a list"
    if origin in (dict, collections.abc.Mapping) or dataclasses.is_dataclass(hint):
        return "a table"
    named = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): '"none"'}
    if hint in named:
        return named[hint]
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return "a callable"
    if hint is Any or hint is object:
        return "anything"
    return f"a {getattr(hint, '__name__', hint)}"


def _union(value: Any, members: tuple[Any, ...]) -> Any:
    if type(None) in members:
        if value is None:
            return None
        if isinstance(value, str) and value.casefold() == "none" and not _has_literal(members, value):
            return None
    # 5 in `float | int` stays an integer: the exact type goes before the first one that would take it.
    ordered = sorted(members, key=lambda member: type(value) is not member)
    deepest: Mismatch | None = None
    for member in ordered:
        try:
            return convert(value, member)
        except Mismatch as mismatch:
            if len(mismatch.path) > len(deepest.path if deepest else "") or mismatch.problem:
                # What says why is of the type that was meant.
                deepest = mismatch
    raise deepest or Mismatch(value, expected=" or ".join(describe(item) for item in _none_last(members)))


def _none_last(members: tuple[Any, ...]) -> list[Any]:
    return sorted(members, key=lambda member: member is type(None))


def _has_literal(members: tuple[Any, ...], value: str) -> bool:
    return any(get_origin(member) is Literal and value in get_args(member) for member in members)


_TEXT_ORDER: Final = (bool, int, float)


def _union_text(text: str, hint: Any) -> Any:
    members = get_args(hint)

    def rank(member: Any) -> int:
        if get_origin(member) is Literal:
            return 0
        if member is type(None):
            return 1
        if member in _TEXT_ORDER:
            # "1" and "0" are numbers where numbers are possible, else they are true and false.
            return 5 if member is bool and text in ("0", "1") else 2 + _TEXT_ORDER.index(member)
        return 7 if member is str else 6

    for member in sorted(members, key=rank):
        try:
            return parse(text, member)
        except Mismatch:
            continue
    raise Mismatch(text, expected=describe(hint))


def _pairs(hint: Any) -> bool:
    """Whether `hint` is `tuple[tuple[K, V], ...]`, the hashable form of a table."""
    arguments = get_args(hint)
    if get_origin(hint) is not tuple or len(arguments) != 2 or arguments[1] is not Ellipsis:
        return False
    inner = get_args(arguments[0])
    return get_origin(arguments[0]) is tuple and len(inner) == 2 and inner[1] is not Ellipsis


def _sequence(value: Any, hint: Any) -> Any:
    if isinstance(value, Mapping) and _pairs(hint):
        value = tuple(value.items())
    if not isinstance(value, _SEQUENCES):
        raise Mismatch(value, expected=describe(hint))
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    build = origin if origin in _SEQUENCES else tuple
    if origin is tuple and arguments and Ellipsis not in arguments:
        if len(value) != len(arguments):
            raise Mismatch(value, expected=describe(hint))
        inner = list(arguments)
    else:
        inner = [arguments[0] if arguments else Any] * len(value)
    converted = []
    for index, (item, item_hint) in enumerate(zip(value, inner, strict=True)):
        try:
            converted.append(convert(item, item_hint))
        except Mismatch as mismatch:
            raise mismatch.at(f"[{index}]") from None
    try:
        return build(converted)
    except TypeError as error:
        raise Mismatch(value, problem=f"must hold only values that can be hashed ({error})") from error


def _sequence_text(text: str, hint: Any) -> Any:
    stripped = text.strip()
    if stripped.startswith("[") or (stripped.startswith("{") and _pairs(hint)):
        return convert(_json(stripped), hint)
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is tuple and arguments and Ellipsis not in arguments:
        if len(pieces) != len(arguments):
            raise Mismatch(text, expected=describe(hint))
        return tuple(parse(piece, item) for piece, item in zip(pieces, arguments, strict=True))
    inner = arguments[0] if arguments else str
    build = origin if origin in _SEQUENCES else tuple
    return build([parse(piece, inner) for piece in pieces])


def _mapping(value: Any, hint: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise Mismatch(value, expected=describe(hint))
    key_hint, item_hint = get_args(hint) or (Any, Any)
    converted = {}
    for key, item in value.items():
        try:
            converted[convert(key, key_hint)] = convert(item, item_hint)
        except Mismatch as mismatch:
            raise mismatch.at(f".{key}") from None
    return converted


def _nested(value: Any, cls: type) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise Mismatch(value, expected="a table")
    options = options_of(cls)
    arguments = {}
    for key, item in value.items():
        if key not in options:
            raise Mismatch(item, problem="unknown key", unknown=(str(key), list(options)), path=f".{key}")
        try:
            arguments[key] = convert(item, options[key].hint)
        except Mismatch as mismatch:
            raise mismatch.at(f".{key}") from None
    _complete(value, options, arguments)
    try:
        return cls(**arguments)
    except (ValueError, TypeError) as error:
        raise Mismatch(value, problem=str(error)) from error


def _complete(value: Any, options: Mapping[str, Option], arguments: Mapping[str, Any]) -> None:
    for name, option in options.items():
        if option.default is MISSING and name not in arguments:
            raise Mismatch(value, problem="is missing and has no default", path=f".{name}")


def _leaf(value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        if get_origin(hint) is Annotated:
            raise Mismatch(value, problem=f"does not fit: {error}") from error
        raise Mismatch(value, expected=describe(hint)) from error
    except TypeError as error:
        if isinstance(hint, type) and isinstance(value, hint):
            return value
        raise Mismatch(value, expected=describe(hint)) from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Mismatch(text, problem=f"is not valid JSON ({error})") from error
