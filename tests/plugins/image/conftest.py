"""Pictures to send, made here: nothing is read from files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from netkit_plugins.image.gate import forget_gates
from PIL import Image


class Pictures:
    """Makers of encoded pictures."""

    @staticmethod
    def encoded(picture: Image.Image, format_: str = "JPEG", **options: Any) -> bytes:
        target = io.BytesIO()
        picture.save(target, format_, **options)
        return target.getvalue()

    @staticmethod
    def opened(data: bytes) -> Image.Image:
        """Decoded to its end."""
        picture = Image.open(io.BytesIO(data))
        picture.load()
        return picture

    @staticmethod
    def halves(size: tuple[int, int] = (40, 20), mode: str = "RGB") -> Image.Image:
        """Left half red, right half blue."""
        picture = Image.new("RGB", size, "blue")
        picture.paste("red", (0, 0, size[0] // 2, size[1]))
        return picture.convert(mode)

    @staticmethod
    def scene(size: tuple[int, int]) -> Image.Image:
        """Something like a photograph: large soft shapes, some edges, a little grain. The same each time."""
        small = Image.merge(
            "RGB",
            [
                Image.radial_gradient("L").resize((64, 48)),
                Image.linear_gradient("L").resize((64, 48)),
                Image.radial_gradient("L").rotate(90).resize((64, 48)).point(lambda value: 255 - value),
            ],
        )
        for number in range(12):
            shade = (number * 21, 255 - number * 17, (number * 67) % 256)
            small.paste(shade, (number * 5, number * 3, number * 5 + 7, number * 3 + 9))
        return small.resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def pictures() -> type[Pictures]:
    return Pictures


@pytest.fixture(autouse=True)
def _fresh_gates() -> Iterator[None]:
    forget_gates()
    yield
    forget_gates()
