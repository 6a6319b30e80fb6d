"""How many pixels a file makes its decoder hold, where that is more than its first header says.

An icon's directory says 16 x 16 and the PNG inside it 20000 x 20000; a TIFF of 8 x 8 has tiles of 60000 x 60000; the
box around JPEG 2000 says something else than the codestream in it. Decoders believe the inner sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["pixels_inside", "tile_pixels"]

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_CODESTREAM: Final = b"\xff\x4f\xff\x51"
"""SOC and SIZ, ISO/IEC 15444-1 annex A."""
_TILE_WIDTH, _TILE_LENGTH = 322, 323


def pixels_inside(format_: str, data: bytes) -> int:
    """The greatest number of pixels that anything inside the file announces; 0 where a format hides nothing. Asked
    before the file is opened, for an icon is decoded by then. Raises struct.error for what is cut short."""
    if format_ == "ICO":
        return max((abs(width * height) for width, height in _icons(data)), default=0)
    return max(_codestreams(data), default=0) if format_ == "JPEG2000" else 0


def tile_pixels(picture: Any) -> int:
    """Pixels of one tile of an opened TIFF; 0 for other formats, and for one without tiles."""
    if picture.format != "TIFF":
        return 0
    tags = picture.tag_v2
    return int(tags.get(_TILE_WIDTH) or 0) * int(tags.get(_TILE_LENGTH) or 0)


def _icons(data: bytes) -> Iterator[tuple[int, int]]:
    (count,) = struct.unpack_from("<H", data, 4)
    for number in range(min(count, (len(data) - 6) // 16)):
        (start,) = struct.unpack_from("<I", data, 6 + 16 * number + 12)
        if data[start : start + 8] == _PNG and len(data) >= start + 24:
            yield struct.unpack_from(">II", data, start + 16)
        elif len(data) >= start + 12:
            # A BMP whose height counts its mask too; the oldest form has 16-bit sizes.
            (header,) = struct.unpack_from("<I", data, start)
            width, height = struct.unpack_from("<hh" if header == 12 else "<ii", data, start + 4)
            yield width, height // 2


def _codestreams(data: bytes) -> Iterator[int]:
    position = data.find(_CODESTREAM)
    while position >= 0 and len(data) >= position + 40:
        right, bottom, left, top = struct.unpack_from(">IIII", data, position + 8)
        yield max(0, right - left) * max(0, bottom - top)
        position = data.find(_CODESTREAM, position + 4)
