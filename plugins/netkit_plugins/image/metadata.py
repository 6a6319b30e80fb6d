"""Dropping what a file says beside its pixels, without touching them: JPEG, PNG, WebP and GIF, chunk by chunk.

Rules of this file:

- What is needed to show the picture stays (tables, profiles, palettes, transparency, frames and their times);
  everything else goes, the unknown and what follows the end included.
- A file without anything to drop comes back as the same bytes object.
- A file that ends too early is an ImageError: a decoder that is told to be lenient would not notice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from netkit.errors import ImageError

__all__ = ["LOSSLESS", "strip"]

_JPEG_SCAN_END: Final = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_PNG_KEPT: Final = frozenset(
    {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"cICP", b"sBIT", b"bKGD",
     b"pHYs", b"acTL", b"fcTL", b"fdAT"}
)  # fmt: skip
_WEBP_KEPT: Final = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF", b"ICCP"})
_GIF_LOOPS: Final = (b"NETSCAPE2.0", b"ANIMEXTS1.0")


def _short(format_: str) -> ImageError:
    return ImageError(f"a {format_} picture ends too early")


def _joined(data: bytes, kept: list[tuple[int, int]]) -> bytes:
    """The `kept` parts of `data`; `data` itself when they are all of it."""
    if sum(end - start for start, end in kept) == len(data):
        return data
    return b"".join(data[start:end] for start, end in kept)


def _jpeg(data: bytes) -> bytes:
    kept, position = [(0, 2)], 2
    while True:
        while data[position : position + 2] == b"\xff\xff":  # fill bytes, ISO/IEC 10918-1 section B.1.1.2
            position += 1
        if position + 2 > len(data) or data[position] != 0xFF:
            raise _short("JPEG")
        marker = data[position + 1]
        if marker == 0xD9:
            kept.append((position, position + 2))
            return _joined(data, kept)
        end = position + 2
        if not (0xD0 <= marker <= 0xD7 or marker == 0x01):
            end += int.from_bytes(data[end : end + 2], "big")
        if marker == 0xDA:
            found = _JPEG_SCAN_END.search(data, end)
            if found is None:
                raise _short("JPEG")
            end = found.start()
        if end > len(data) or end < position + 2:
            raise _short("JPEG")
        if _keeps_segment(marker, data[position + 4 : end]):
            kept.append((position, end))
        position = end


def _keeps_segment(marker: int, content: bytes) -> bool:
    if marker == 0xE0:  # JFIF without its thumbnail; JFXX is nothing but one
        return content.startswith(b"JFIF\x00") and content[12:14] == b"\x00\x00"
    if marker == 0xE2:
        return content.startswith(b"ICC_PROFILE\x00")
    if marker == 0xEE:
        return content.startswith(b"Adobe")
    return not (0xE1 <= marker <= 0xEF or marker == 0xFE)


def _png(data: bytes) -> bytes:
    kept, position = [(0, 8)], 8
    while True:
        kind = data[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if len(kind) < 4 or end > len(data):
            raise _short("PNG")
        if kind in _PNG_KEPT:
            kept.append((position, end))
        if kind == b"IEND":
            return _joined(data, kept)
        position = end


def _webp(data: bytes) -> bytes:
    size = 8 + int.from_bytes(data[4:8], "little")
    if size > len(data) or size < 12:
        raise _short("WebP")
    parts, position = [], 12
    while position + 8 <= size:
        kind = data[position : position + 4]
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        end = position + 8 + length + length % 2
        if position + 8 + length > size:
            raise _short("WebP")
        chunk = data[position:end]
        if kind == b"VP8X":
            # RFC 9649 section 2.7: the flags of EXIF (0x08) and XMP (0x04) chunks.
            chunk = chunk[:8] + bytes([chunk[8] & ~0x0C]) + chunk[9:]
        if kind in _WEBP_KEPT:
            parts.append(chunk)
        position = end
    content = b"".join(parts)
    made = b"RIFF" + (len(content) + 4).to_bytes(4, "little") + b"WEBP" + content
    return data if made == data else made


def _gif(data: bytes) -> bytes:
    position = 13 + _palette(data[10:11])
    kept = [(0, position)]
    pending: list[tuple[int, int]] = []
    while True:
        kind = data[position : position + 1]
        if kind == b";":
            kept.append((position, position + 1))
            return _joined(data, kept)
        start = position
        if kind == b",":
            position = _blocks_end(data, position + 11 + _palette(data[position + 9 : position + 10]))
            kept += [*pending, (start, position)]
            pending = []
        elif kind == b"!":
            label = data[position + 1 : position + 2]
            position = _blocks_end(data, position + 2)
            if label == b"\xf9":
                pending.append((start, position))
            elif label == b"\xff" and data[start + 3 : start + 14] in _GIF_LOOPS:
                kept.append((start, position))
        else:
            raise _short("GIF")


def _palette(flags: bytes) -> int:
    """Bytes of the colour table that these flags announce."""
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0


def _blocks_end(data: bytes, position: int) -> int:
    while position < len(data):
        length = data[position]
        position += 1 + length
        if length == 0:
            return position
    raise _short("GIF")


LOSSLESS: Final[dict[str, Callable[[bytes], bytes]]] = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp, "GIF": _gif}
"""Formats whose metadata can be dropped without decoding."""


def strip(format_: str, data: bytes) -> bytes:
    """`data` without metadata; the same object where there is none. Raises ImageError when the file ends too early,
    KeyError for a format that is not in `LOSSLESS`."""
    return LOSSLESS[format_](data)
