"""What of a setting may be shown: values of keys that name a secret, and passwords in URLs, are replaced by `***`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["redact", "shown", "shown_at", "without_secrets"]

HIDDEN: Final = "***"
_SECRET = re.compile(
    r"(?:^|[_-])(?:password|passwd|secret|token|auth|authorization|api[_-]?key|credentials?|cookies?)$"
)
_HEADERS = re.compile(r"(?:^|[_-])headers?$")
# A password may hold "/" or "@" unescaped: the second form takes everything up to the last "@" of the word.
_USERINFO = (re.compile(r"(://)[^/?#\s@]*@"), re.compile(r"(://)[^\s/@]*:[^\s]*@"))
_QUERY = re.compile(r"([?&][^=&\s]*(?:password|token|secret|key|auth|sig)[^=&\s]*=)[^&#\s]+", re.IGNORECASE)
LONGEST: Final = 80


def redact(key: str, value: Any) -> Any:
    """`value` as it may be shown under `key`. Numbers and booleans are no secrets: `max_tokens = 5` stays."""
    if value is None or isinstance(value, bool | int | float):
        return value
    name = key.casefold()
    if _SECRET.search(name):
        return HIDDEN
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: redact(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        hide = _HEADERS.search(name)
        return {item: HIDDEN if hide else redact(str(item), inner) for item, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        # A list of header names is no secret, a list of (name, value) pairs is.
        if _HEADERS.search(name) and any(not isinstance(item, str) for item in items):
            return HIDDEN
        return [redact(key, item) for item in items]
    if isinstance(value, str):
        # One text under `headers` may be "name: value", or what an environment variable holds.
        return HIDDEN if _HEADERS.search(name) and re.search(r"[:={]", value) else _url(value)
    return value


def shown(key: str, value: Any) -> str:
    """`value` for an error message: redacted, on one line, cut."""
    text = " ".join(repr(redact(key, value)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def shown_at(path: str, value: Any) -> str:
    """`shown` for the value at a path below an option: what lies below a secret or among headers is hidden."""
    names = [name for name in re.split(r"[.\[\]]+", path) if name and not name.isdigit()]
    if any(_SECRET.search(name.casefold()) for name in names):
        return HIDDEN
    if path != names[0] and any(_HEADERS.search(name.casefold()) for name in names):
        return HIDDEN
    return shown(names[-1], value)


def without_secrets(message: str, key: str, value: Any) -> str:
    """A foreign `message` about `value` on one line, with the texts that `redact` would hide taken out."""
    for secret in sorted(_secrets(key, value, hidden=False), key=len, reverse=True):
        message = message.replace(secret, HIDDEN)
    return " ".join(_url(message).split())


def _url(text: str) -> str:
    for pattern in _USERINFO:
        text = pattern.sub(rf"\1{HIDDEN}@", text)
    return _QUERY.sub(rf"\1{HIDDEN}", text)


def _secrets(key: str, value: Any, *, hidden: bool) -> set[str]:
    if isinstance(value, str):
        return {value} if value and (hidden or redact(key, value) != value) else set()
    hidden = hidden or redact(key, value) == HIDDEN
    found: set[str] = set()
    if isinstance(value, Mapping):
        inside = hidden or bool(_HEADERS.search(key.casefold()))
        for item, inner in value.items():
            found |= _secrets(str(item), inner, hidden=inside)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            found |= _secrets(key, inner, hidden=hidden)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            found |= _secrets(field.name, getattr(value, field.name), hidden=hidden)
    return found
