"""One picture from the bytes that came to the bytes that are sent. Pure: no runtime, no clock, no chance.

The order of steps: header check, draft decode, orientation, crop and shrink, mode, colours, encode once. What
shrinking cannot average (palettes, one and sixteen bits, colour keys) is made eight bits a channel just before it.

Rules of this file:

- Every picture is decoded to its end, also one that is sent as it came: what is broken is never sent.
- Pixels that need no change and a format that is right give the very bytes that came, without their metadata.
- A result larger than its source is not sent, where the source is within all limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from PIL import Image, ImageFile

from netkit.errors import ImageError
from netkit_plugins.image import metadata
from netkit_plugins.image.color import eight_bit, flatten, has_alpha, is_srgb, to_srgb
from netkit_plugins.image.detail import best_offset
from netkit_plugins.image.encoding import MIME, Animation, encode, takes_alpha, written_format
from netkit_plugins.image.geometry import Plan, plan_of
from netkit_plugins.image.opening import Header, as_image_error, opened
from netkit_plugins.image.options import PictureOptions
from netkit_plugins.image.result import ProcessedImage

__all__ = ["memory_needed", "process", "process_decoded"]

ORIENTATION: Final = 0x0112
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
DRAFT_GAP: Final = 2
"""A JPEG is decoded at no less than so many times the wanted size; the filter does the rest."""

_UNCHANGED_MODES: Final = {
    "JPEG": frozenset({"L", "RGB"}),
    "PNG": frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA"}),
    "WEBP": frozenset({"RGB", "RGBA"}),
    "GIF": frozenset({"1", "L", "P", "RGB", "RGBA"}),
}
_COMMON: Final = frozenset({"JPEG", "PNG", "WEBP"})
"""Formats that every server reads: good enough to be sent in place of a JPEG that would be larger."""


def memory_needed(header: Header, options: PictureOptions) -> int:
    """Bytes that decoding and working on a picture takes at most, estimated from its header."""
    width, height = header.size
    if header.format == "JPEG":
        plan = plan_of(header.size, options.box, options.fit)
        for divisor in (8, 4, 2):
            if all(full // divisor >= DRAFT_GAP * side for full, side in zip(header.size, plan.scaled, strict=True)):
                width, height = -(-width // divisor), -(-height // divisor)
                break
    # Pillow holds four bytes a pixel; the source, a converted and a turned copy are alive at the same time.
    return 12 * width * height


def process(data: bytes, options: PictureOptions) -> ProcessedImage:
    """What is sent in place of the picture `data`. Raises ImageError."""
    with opened(data, options.max_pixels) as (picture, header):
        if header.frames > 1 and options.animated == "keep":
            return _animation(data, picture, header, options)
        with as_image_error("decoded"):
            orientation = _orientation(picture)
            if header.format == "JPEG":
                _draft(picture, orientation, options)
            picture.load()
            # Some decoders turn the picture themselves, and then say so.
            orientation = orientation if header.format == "JPEG" else _orientation(picture)
            return _still(data, picture, header, orientation, options)


def process_decoded(picture: Image.Image, options: PictureOptions) -> ProcessedImage:
    """The same for a picture that is decoded already; it is not changed. `ratio` compares with its plain pixels."""
    width, height = picture.size
    if width < 1 or height < 1 or width * height > options.max_pixels:
        raise ImageError(f"a picture of {width} x {height} pixels: from 1 to {options.max_pixels} are allowed")
    with as_image_error("decoded"):
        format_ = written_format(picture.format or "PNG", options.format)
        made = _rendered(picture, _orientation(picture), format_, options)
        content = _encoded([made], format_, options, _kept_metadata(picture, format_, options))
        return ProcessedImage(content, MIME[format_], made.size, width * height * len(picture.getbands()), True)


def _still(
    data: bytes, picture: ImageFile.ImageFile, header: Header, orientation: int, options: PictureOptions
) -> ProcessedImage:
    format_ = written_format(header.format, options.format)
    size = _turned(header.size, orientation)
    right_size = orientation == 1 and plan_of(size, options.box, options.fit).size == size
    right_colours = is_srgb(picture.info.get("icc_profile")) or not options.strip_metadata
    modes = _UNCHANGED_MODES.get(header.format, frozenset())
    original: bytes | None = None
    if right_size and right_colours and header.mode in modes and header.frames == 1:
        clean = metadata.strip(header.format, data)
        original = clean if options.strip_metadata else data
        if options.max_bytes is not None and len(original) > options.max_bytes:
            original = None
    elif header.format in metadata.LOSSLESS and (header.format != "JPEG" or ImageFile.LOAD_TRUNCATED_IMAGES):
        # For its check that the file is whole. A JPEG's takes 5 ms under the interpreter's lock, and its decoder has
        # noticed already, unless the application told it not to.
        metadata.strip(header.format, data)
    if original is not None and header.format == format_:
        return _result(data, original, format_, size)
    made = _rendered(picture, orientation, format_, options)
    kept = _kept_metadata(picture, format_, options)
    if original is not None and header.format in _COMMON and not has_alpha(picture):
        try:
            content = _encoded([made], format_, options, kept)
        except ImageError:
            content = original  # it does not fit max_bytes, which the original does
        if len(content) >= len(original):
            return _result(data, original, header.format, size)
        return _result(data, content, format_, made.size)
    return _result(data, _encoded([made], format_, options, kept), format_, made.size)


def _animation(data: bytes, picture: ImageFile.ImageFile, header: Header, options: PictureOptions) -> ProcessedImage:
    format_ = written_format(header.format, options.format, animated=True)
    with as_image_error("decoded"):
        picture.load()
        orientation = _orientation(picture)
        size = _turned(header.size, orientation)
        plan = plan_of(size, options.box, options.fit)
        right_colours = is_srgb(picture.info.get("icc_profile")) or not options.strip_metadata
        stays = orientation == 1 and plan.size == size and right_colours and format_ == header.format
        clean = metadata.strip(header.format, data) if header.format in metadata.LOSSLESS else None
        loop = picture.info.get("loop")
        frames, durations = [], []
        for frame in _frames(picture, header):
            durations.append(max(0, round(frame.info.get("duration") or 0)))
            if stays and clean is not None:
                continue  # decoded, so it is whole
            frames.append(_rendered(frame, orientation, format_, options))
        if stays and clean is not None:
            original = clean if options.strip_metadata else data
            if options.max_bytes is None or len(original) <= options.max_bytes:
                return _result(data, original, format_, size)
            frames = [_rendered(frame, orientation, format_, options) for frame in _frames(picture, header)]
        animation = Animation(durations, loop if isinstance(loop, int) else None)
        content = _encoded(frames, format_, options, {}, animation)
        return _result(data, content, format_, frames[0].size)


def _frames(picture: ImageFile.ImageFile, header: Header) -> Iterator[Image.Image]:
    """Each frame as it is seen, complete."""
    for number in range(header.frames):
        picture.seek(number)
        if picture.size != header.size:
            raise ImageError("a frame of an animation is larger than the animation")
        picture.load()
        yield picture


def _draft(picture: ImageFile.ImageFile, orientation: int, options: PictureOptions) -> None:
    plan = plan_of(_turned(picture.size, orientation), options.box, options.fit)
    width, height = _turned(plan.scaled, orientation)
    picture.draft(None, (DRAFT_GAP * width, DRAFT_GAP * height))


def _orientation(picture: Image.Image) -> int:
    try:
        value = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - EXIF that cannot be read says nothing about orientation
        return 1
    return value if value in _TURNS else 1


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation >= 5 else size


def _rendered(picture: Image.Image, orientation: int, format_: str, options: PictureOptions) -> Image.Image:
    """L, LA, RGB or RGBA in sRGB, upright, in the wanted size, without alpha where `format_` has none."""
    profile = picture.info.get("icc_profile")
    made = picture if orientation == 1 else picture.transpose(_TURNS[orientation])
    made = _resized(eight_bit(made), options)
    made = to_srgb(made, profile)
    return made if takes_alpha(format_) else flatten(made, options.background_rgb)


def _resized(picture: Image.Image, options: PictureOptions) -> Image.Image:
    plan = plan_of(picture.size, options.box, options.fit)
    if plan.size == picture.size:
        return picture
    box = plan.source_box(picture.size, _offset(picture, plan, options)) if plan.crops else None
    # Pillow multiplies colours by their alpha while it resizes RGBA and LA: no fringe of hidden colours.
    return picture.resize(plan.size, Image.Resampling.LANCZOS, box)


def _offset(picture: Image.Image, plan: Plan, options: PictureOptions) -> tuple[float, float]:
    if options.fit != "smart":
        return 0.5, 0.5
    seen = flatten(picture, options.background_rgb)
    return best_offset(seen, (plan.size[0] / plan.scaled[0], plan.size[1] / plan.scaled[1]))


def _kept_metadata(picture: Image.Image, format_: str, options: PictureOptions) -> dict[str, Any]:
    if options.strip_metadata or format_ not in ("JPEG", "PNG", "WEBP", "AVIF"):
        return {}
    kept: dict[str, Any] = {}
    exif = picture.getexif()
    exif.pop(ORIENTATION, None)
    if len(exif):
        kept["exif"] = exif.tobytes()
    if (xmp := picture.info.get("xmp")) and format_ in ("JPEG", "WEBP", "AVIF"):
        kept["xmp"] = xmp
    return kept


def _encoded(
    frames: list[Image.Image],
    format_: str,
    options: PictureOptions,
    kept: dict[str, Any],
    animation: Animation | None = None,
) -> bytes:
    return encode(
        frames,
        format_,
        quality=options.quality,
        max_bytes=options.max_bytes,
        animation=animation,
        metadata=kept,
    )


def _result(data: bytes, content: bytes, format_: str, size: tuple[int, int]) -> ProcessedImage:
    return ProcessedImage(content, MIME[format_], size, len(data), content is not data)
