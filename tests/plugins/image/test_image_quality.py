"""What draft decoding costs in quality: next to nothing, by structural similarity (Wang et al. 2004)."""

from __future__ import annotations

import io
from typing import Any

import numpy
import pytest
from PIL import Image, ImageChops

import netkit


def similarity(one: Image.Image, other: Image.Image) -> float:
    """Mean SSIM of two grey pictures, over windows of 8 x 8 pixels, with the constants of the paper."""
    x, y = (numpy.asarray(picture.convert("L"), dtype=numpy.float64) for picture in (one, other))

    def mean(values: Any) -> Any:
        return numpy.lib.stride_tricks.sliding_window_view(values, (8, 8)).mean(axis=(2, 3))

    mean_x, mean_y = mean(x), mean(y)
    variance_x, variance_y = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2
    covariance = mean(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    above = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return float((above / ((mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2))).mean())


def test_the_measure_itself(pictures: Any) -> None:
    picture = pictures.scene((100, 80)).convert("L")
    assert similarity(picture, picture) == pytest.approx(1.0)
    assert similarity(picture, ImageChops.invert(picture)) < 0.5
    assert similarity(picture, picture.point(lambda value: value + 1)) > 0.99


def shapes(size: tuple[int, int]) -> Image.Image:
    """Hard edges and thin lines, which a coarse decoder would blur."""
    picture = Image.new("RGB", size, "white")
    for number in range(40):
        left, top = number * size[0] // 40, (number * 7 % 40) * size[1] // 40
        colour = (number * 6, 255 - number * 6, number * 40 % 256)
        picture.paste(colour, (left, top, left + size[0] // 60, size[1]))
    return picture


@pytest.mark.parametrize("kind", ["scene", "shapes", "grain"])
@pytest.mark.parametrize("fit", ["inside", "cover"])
@pytest.mark.parametrize("size", [(4000, 3000), (1000, 750), (600, 900)])
def test_as_good_as_the_long_way(pictures: Any, kind: str, fit: str, size: tuple[int, int]) -> None:
    if kind == "grain":
        picture = ImageChops.add(pictures.scene(size), Image.effect_noise(size, 20).convert("RGB"), 2)
    else:
        picture = pictures.scene(size) if kind == "scene" else shapes(size)
    data = pictures.encoded(picture, "JPEG", quality=92)
    made = pictures.opened(netkit.preprocess(data, fit=fit).bytes)
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    if fit == "cover":
        side = min(size)
        left, top = (size[0] - side) / 2, (size[1] - side) / 2
        whole = whole.resize(made.size, Image.Resampling.LANCZOS, (left, top, left + side, top + side))
    else:
        whole = whole.resize(made.size, Image.Resampling.LANCZOS)
    reference = pictures.opened(pictures.encoded(whole, "JPEG", quality=85))
    assert similarity(made, reference) >= 0.98
