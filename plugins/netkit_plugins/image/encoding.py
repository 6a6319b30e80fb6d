"""Pixels to bytes: once, or by a search for the quality that fits `max_bytes`.

Rules of this file:

- What is encoded has no `info`: Pillow's writers copy comments and profiles from there.
- The same pixels and options give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from PIL import Image

from netkit.errors import ImageError
from netkit_plugins.image.opening import as_image_error

__all__ = ["MIME", "Animation", "encode", "extension", "takes_alpha", "written_format"]

MIME: Final = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "AVIF": "image/avif",
    "HEIF": "image/heif",
    "BMP": "image/bmp",
    "DIB": "image/bmp",
    "TIFF": "image/tiff",
    "JPEG2000": "image/jp2",
    "ICO": "image/x-icon",
    "PPM": "image/x-portable-anymap",
    "QOI": "image/qoi",
    "TGA": "image/x-tga",
    "PCX": "image/x-pcx",
    "SGI": "image/sgi",
}
"""Pillow's names of formats → media types."""

_KEPT: Final = frozenset({"JPEG", "PNG", "WEBP", "GIF", "AVIF", "BMP", "TIFF", "JPEG2000"})
_WITH_ALPHA: Final = frozenset({"PNG", "WEBP", "GIF", "AVIF", "TIFF", "JPEG2000"})
_WITH_QUALITY: Final = frozenset({"JPEG", "WEBP", "AVIF"})
_MOVING: Final = frozenset({"PNG", "WEBP", "GIF", "AVIF"})
_EXTENSIONS: Final = {"JPEG": "jpg", "JPEG2000": "jp2", "TIFF": "tif"}
_SAVE: Final[dict[str, dict[str, Any]]] = {
    "JPEG": {"optimize": True},
    "PNG": {"optimize": True},
    "WEBP": {"method": 4},
    "TIFF": {"compression": "tiff_adobe_deflate"},
}


class Animation(NamedTuple):
    """How frames follow each other: milliseconds each, and how often all of it repeats (0: for ever)."""

    durations: Sequence[int]
    loop: int | None


def written_format(source: str, wanted: str, *, animated: bool = False) -> str:
    """The format in which a picture of format `source` is sent when `wanted` is "jpeg", "webp", "png" or "keep"."""
    kept = source if source in _KEPT and source in Image.SAVE else "PNG"
    if wanted == "keep":
        return kept
    chosen = wanted.upper()
    return kept if animated and chosen not in _MOVING else chosen


def takes_alpha(format_: str) -> bool:
    return format_ in _WITH_ALPHA


def extension(mime: str) -> str:
    """A file's ending for a media type, without the dot."""
    format_ = next((name for name, known in MIME.items() if known == mime), "bin")
    return _EXTENSIONS.get(format_, format_.lower())


def encode(
    frames: Sequence[Image.Image],
    format_: str,
    *,
    quality: int,
    max_bytes: int | None = None,
    animation: Animation | None = None,
    metadata: dict[str, Any] | None = None,
) -> bytes:
    """One picture, or the frames of an animation, as bytes. Raises ImageError when they cannot be written, or not in
    `max_bytes`."""

    def written(at: int) -> bytes:
        with as_image_error("written"):
            return _write(frames, format_, at, animation, metadata or {})

    made = written(quality)
    if max_bytes is None or len(made) <= max_bytes:
        return made
    best = _search(written, quality, max_bytes) if format_ in _WITH_QUALITY else None
    if best is None:
        raise ImageError(f"a picture does not fit {max_bytes} bytes as {format_} of {_size(frames[0])}")
    return best


def _search(written: Any, quality: int, max_bytes: int) -> bytes | None:
    """The greatest quality below `quality` that fits, by bisection: size grows with quality, if not strictly."""
    best: bytes | None = None
    low, high = 1, quality - 1
    while low <= high:
        middle = (low + high) // 2
        made: bytes = written(middle)
        if len(made) <= max_bytes:
            best, low = made, middle + 1
        else:
            high = middle - 1
    return best


def _size(picture: Image.Image) -> str:
    return f"{picture.size[0]} x {picture.size[1]}"


def _write(
    frames: Sequence[Image.Image], format_: str, quality: int, animation: Animation | None, metadata: dict[str, Any]
) -> bytes:
    first = _bare(frames[0])
    arguments: dict[str, Any] = {**_SAVE.get(format_, {}), **metadata}
    if format_ in _WITH_QUALITY:
        arguments["quality"] = quality
    if animation is not None:
        arguments |= {"save_all": True, "append_images": [_bare(frame) for frame in frames[1:]]}
        arguments["duration"] = list(animation.durations)
        if animation.loop is not None:
            arguments["loop"] = animation.loop
        if format_ == "GIF":
            arguments |= {"disposal": 2, "optimize": False}
    target = io.BytesIO()
    first.save(target, format_, **arguments)
    return target.getvalue()


def _bare(picture: Image.Image) -> Image.Image:
    bare = picture.copy()
    bare.info = {}
    return bare
