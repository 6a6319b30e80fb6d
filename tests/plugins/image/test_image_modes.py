"""Every mode that Pillow knows, to every format: each pixel is what it should be, or within a bound that is named."""

from __future__ import annotations

from typing import Any

import pytest
from netkit_plugins.image import preprocess
from netkit_plugins.image.color import eight_bit, flatten
from PIL import Image

from netkit import ImageError

SIZE = (16, 8)
LEVELS = [0, 1, 64, 127, 128, 200, 254, 255]
"""One row each: greys from black to white."""


def greys(mode: str, values: list[float]) -> Image.Image:
    """`values` as rows of a picture of this mode."""
    picture = Image.new("F" if mode == "F" else "I", SIZE)
    for row, value in enumerate(values):
        picture.paste(value, (0, row, SIZE[0], row + 1))
    if not mode.startswith("I;16"):
        return picture
    raw = b"".join(int(value).to_bytes(2, "big" if mode == "I;16B" else "little") * SIZE[0] for value in values)
    return Image.frombytes(mode, SIZE, raw)


def colours() -> Image.Image:
    picture = Image.new("RGB", SIZE)
    for x in range(SIZE[0]):
        for y in range(SIZE[1]):
            picture.putpixel((x, y), (x * 17, y * 36, (x * y * 2) % 256))
    return picture


def alpha() -> Image.Image:
    mask = Image.new("L", SIZE)
    for x in range(SIZE[0]):
        mask.paste(x * 17, (x, 0, x + 1, SIZE[1]))
    return mask


def made(mode: str) -> tuple[Image.Image, Image.Image, int]:
    """A picture of `mode`, what it shows as RGBA, and by how much a pixel may differ from that."""
    rgb, opaque = colours(), Image.new("L", SIZE, 255)
    grey = rgb.convert("L")

    def shown(picture: Image.Image, mask: Image.Image = opaque) -> Image.Image:
        seen = picture.convert("RGB")
        seen.putalpha(mask)
        return seen

    def with_alpha(picture: Image.Image) -> Image.Image:
        picture = picture.copy()
        picture.putalpha(alpha())
        return picture

    steps = [value * 257 for value in LEVELS]
    ramp = shown(greys("I", LEVELS).convert("L"))
    if mode == "1":
        bits = grey.point(lambda value: 255 * (value > 99)).convert("1")
        return bits, shown(bits.convert("L")), 0
    if mode == "P":
        palette = rgb.quantize(200)
        return palette, shown(palette.convert("RGB")), 0
    if mode == "PA":
        palette = with_alpha(rgb.quantize(200).convert("PA"))
        return palette, shown(palette.convert("RGB"), alpha()), 0
    if mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        return greys(mode, steps), ramp, 0
    if mode == "F":
        return greys(mode, [value / 255 for value in LEVELS]), ramp, 0
    if mode in ("L", "RGB"):
        return (grey if mode == "L" else rgb), shown(grey if mode == "L" else rgb), 0
    if mode in ("LA", "RGBA"):
        base = grey if mode == "LA" else rgb
        return with_alpha(base), shown(base, alpha()), 0
    if mode in ("La", "RGBa"):
        # What was multiplied by a small alpha cannot be told exactly any more.
        base = with_alpha(grey if mode == "La" else rgb)
        return base.convert(mode), base.convert(mode).convert(base.mode).convert("RGBA"), 1
    if mode == "RGBX":
        return rgb.convert("RGBX"), shown(rgb), 0
    # The way to these and back is not exact for every colour.
    return (
        rgb.convert(mode),
        shown(rgb.convert(mode).convert("RGB")),
        {"CMYK": 0, "YCbCr": 0, "HSV": 0, "LAB": 1}[mode],
    )


MODES = [
    "1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "I;16",
    "I;16L", "I;16B", "I;16N", "F",
]  # fmt: skip


def difference(one: Image.Image, other: Image.Image) -> int:
    return max(abs(a - b) for a, b in zip(one.tobytes(), other.tobytes(), strict=True))


def mean_difference(one: Image.Image, other: Image.Image) -> float:
    first, second = one.tobytes(), other.tobytes()
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


def test_pillow_knows_no_other_mode() -> None:
    known = set(Image._MODEINFO) if hasattr(Image, "_MODEINFO") else set(Image.MODES)
    assert known - {"BGR;15", "BGR;16", "BGR;24"} <= set(MODES) | {"I;16N", "La", "PA"}


