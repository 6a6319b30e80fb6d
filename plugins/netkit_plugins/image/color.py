"""Pixels made right: eight bits a channel, greys and colours that every reader understands.

Rules of this file:

- Values are scaled to the new range, never clipped: 16 bits become 8 by division by 257, which maps 0 to 0 and 65535
  to 255.
- What a profile says about colours is applied before it is dropped.
- The result is L, LA, RGB or RGBA; CMYK stays until its profile has been applied.
"""

from __future__ import annotations

import io
import math
from typing import Any, Final

from PIL import Image, ImageCms, ImageMath

from netkit.errors import ImageError

__all__ = ["eight_bit", "flatten", "has_alpha", "is_srgb", "to_srgb"]

_PLAIN: Final = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
_ALPHA: Final = frozenset({"LA", "RGBA", "PA", "La", "RGBa"})


def has_alpha(picture: Image.Image) -> bool:
    """Whether any pixel can be transparent."""
    return picture.mode in _ALPHA or "transparency" in picture.info


def eight_bit(picture: Image.Image) -> Image.Image:
    """The same picture as L, LA, RGB, RGBA or CMYK.

    Modes I and F have no range of their own. I counts as 16 bits as long as its values fit there; F as 0 to 1, 0 to
    255 or 0 to 65535, whichever is the smallest that holds them; anything else is stretched from its least to its
    greatest value. Raises ImageError for values that are not finite.
    """
    mode = picture.mode
    key = picture.info.get("transparency")
    if mode.startswith("I;16") or mode in ("I", "F"):
        grey = _grey(picture)
        if isinstance(key, int) and mode != "F":
            grey.putalpha(_unlike(picture, key))
        return grey
    if mode in ("PA", "RGBa"):
        return picture.convert("RGBA")
    if mode == "La":
        return picture.convert("LA")
    if key is not None and mode in ("1", "L", "RGB", "P"):
        return picture.convert("RGBA")
    if mode in _PLAIN:
        return picture
    return picture.convert("L" if mode == "1" else "RGB")


def _grey(picture: Image.Image) -> Image.Image:
    wide = picture.convert("I") if picture.mode.startswith("I;16") else picture
    low, high = (float(bound) for bound in wide.getextrema())  # type: ignore[arg-type]
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ImageError("a picture holds values that are not finite numbers")
    first, last = _range(picture.mode, low, high)
    scale = 255 / (last - first) if last > first else 0.0
    # Half a step more, because the conversion to L cuts off what is behind the point.
    scaled = wide.point(lambda value: value * scale + (0.5 - first * scale))
    return scaled.convert("L")


def _range(mode: str, low: float, high: float) -> tuple[float, float]:
    """The values that become black and white."""
    limits = (1.0, 255.0, 65535.0) if mode == "F" else (65535.0,)
    if low >= 0:
        for limit in limits:
            if high <= limit:
                return 0.0, limit
    return low, high


def _unlike(picture: Image.Image, key: int) -> Image.Image:
    """A mask: 0 where the pixel is `key`, else 255."""
    wide = picture.convert("I")
    different: Any = ImageMath.lambda_eval(lambda names: (names["pixels"] != key) * 255, pixels=wide)
    mask: Image.Image = different.convert("L")
    return mask


def flatten(picture: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """An opaque L or RGB of an L, LA, RGB or RGBA, with `background` showing through."""
    if picture.mode not in ("LA", "RGBA"):
        return picture
    colour = picture.convert("RGBA")
    solid = Image.new("RGBA", picture.size, (*background, 255))
    solid.alpha_composite(colour)
    grey = picture.mode == "LA" and len(set(background)) == 1
    return solid.convert("RGB").getchannel("R") if grey else solid.convert("RGB")


def is_srgb(profile: bytes | None) -> bool:
    """Whether pixels with this ICC profile need no conversion."""
    if not profile:
        return True
    try:
        described = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(io.BytesIO(profile)))
    except Exception:  # noqa: BLE001 - a broken profile says nothing about colours
        return True
    return "srgb" in described.lower()


def to_srgb(picture: Image.Image, profile: bytes | None) -> Image.Image:
    """An L, LA, RGB, RGBA or CMYK as L, LA, RGB or RGBA in sRGB. A profile that is broken, or does not fit the
    channels, cannot be honoured and is ignored."""
    alpha = picture.getchannel("A") if picture.mode in ("LA", "RGBA") else None
    colour = picture.convert(picture.mode[:-1]) if alpha is not None else picture
    grey = colour.mode == "L"
    if not is_srgb(profile):
        assert profile is not None
        colour = _converted(colour, profile)
    if colour.mode == "CMYK":
        colour = colour.convert("RGB")
    if grey and colour.mode == "RGB":
        colour = colour.getchannel("G")
    if alpha is not None:
        # convert() above may have handed out the very same pixels.
        colour = colour.copy()
        colour.putalpha(alpha)
    return colour


def _converted(colour: Image.Image, profile: bytes) -> Image.Image:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        converted = ImageCms.profileToProfile(
            colour,
            source,
            ImageCms.createProfile("sRGB"),
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            outputMode="RGB",
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except Exception:  # noqa: BLE001 - see to_srgb
        return colour
    return colour if converted is None else converted
