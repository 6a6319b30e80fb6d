"""`netkit.preprocess`: the plugin's work on one picture, as a plain function."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from PIL import Image

from netkit_plugins.image.options import PictureOptions
from netkit_plugins.image.process import process, process_decoded
from netkit_plugins.image.result import ProcessedImage

__all__ = ["preprocess"]


def preprocess(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image, **options: Any
) -> ProcessedImage:
    """Make a picture small, upright, plain sRGB and free of metadata.

    Example::

        picture = netkit.preprocess("photo.jpg", max_size=336, fit="cover")
        requests.post(url, json={"image": picture.base64})

    `source` is a path, the encoded picture, or a PIL picture (which is not changed). `options` are those of the
    `image` plugin that concern one picture: max_size, fit, format, quality, max_bytes, background, strip_metadata,
    animated, max_pixels. It runs in the calling thread: an asynchronous program calls it through
    `asyncio.to_thread`. Raises `netkit.ImageError` (a ValueError) for what is no picture, is broken, or too large,
    OSError for a file that cannot be read, TypeError or ValueError for wrong options.
    """
    chosen = PictureOptions(**options)
    if isinstance(source, Image.Image):
        return process_decoded(source, chosen)
    if isinstance(source, (str, os.PathLike)):
        return process(Path(source).read_bytes(), chosen)
    return process(bytes(source), chosen)
