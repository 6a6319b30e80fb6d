"""Pictures in multipart bodies: where each part stands. The rest is sent byte for byte, boundary included."""

from __future__ import annotations

import base64
import binascii
import quopri
import re
from email.message import Message
from typing import Final

from netkit.errors import ImageError
from netkit_plugins.image.encoding import extension
from netkit_plugins.image.opening import looks_like_picture
from netkit_plugins.image.result import ProcessedImage
from netkit_plugins.image.spots import HEAD, Edit

__all__ = ["PartSpot", "boundary_of", "find_in_multipart"]

_FIELD: Final = rb"(?im)^%b[ \t]*:[ \t]*(.*?)[ \t]*\r?$"
_FILENAME: Final = re.compile(
    rb'(?i)(;[ \t]*filename[ \t]*=[ \t]*"?[^";\r\n]*?)\.'
    rb'(jpe?g|jfif|png|webp|gif|bmp|tiff?|avif|heic|heif|jp2)(?="|;|\r|$)'
)


def boundary_of(content_type: str) -> bytes | None:
    """The boundary of a multipart content type, None where there is none."""
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_boundary()
    return boundary.encode("latin-1", "replace") if boundary else None


class PartSpot:
    """A part that is a picture: its headers from `start`, its content from `content` to `end`."""

    takes_url = False

    def __init__(self, body: bytes, start: int, content: int, end: int, delimiter: bytes) -> None:
        self._body = body
        self._start, self._content, self._end = start, content, end
        self._delimiter = delimiter
        self.length = end - start
        self.where = "part " + (_name(body[start:content]) or "without a name")

    @property
    def _head(self) -> bytes:
        return self._body[self._start : self._content]

    def read(self) -> bytes:
        raw = self._body[self._content : self._end]
        coding = _field(self._head, b"Content-Transfer-Encoding").lower()
        try:
            if coding == b"base64":
                return base64.b64decode(raw)
        except binascii.Error as error:
            raise ImageError("a part is not the base64 that it says it is") from error
        return quopri.decodestring(raw) if coding == b"quoted-printable" else raw

    def head(self) -> bytes:
        if _field(self._head, b"Content-Transfer-Encoding"):
            return self.read()
        return self._body[self._content : min(self._end, self._content + HEAD)]

    def edit(self, picture: ProcessedImage) -> Edit:
        head, content = self._head, picture.bytes
        coding = _field(head, b"Content-Transfer-Encoding").lower()
        if coding in (b"base64", b"quoted-printable"):
            content = base64.encodebytes(content).replace(b"\n", b"\r\n").rstrip()
            head = _with_field(head, b"Content-Transfer-Encoding", b"base64")
        if self._delimiter in content:
            raise ImageError("a picture holds the boundary of its multipart body")
        if _field(head, b"Content-Type") or picture.changed:
            head = _with_field(head, b"Content-Type", picture.mime.encode("ascii"))
        head = _with_field(head, b"Content-Length", b"%d" % len(content))
        head = _named(head, extension(picture.mime).encode("ascii"))
        return self._start, self._end, head + content

    def edit_url(self, url: str) -> Edit:
        raise NotImplementedError


def find_in_multipart(body: bytes, boundary: bytes) -> list[PartSpot]:
    """The parts that are pictures: those that say so, and those whose first bytes do."""
    delimiter = b"\r\n--" + boundary
    opening = b"--" + boundary
    position = 0 if body.startswith(opening) else body.find(delimiter) + 2
    if position == 1:
        return []
    spots = []
    position += len(opening)
    while body[position : position + 2] != b"--":
        start = body.find(b"\n", position) + 1
        if not start:
            break
        end = body.find(delimiter, start - 2)
        last = end < 0
        end = len(body) if last else end
        content = body.find(b"\r\n\r\n", start - 2, end) + 4
        if content > 3 and _is_picture(body[start:content], body[content : content + 16]):
            spots.append(PartSpot(body, start, content, end, delimiter))
        if last:
            break
        position = end + len(delimiter)
    return spots


def _is_picture(head: bytes, first: bytes) -> bool:
    if _field(head, b"Content-Transfer-Encoding").lower() == b"base64":
        first = b""
    return _field(head, b"Content-Type").lower().startswith(b"image/") or looks_like_picture(first)


def _field(head: bytes, name: bytes) -> bytes:
    found = re.search(_FIELD % re.escape(name), head)
    return found[1] if found else b""


def _with_field(head: bytes, name: bytes, value: bytes) -> bytes:
    """The same headers with another value; a field that is not there is not added."""
    found = re.search(_FIELD % re.escape(name), head)
    return head if found is None else head[: found.start(1)] + value + head[found.end(1) :]


def _name(head: bytes) -> str:
    found = re.search(rb'(?i);[ \t]*name="?([^";\r\n]*)', head)
    return repr(found[1].decode("utf-8", "replace")) if found else ""


def _named(head: bytes, ending: bytes) -> bytes:
    """A file name ends as its content does: servers go by it."""
    same = {b"jpg": (b"jpg", b"jpeg", b"jfif"), b"tif": (b"tif", b"tiff")}.get(ending, (ending,))
    return _FILENAME.sub(lambda found: found[0] if found[2].lower() in same else found[1] + b"." + ending, head)
