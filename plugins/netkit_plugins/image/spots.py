"""A spot: a stretch of a request's body that holds a picture, how to read it, and what to put in its place.

Rules of this file:

- A spot knows positions, not copies: thousands of waiting requests hold no decoded pictures.
- Whatever lies between spots is sent byte for byte as it came.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from netkit.errors import ImageError
from netkit_plugins.image.places import RENAMES
from netkit_plugins.image.result import ProcessedImage

__all__ = ["HEAD", "Edit", "RawSpot", "Spot", "TextSpot", "decoded_base64", "spliced"]

_PIECE: Final = 1 << 18
"""Characters of base64 that are decoded in one step: the interpreter lock is free for other threads in between."""

HEAD: Final = 1 << 16
"""Bytes of a body that hold most headers: a JPEG's EXIF segment is no longer than this."""

_DATA_URL: Final = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_BLANK: Final = b" \t\r\n"
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")

Edit = tuple[int, int, bytes]
"""From, to, and what stands there instead."""


class Spot(Protocol):
    """One picture in a body. `where` names it in errors. All methods may be slow: they run off the loop."""

    where: str
    length: int
    """Bytes of the body that it takes."""
    takes_url: bool

    def read(self) -> bytes:
        """The encoded picture as it came. Raises ImageError."""
        ...

    def head(self) -> bytes:
        """Its beginning, without the cost of reading all of it: enough for most headers. Raises ImageError."""
        ...

    def edit(self, picture: ProcessedImage) -> Edit:
        """What puts `picture` in its place."""
        ...

    def edit_url(self, url: str) -> Edit:
        """What puts a stored picture's URL in its place; only where `takes_url`."""
        ...


def spliced(body: bytes, edits: Sequence[Edit]) -> bytes:
    """`body` with `edits` made, which do not overlap."""
    parts: list[bytes] = []
    position = 0
    for start, end, replacement in sorted(edits):
        parts += [body[position:start], replacement]
        position = end
    return b"".join([*parts, body[position:]])


class RawSpot:
    """A body that is nothing but a picture."""

    where = "the body"
    takes_url = False

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)
        self.mime = ""
        """The type of what was put in its place."""

    def read(self) -> bytes:
        return self._body

    def head(self) -> bytes:
        return self._body[:HEAD]

    def edit(self, picture: ProcessedImage) -> Edit:
        self.mime = picture.mime
        return 0, len(self._body), picture.bytes

    def edit_url(self, url: str) -> Edit:
        raise NotImplementedError


class TextSpot:
    """A JSON string that is base64 or a data URL, `start` to `end` with its quotes; `key` is where its key stands,
    `type_` the string beside it that says its media type."""

    def __init__(
        self,
        body: bytes,
        start: int,
        end: int,
        where: str,
        key: tuple[int, int] | None,
        type_: tuple[int, int] | None = None,
    ) -> None:
        self._body = body
        self._start, self._end = start, end
        self._key = key
        self._type = type_
        # Where a type stands beside it, a URL would need another shape.
        self.takes_url = type_ is None
        self.where = where
        self.length = end - start

    def read(self) -> bytes:
        return self._decoded(self._text())

    def head(self) -> bytes:
        text = self._text(HEAD)
        start = text.find(b",", 0, 1024) + 1 if _is_data_url(text) else 0
        return self._decoded(text[: start + (len(text) - start) // 4 * 4])

    @staticmethod
    def _decoded(text: bytes) -> bytes:
        if not _is_data_url(text):
            return decoded_base64(text)
        found = _DATA_URL.match(text[:1024].decode("latin-1"))
        if found is None:
            raise ImageError("a data URL is malformed")
        content = text[found.end() :]
        if found[2].lower().endswith(";base64"):
            return decoded_base64(unquote_to_bytes(content) if b"%" in content[:4096] else content)
        return unquote_to_bytes(content)

    def edit(self, picture: ProcessedImage) -> Edit:
        value = picture.data_url if _is_data_url(self._text(32)) else picture.base64
        data = self._start, self._end, b'"%b"' % value.encode("ascii")
        if self._type is None:
            return data
        first, second = sorted([data, (*self._type, b'"%b"' % picture.mime.encode("ascii"))])
        return first[0], second[1], first[2] + self._body[first[1] : second[0]] + second[2]

    def edit_url(self, url: str) -> Edit:
        value = msgspec.json.encode(url)
        if self._key is None:
            return self._start, self._end, value
        start, end = self._key
        key = RENAMES.get(msgspec.json.decode(self._body[start:end]))
        if key is None:
            return self._start, self._end, value
        return start, self._end, msgspec.json.encode(key) + self._body[end : self._start] + value

    def _text(self, limit: int | None = None) -> bytes:
        """The string's characters (at least the first `limit`), escapes undone."""
        start, end = self._start + 1, self._end - 1
        if limit is not None and b"\\" not in self._body[start : start + limit]:
            return self._body[start : min(end, start + limit)]
        if self._body.find(b"\\", start, end) < 0:
            return self._body[start:end]
        text: str = msgspec.json.decode(self._body[self._start : self._end], type=str)
        return text.encode("utf-8")


def _is_data_url(text: bytes) -> bool:
    return text[:5].lower() == b"data:"


def decoded_base64(text: bytes) -> bytes:
    """What base64 stands for, standard or URL-safe, with or without padding and line breaks. Raises ImageError."""
    try:
        return _strict(text)
    except msgspec.DecodeError:
        pass
    plain = text.translate(_URL_SAFE, _BLANK).rstrip(b"=")
    try:
        return _strict(plain + b"=" * (-len(plain) % 4))
    except msgspec.DecodeError as error:
        raise ImageError("neither base64 nor a URL stands where a picture should") from error


def _strict(text: bytes) -> bytes:
    # As a JSON string, because msgspec takes a third of binascii's time, and checks every character.
    starts = range(0, len(text), _PIECE)
    pieces = [msgspec.json.decode(b'"%b"' % text[start : start + _PIECE], type=bytes) for start in starts]
    if any(len(piece) != _PIECE // 4 * 3 for piece in pieces[:-1]):
        raise msgspec.DecodeError("padding in the middle")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
