"""Mutated files of every format: an ImageError, or a picture that was checked. Nothing else, and in bounded time."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from netkit_plugins.image import ProcessedImage, preprocess
from netkit_plugins.image.metadata import LOSSLESS, strip
from PIL import Image

from netkit import ImageError

FORMATS: dict[str, dict[str, Any]] = {
    "JPEG": {},
    "JPEG progressive": {"progressive": True},
    "PNG": {},
    "PNG animated": {},
    "GIF": {},
    "GIF animated": {},
    "WEBP": {},
    "WEBP animated": {},
    "WEBP lossless": {"lossless": True},
    "TIFF": {},
    "TIFF compressed": {"compression": "tiff_adobe_deflate"},
    "BMP": {},
    "AVIF": {},
    "ICO": {},
    "PPM": {},
    "TGA": {},
    "TGA compressed": {"compression": "tga_rle"},
    "JPEG2000": {},
    "SGI": {},
    "PCX": {},
    "QOI": {},
}
MAX_PIXELS = 300_000
BOX = (24, 24)


def seed(name: str) -> bytes:
    format_ = name.partition(" ")[0]
    picture = Image.merge("RGB", [Image.linear_gradient("L").resize((48, 32)).rotate(90 * turn) for turn in range(3)])
    options = dict(FORMATS[name])
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "PRIVATE"
    if format_ in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
        options["exif"] = exif
    if name.endswith("animated"):
        options |= {
            "save_all": True,
            "append_images": [picture.rotate(90 * turn) for turn in range(3)],
            "duration": 50,
        }
    target = io.BytesIO()
    picture.save(target, format_, **options)
    return target.getvalue()


SEEDS = {name: seed(name) for name in FORMATS}
Mutation = tuple[str, float, bytes]
mutations = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "cut", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=6)
        | st.sampled_from([b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", b"\xff\xd9"]),
    ),
    min_size=1,
    max_size=6,
)


def mutated(data: bytes, changes: list[Mutation]) -> bytes:
    for kind, where, content in changes:
        # The header is where it hurts: half of all places are in the first 64 bytes.
        at = int(where * 2 * 64) if where < 0.5 else int((where - 0.5) * 2 * len(data))
        if kind == "set":
            data = data[:at] + content + data[at + len(content) :]
        elif kind == "insert":
            data = data[:at] + content + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + len(content) :]
        elif kind == "cut":
            data = data[:at]
        else:
            data = data[:at] + data[at // 2 :]
    return data


def check(made: ProcessedImage, options: dict[str, Any]) -> None:
    """What comes out is a whole picture, of the size that it says, within all limits."""
    seen = Image.open(io.BytesIO(made.bytes))
    for frame in range(min(8, getattr(seen, "n_frames", 1))):
        seen.seek(frame)
        seen.load()
    assert (max(seen.size), seen.size) == (max(made.size), made.size)
    assert all(1 <= side <= limit for side, limit in zip(made.size, BOX, strict=True))
    assert seen.format in ("JPEG", "PNG", "WEBP", "GIF", "AVIF", "BMP", "TIFF", "JPEG2000")
    assert b"PRIVATE" not in made.bytes or not options["strip_metadata"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files(name: str) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        mutations,
        st.sampled_from(["jpeg", "keep", "png", "webp"]),
        st.sampled_from(["inside", "smart"]),
        st.sampled_from(["keep", "first_frame"]),
        st.booleans(),
    )
    def run(changes: list[Mutation], target: str, fit: str, animated: str, stripped: bool) -> None:
        options = {"format": target, "fit": fit, "animated": animated, "strip_metadata": stripped}
        try:
            made = preprocess(mutated(SEEDS[name], changes), max_size=BOX, max_pixels=MAX_PIXELS, **options)
        except ImageError:
            return
        check(made, options)

    run()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_the_seeds_themselves(name: str) -> None:
    for target in ("jpeg", "keep", "png", "webp"):
        options = {"format": target, "strip_metadata": True}
        check(preprocess(SEEDS[name], max_size=BOX, max_pixels=MAX_PIXELS, **options), options)


@given(st.binary(max_size=300), st.sampled_from(["", *SEEDS]))
@settings(deadline=None)
def test_any_bytes(data: bytes, name: str) -> None:
    head = SEEDS[name][:16] if name else b""
    try:
        made = preprocess(head + data, max_size=BOX, max_pixels=MAX_PIXELS)
    except ImageError:
        return
    check(made, {"strip_metadata": True})


@pytest.mark.parametrize("format_", LOSSLESS)
def test_metadata_of_mutated_files(format_: str) -> None:
    @settings(max_examples=200, deadline=None)
    @given(mutations)
    def run(changes: list[Mutation]) -> None:
        data = mutated(SEEDS[format_], changes)
        try:
            clean = strip(format_, data)
        except (ImageError, IndexError):
            return
        assert len(clean) <= len(data)
        assert strip(format_, clean) is clean

    run()


@pytest.mark.parametrize("max_size", [None, 24])
@pytest.mark.parametrize("format_", LOSSLESS)
def test_every_truncation_is_noticed(format_: str, max_size: int | None) -> None:
    data = strip(format_, SEEDS[format_])
    for length in range(16, len(data)):
        with pytest.raises(ImageError):
            preprocess(data[:length], format="keep", max_size=max_size)
