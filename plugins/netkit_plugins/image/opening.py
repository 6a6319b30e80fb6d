"""Opening a picture by its content: which format, how large, and nothing decoded yet.

Rules of this file:

- Only formats of `FORMATS` are tried. Pillow knows more, among them some that run other programs (EPS) or read other
  files.
- Pillow's own functions for a format are called, not `Image.open`: that one warns and fails by a process-wide limit,
  which is the application's and stays as it is.
- Whatever goes wrong in a decoder is an ImageError with the decoder's exception as its cause.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from PIL import Image, ImageFile

from netkit.errors import ImageError
from netkit_plugins.image import metadata
from netkit_plugins.image.hidden import pixels_inside, tile_pixels

__all__ = ["FORMATS", "Header", "as_image_error", "inspect", "looks_like_picture", "opened"]

FORMATS: Final = (
    "JPEG", "PNG", "WEBP", "GIF", "AVIF", "HEIF", "TIFF", "BMP", "JPEG2000", "QOI", "PPM", "ICO", "DIB", "SGI", "PCX",
    "TGA",
)  # fmt: skip
"""Formats that are decoded, where Pillow has them; TGA last, for it has no mark of its own."""

_MAGIC: Final = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\x00",
    b"MM\x00*",
    b"\x00\x00\x00\x0cjP  ",
)
_HEIC: Final = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_AVIF: Final = (b"avif", b"avis")


class Header(NamedTuple):
    """What a picture says about itself before it is decoded. `frames` is 1 for a still."""

    format: str
    mode: str
    size: tuple[int, int]
    frames: int

    @property
    def pixels(self) -> int:
        """Of all frames together."""
        return self.size[0] * self.size[1] * self.frames


def looks_like_picture(data: bytes) -> bool:
    """Whether the first 16 bytes are those of a picture, beyond doubt."""
    return data.startswith(_MAGIC) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP") or _brand(data) in _AVIF + _HEIC


def _brand(data: bytes) -> bytes:
    return data[8:12] if data[4:8] == b"ftyp" else b""


@contextmanager
def as_image_error(what: str) -> Iterator[None]:
    """Turn whatever a decoder or encoder raises into an ImageError: fuzzed files raise nearly every type."""
    try:
        yield
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError(f"a picture needs too much memory to be {what}") from error
    except Exception as error:
        raise ImageError(f"a picture cannot be {what}: {type(error).__name__}") from error


@contextmanager
def opened(data: bytes, max_pixels: int) -> Iterator[tuple[ImageFile.ImageFile, Header]]:
    """The picture in `data` with its header checked. Raises ImageError when it is none, or has more pixels."""
    with as_image_error("read"):
        picture = _open(data, max_pixels)
    try:
        yield picture, _checked(picture, max_pixels)
    finally:
        picture.close()


def inspect(data: bytes, max_pixels: int) -> Header:
    """The header alone. Raises ImageError as `opened` does."""
    with opened(data, max_pixels) as (_, header):
        return header


def _check_inside(pixels: int, max_pixels: int) -> None:
    if pixels > max_pixels:
        raise ImageError(f"a picture is too large: {pixels} pixels inside of it, at most {max_pixels} are allowed")


def _open(data: bytes, max_pixels: int) -> ImageFile.ImageFile:
    if not data:
        raise ImageError("a picture is empty: 0 bytes")
    Image.init()
    prefix = data[:16]
    failure: Exception | None = None
    for name in FORMATS:
        known = Image.OPEN.get(name)
        if known is None:
            continue
        factory, accept = known
        try:
            accepted = True if accept is None else accept(prefix)
            if not accepted or isinstance(accepted, str):
                continue
            _check_inside(pixels_inside(name, data), max_pixels)
            found = _made(factory, name, data)
        except ImageError:
            raise
        except Exception as error:  # noqa: BLE001 - another format may still take it
            # The first that knew its mark says best what is wrong.
            failure = failure or error
            continue
        assert isinstance(found, ImageFile.ImageFile)
        return found
    brand = _brand(prefix)
    if brand in _HEIC + _AVIF and not _has_decoder(brand):
        name = "AVIF" if brand in _AVIF else "HEIC"
        raise ImageError(f"a picture is {name}, for which this Pillow has no decoder") from failure
    raise ImageError("not a picture, or one of a format that is not read") from failure


def _made(factory: Callable[..., Any], format_: str, data: bytes) -> Any:
    try:
        return factory(io.BytesIO(data), "")
    except Warning:
        # The application turns warnings into errors, and metadata is broken: the picture need not be.
        if format_ not in metadata.LOSSLESS:
            raise
        return factory(io.BytesIO(metadata.strip(format_, data)), "")


def _has_decoder(brand: bytes) -> bool:
    return ("AVIF" if brand in _AVIF else "HEIF") in Image.OPEN


def _checked(picture: ImageFile.ImageFile, max_pixels: int) -> Header:
    format_ = "JPEG" if picture.format == "MPO" else picture.format or ""
    width, height = picture.size
    if width < 1 or height < 1:
        raise ImageError(f"a picture has no pixels: {width} x {height}")
    if width * height > max_pixels:
        raise ImageError(f"a picture is too large: {width} x {height} pixels, at most {max_pixels} are allowed")
    with as_image_error("read"):
        _check_inside(tile_pixels(picture), max_pixels)
        moves = format_ in ("GIF", "PNG", "WEBP", "AVIF") and getattr(picture, "is_animated", False)
        frames = int(getattr(picture, "n_frames", 1)) if moves else 1
    if width * height * frames > max_pixels:
        raise ImageError(
            f"a picture is too large: {frames} frames of {width} x {height}, at most {max_pixels} pixels are allowed"
        )
    return Header(format_, picture.mode, (width, height), frames)
