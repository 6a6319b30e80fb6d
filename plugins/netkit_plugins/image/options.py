"""The options of `[tool.netkit.image]`: what becomes of a picture, and where pictures are looked for."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable
from typing import Final, Literal

from PIL import ImageColor

from netkit_plugins.image.places import PRESETS, parse_path

__all__ = ["ImageOptions", "PictureOptions"]

_SIZE: Final = re.compile(r"\s*(\d+)\s*x\s*(\d+)\s*")


@dataclasses.dataclass(frozen=True)
class PictureOptions:
    """What becomes of one picture; `netkit.preprocess` takes these.

    max_size: pixels, as "WIDTHxHEIGHT", one number for both, or a pair. Pictures are shrunk to it, never enlarged.
        None: any size.
    fit: "inside" keeps all of the picture, within the box. "cover" fills the box and cuts off evenly what does not
        fit; "smart" does the same and keeps the part that holds the most detail.
    format: what is sent; "keep" is the format that came (what no server reads, such as TGA, becomes PNG). A picture
        without transparency that is a smaller PNG or WebP than it would be a JPEG stays what it is.
    quality: of JPEG, WebP and AVIF, 1 to 100.
    max_bytes: of the encoded picture. Quality falls, down to 1, until it fits; what cannot fit is an ImageError.
        None: any size.
    background: what shows through transparency where the format has none: a colour's name or "#rrggbb".
    strip_metadata: drop EXIF (with positions), XMP, IPTC, comments, thumbnails, dates. False keeps EXIF and XMP where
        the format can hold them; the orientation is applied and removed all the same.
    animated: "keep" sends every frame, in the given format where it can move, else in the one that came;
        "first_frame" makes it a still.
    max_pixels: a picture with more (all frames together) is an ImageError before it is decoded.
    """

    max_size: int | str | tuple[int, int] | None = (224, 224)
    fit: Literal["inside", "cover", "smart"] = "inside"
    format: Literal["jpeg", "webp", "png", "keep"] = "jpeg"
    quality: int = 85
    max_bytes: int | None = None
    background: str = "white"
    strip_metadata: bool = True
    animated: Literal["keep", "first_frame"] = "keep"
    max_pixels: int = 50_000_000

    def __post_init__(self) -> None:
        _known(self, "fit", ("inside", "cover", "smart"))
        _known(self, "format", ("jpeg", "webp", "png", "keep"))
        _known(self, "animated", ("keep", "first_frame"))
        if self.box is not None and min(self.box) < 1:
            raise ValueError(f"max_size must be at least 1 pixel each way, got {self.max_size!r}")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be from 1 to 100, got {self.quality}")
        for name in ("max_bytes", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be ≥ 1, got {value}")
        if len(ImageColor.getrgb(self.background)) != 3:
            raise ValueError(f"background must be opaque, got {self.background!r}")

    @property
    def box(self) -> tuple[int, int] | None:
        """`max_size` as (width, height)."""
        size = self.max_size
        if isinstance(size, str):
            found = _SIZE.fullmatch(size)
            if found is None and not size.strip().isdecimal():
                raise ValueError(f'max_size must look like "224x224", got {size!r}')
            return (int(found[1]), int(found[2])) if found else (int(size), int(size))
        if isinstance(size, int):
            return size, size
        return None if size is None else (int(size[0]), int(size[1]))

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        red, green, blue = ImageColor.getrgb(self.background)[:3]
        return red, green, blue


@dataclasses.dataclass(frozen=True)
class ImageOptions(PictureOptions):
    """The whole table.

    presets: shapes of JSON bodies in which pictures are looked for; see `netkit_plugins.image.places`.
    paths: more places, such as "document.pages.*.scan"; `*` is any one step, `**` any number of them.
    sniff: also look at raw bodies that do not say that they are pictures, and take them by their first bytes.
    on_error: "raise" an ImageError for what cannot be read, nothing is sent; "pass" sends it as it came.
    upload: store each picture once per content and send its URL instead. A function that takes the ProcessedImage,
        stores it and returns the URL; or a URL to PUT to, with {sha256} and {extension}. False or "off": pictures
        stay in the body. Only for JSON; multipart and raw bodies have no place for a URL.
    upload_url: the URL that is sent, with the same marks, where it is not the one that was PUT to (without its query
        and credentials). None: that one.
    upload_timeout: seconds for one PUT.
    upload_ttl: seconds for which a stored picture's URL is used again; None means for ever. Keep it below the life
        of presigned URLs.
    workers: pictures that are worked on at once; None: one for each processor, but one is left to an event loop.
    memory: bytes that decoded pictures may take together, estimated from their headers. A picture that needs more
        than all of it is worked on alone. Sessions with the same `workers` and `memory` share them.
    max_body: bytes of a streamed body that are read to look for pictures; a larger one is an error, see on_error.
    """

    presets: tuple[Literal["openai", "gme", "tei", "anthropic", "gemini"], ...] = (
        "openai",
        "gme",
        "tei",
        "anthropic",
        "gemini",
    )
    paths: tuple[str, ...] = ()
    sniff: bool = False
    on_error: Literal["raise", "pass"] = "raise"
    # A URL may carry a signature: it is in no repr.
    upload: bool | str | Callable[..., str] = dataclasses.field(default=False, repr=False)
    upload_url: str | None = dataclasses.field(default=None, repr=False)
    upload_timeout: float = 30.0
    upload_ttl: float | None = 900.0
    workers: int | None = None
    memory: int = 256 * 1024 * 1024
    max_body: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        _known(self, "on_error", ("raise", "pass"))
        for preset in self.presets:
            if preset not in PRESETS:
                raise ValueError(f"presets has no {preset!r} (known: {', '.join(PRESETS)})")
        for path in self.paths:
            parse_path(path)
        for name in ("workers", "memory", "max_body"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be ≥ 1, got {value}")
        for name in ("upload_timeout", "upload_ttl"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be > 0, got {value:g}")
        if self.upload is True:
            raise ValueError("upload must be false, a URL or a function")
        for name, template in (("upload", self.upload_target), ("upload_url", self.upload_url)):
            if isinstance(template, str):
                _check_template(name, template)
        if self.upload_url is not None and not isinstance(self.upload_target, str):
            raise ValueError("upload_url needs an upload that is a URL")

    @property
    def upload_target(self) -> str | Callable[..., str] | None:
        """`upload`, None when it is off."""
        if isinstance(self.upload, bool) or self.upload == "off":
            return None
        return self.upload

    def worker_count(self, *, beside_a_loop: bool) -> int:
        """`workers`, or what suits this machine."""
        return self.workers or max(1, (os.cpu_count() or 1) - beside_a_loop)


def _known(options: object, name: str, known: tuple[str, ...]) -> None:
    value = getattr(options, name)
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


def _check_template(name: str, template: str) -> None:
    if not template.startswith(("http://", "https://")):
        raise ValueError(f"{name} must be an http(s) URL")
    if "{sha256}" not in template:
        raise ValueError(f"{name} must contain {{sha256}}, or one picture would replace another")
