"""Pictures in JSON bodies: every string with its path and its position, without building anything.

Why not parse and encode again: that changes spacing, repeated keys, numbers and escapes, and costs more than the
picture. Here a picture of megabytes is passed over by one search for its closing quote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from netkit_plugins.image.opening import looks_like_picture
from netkit_plugins.image.places import TYPE_KEYS, Places
from netkit_plugins.image.spots import TextSpot, decoded_base64

__all__ = ["Malformed", "StringAt", "find_in_json", "strings"]

MAX_DEPTH: Final = 256

# Arrays of plain numbers (token ids, vectors) are passed over in one step; `*+` never tries them twice.
_NEXT: Final = re.compile(rb'\[[-+0-9.eE,\s]*+\]|["{}\[\],:]')
_OTHER_SCHEME: Final = re.compile(rb"(?!data:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_HEAD: Final = 64


class Malformed(ValueError):
    """Not JSON."""


class StringAt(NamedTuple):
    """A string value from `start` to `end`, quotes included; `key` is the position of its key in an object."""

    start: int
    end: int
    steps: tuple[str | int, ...]
    key: tuple[int, int] | None


class _Frame:
    """An object or array that is open."""

    __slots__ = ("is_object", "key", "step", "wants_key")

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        self.wants_key = is_object
        self.step: str | int = "" if is_object else 0
        self.key: tuple[int, int] | None = None


def strings(body: bytes) -> Iterator[StringAt]:
    """Every string value, in order. Raises Malformed where brackets or quotes do not match."""
    stack: list[_Frame] = []
    position = 0
    while (found := _NEXT.search(body, position)) is not None:
        token, start, position = found[0], found.start(), found.end()
        top = stack[-1] if stack else None
        if token == b'"':
            position = _string_end(body, start)
            if top is None or not top.wants_key:
                yield StringAt(start, position, tuple(frame.step for frame in stack), top.key if top else None)
            else:
                top.step, top.key = _decoded(body[start:position]), (start, position)
        elif token in (b"{", b"["):
            if len(stack) == MAX_DEPTH:
                raise Malformed("nested too deeply")
            stack.append(_Frame(token == b"{"))
        elif token in (b"}", b"]"):
            if top is None or top.is_object is not (token == b"}"):
                raise Malformed("brackets do not match")
            stack.pop()
        elif top is None:
            if token in (b",", b":"):
                raise Malformed("more than one value")
        elif token == b":":
            top.wants_key = False
        elif token == b",":
            if isinstance(top.step, int):
                top.step += 1
            top.wants_key = top.is_object
    if stack:
        raise Malformed("ends too early")


def _string_end(body: bytes, start: int) -> int:
    """Just behind the quote that closes the string at `start`."""
    position = start + 1
    while (end := body.find(b'"', position)) >= 0:
        before = end
        while body[before - 1 : before] == b"\\":
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        position = end + 1
    raise Malformed("a string has no end")


def _decoded(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)
    except msgspec.DecodeError as error:
        raise Malformed("a key is not a string") from error


def find_in_json(body: bytes, places: Places) -> list[TextSpot]:
    """Every picture that stands at a place of ours. A body that is no JSON has none."""
    found: list[tuple[StringAt, str]] = []
    types: dict[tuple[str | int, ...], tuple[int, int]] = {}
    try:
        for string in strings(body):
            if string.steps and string.steps[-1] in TYPE_KEYS:
                types[string.steps[:-1]] = string.start, string.end
            elif (kind := places.of(string.steps)) is not None:
                found.append((string, kind))
    except Malformed:
        return []
    spots = []
    for string, kind in found:
        type_ = types.get(string.steps[:-1]) if string.steps and string.steps[-1] == "data" else None
        if type_ is not None and body[type_[0] + 1 : type_[1]].lower().startswith(b"image/"):
            kind = "picture"
        if _is_picture(body, string, kind):
            where = ".".join(map(str, string.steps)) or "the body"
            spots.append(TextSpot(body, string.start, string.end, where, string.key, type_))
    return spots


def _is_picture(body: bytes, string: StringAt, kind: str) -> bool:
    head = body[string.start + 1 : min(string.end - 1, string.start + 1 + _HEAD)].replace(b"\\/", b"/")
    if head[:5].lower() == b"data:":
        media_type = head[5:].lower()
        return media_type.startswith((b"image/", b";", b",", b"application/octet-stream")) or (
            kind == "picture" and not media_type.startswith((b"audio/", b"video/", b"text/", b"application/"))
        )
    if _OTHER_SCHEME.match(head):
        return False  # a URL, which the server fetches
    return kind == "picture" or _begins_as_picture(head)


def _begins_as_picture(head: bytes) -> bool:
    """Whether base64 begins as a picture does: only such a text is taken for one where texts may stand."""
    try:
        return looks_like_picture(decoded_base64(head[: len(head) // 4 * 4]))
    except ValueError:
        return False