@pytest.mark.parametrize("target", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("mode", MODES)
def test_decoded_pictures(pictures: Any, mode: str, target: str) -> None:
    picture, expected, exact = made(mode)
    before = picture.tobytes(), picture.mode
    seen = pictures.opened(preprocess(picture, format=target, quality=100).bytes)
    assert (picture.tobytes(), picture.mode) == before
    assert seen.mode in (("L", "RGB") if target == "jpeg" else ("L", "LA", "RGB", "RGBA"))
    if target == "jpeg":
        on_white = flatten(expected, (255, 255, 255))
        assert mean_difference(seen.convert("RGB"), on_white) <= 8
        return
    flat_seen, flat = (flatten(item.convert("RGBA"), (0, 0, 255)) for item in (seen, expected))
    if target == "png":
        assert difference(flat_seen, flat) <= exact
        return
    assert mean_difference(flat_seen, flat) <= 12


FILES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "TIFF": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "I;16B", "F"],
    "JPEG": ["L", "RGB", "CMYK"],
    "WEBP": ["RGB", "RGBA"],
    "GIF": ["1", "L", "P"],
    "BMP": ["1", "L", "P", "RGB"],
    "PPM": ["1", "L", "RGB", "I"],
    "TGA": ["1", "L", "LA", "P", "RGB", "RGBA"],
    "JPEG2000": ["L", "LA", "RGB", "RGBA", "I;16"],
    "PCX": ["1", "L", "P", "RGB"],
    "SGI": ["L", "RGB", "RGBA"],
    "ICO": ["RGBA"],
    "AVIF": ["RGB", "RGBA"],
}
LOSSY = ("JPEG", "WEBP", "AVIF")


@pytest.mark.parametrize("target", ["jpeg", "png", "webp", "keep"])
@pytest.mark.parametrize(("format_", "mode"), [(name, mode) for name, modes in FILES.items() for mode in modes])
def test_files_of_every_mode(pictures: Any, format_: str, mode: str, target: str) -> None:
    picture, expected, exact = made(mode)
    options = {"quality": 100} if format_ in LOSSY else {}
    result = preprocess(pictures.encoded(picture, format_, **options), format=target, quality=100)
    seen = pictures.opened(result.bytes)
    assert result.mime == Image.MIME[seen.format].replace("image/jpx", "image/jp2")
    assert result.size == seen.size
    shown = flatten(eight_bit(seen).convert("RGBA"), (255, 255, 255))
    wanted = flatten(expected, (255, 255, 255))
    if format_ in LOSSY or seen.format in (*LOSSY, "GIF"):
        assert mean_difference(shown, wanted) <= 12
    elif format_ == "ICO":
        assert mean_difference(shown, wanted) <= 1
    else:
        # One step is lost where CMYK, LAB and YCbCr are converted.
        assert difference(shown, wanted) <= max(exact, 1 if mode in ("CMYK", "LAB", "YCbCr") else 0)


# Sixteen bits and more: scaled, never clipped.


@pytest.mark.parametrize("mode", ["I", "I;16", "I;16L", "I;16B"])
def test_a_ramp_of_sixteen_bits_is_a_ramp(mode: str) -> None:
    raw = b"".join((value * 64).to_bytes(2, "big" if mode == "I;16B" else "little") for value in range(1024))
    picture = Image.frombytes("I;16" if mode == "I" else mode, (1024, 1), raw)
    picture = picture.convert("I") if mode == "I" else picture
    made = eight_bit(picture)
    assert made.mode == "L"
    assert list(made.tobytes()) == [(value * 64 + 128) // 257 for value in range(1024)]


@pytest.mark.parametrize(
    ("mode", "values", "expected"),
    [
        ("F", [0.0, 0.5, 1.0], [0, 128, 255]),
        ("F", [0.0, 100.0, 255.0], [0, 100, 255]),
        ("F", [0.0, 32768.0, 65535.0], [0, 128, 255]),
        ("F", [-1.0, 0.0, 1.0], [0, 128, 255]),
        ("F", [0.0, 0.0, 1e9], [0, 0, 255]),
        ("F", [0.0, 0.0, 0.0], [0, 0, 0]),
        ("F", [-3.0, -3.0, -3.0], [0, 0, 0]),
        ("I", [0, 255, 65535], [0, 1, 255]),
        ("I", [0, 65536, 131072], [0, 128, 255]),
        ("I", [-100, 1, 100], [0, 129, 255]),
    ],
)
def test_ranges(mode: str, values: list[float], expected: list[int]) -> None:
    picture = Image.new(mode, (3, 1))
    for column, value in enumerate(values):
        picture.putpixel((column, 0), value)
    assert list(eight_bit(picture).tobytes()) == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value: float) -> None:
    picture = Image.new("F", (2, 2), value)
    with pytest.raises(ImageError, match="not finite"):
        preprocess(picture)


def test_a_colour_key_in_sixteen_bits(pictures: Any) -> None:
    picture = greys("I;16", [value * 257 for value in LEVELS])
    data = pictures.encoded(picture, "PNG", transparency=128 * 257)
    seen = pictures.opened(preprocess(data, format="png").bytes)
    assert seen.mode == "LA"
    assert [seen.getpixel((0, row))[1] for row in range(8)] == [255, 255, 255, 255, 0, 255, 255, 255]


def test_a_printers_jpeg_has_its_colours(pictures: Any) -> None:
    """Adobe writes CMYK inverted, Pillow writes it so too: 0 is full ink in the file, and red stays red."""
    data = pictures.encoded(Image.new("RGB", (32, 32), (250, 20, 10)).convert("CMYK"), "JPEG", quality=100)
    assert b"Adobe" in data
    for max_size in (None, 8):
        seen = pictures.opened(preprocess(data, max_size=max_size, quality=100).bytes)
        assert seen.mode == "RGB"
        assert all(abs(a - b) <= 4 for a, b in zip(seen.getpixel((3, 3)), (250, 20, 10), strict=True))
