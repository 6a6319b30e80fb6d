"""One picture after the other through the whole work: turned, stripped, flattened, refused, left alone."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from netkit_plugins.image import PictureOptions, preprocess
from netkit_plugins.image.opening import inspect
from netkit_plugins.image.process import memory_needed
from PIL import Image, ImageCms, ImageFile, PngImagePlugin

from netkit import ImageError

RED, BLUE, WHITE = (254, 0, 0), (0, 0, 254), (255, 255, 255)


def near(colour: Any, expected: tuple[int, ...], by: int = 3) -> bool:
    return all(abs(have - want) <= by for have, want in zip(colour, expected, strict=True))


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


# Orientation (C52): the picture is seen with red at its left where it is upright.
SEEN = {
    1: ((20, 10), (1, 5), (18, 5)),
    2: ((20, 10), (18, 5), (1, 5)),
    3: ((20, 10), (18, 5), (1, 5)),
    4: ((20, 10), (1, 5), (18, 5)),
    5: ((10, 20), (5, 1), (5, 18)),
    6: ((10, 20), (5, 1), (5, 18)),
    7: ((10, 20), (5, 18), (5, 1)),
    8: ((10, 20), (5, 18), (5, 1)),
}


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("target", ["jpeg", "png", "keep"])
def test_orientation_is_applied_and_removed(pictures: Any, orientation: int, format_: str, target: str) -> None:
    data = pictures.encoded(pictures.halves(), format_, exif=exif_of(orientation))
    made = preprocess(data, max_size=20, format=target)
    size, red, blue = SEEN[orientation]
    seen = pictures.opened(made.bytes)
    assert made.size == seen.size == size
    assert seen.getexif().get(0x0112, 1) == 1
    pixels = seen.convert("RGB")
    assert near(pixels.getpixel(red), RED, 25), pixels.getpixel(red)
    assert near(pixels.getpixel(blue), BLUE, 25), pixels.getpixel(blue)


@pytest.mark.parametrize("orientation", [2, 4, 5, 6, 7, 8])
def test_mirrored_and_turned_to_the_pixel(pictures: Any, orientation: int) -> None:
    picture = Image.new("RGB", (3, 2))
    for number in range(6):
        picture.putpixel((number % 3, number // 3), (number * 40, 255 - number * 40, 7))
    data = pictures.encoded(picture, "PNG", exif=exif_of(orientation))
    turned = pictures.opened(preprocess(data, format="png").bytes)
    corner = {2: (2, 0), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 2), 8: (0, 2)}[orientation]
    opposite = {2: (0, 1), 4: (2, 0), 5: (1, 2), 6: (0, 2), 7: (0, 0), 8: (1, 0)}[orientation]
    assert turned.getpixel(corner) == picture.getpixel((0, 0))
    assert turned.getpixel(opposite) == picture.getpixel((2, 1))


@pytest.mark.parametrize(
    "broken", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01" * 40]
)
def test_corrupt_exif_turns_nothing(pictures: Any, broken: bytes) -> None:
    made = preprocess(pictures.encoded(pictures.halves(), "JPEG", exif=broken), max_size=20)
    assert made.size == (20, 10)
    assert b"Exif" not in made.bytes


def test_what_smart_and_cover_do_to_a_turned_picture(pictures: Any) -> None:
    data = pictures.encoded(pictures.halves((400, 200)), "JPEG", exif=exif_of(6), quality=95)
    for fit in ("cover", "smart"):
        made = preprocess(data, max_size="100x100", fit=fit)
        seen = pictures.opened(made.bytes)
        assert seen.size == (100, 100)
        assert near(seen.getpixel((50, 5)), RED, 20)
        assert near(seen.getpixel((50, 95)), BLUE, 20)


# Private metadata (C53).


def display_p3() -> bytes:
    """A small matrix profile with Display P3's primaries (D50-adapted) and a plain gamma."""

    def fixed(value: float) -> bytes:
        return struct.pack(">i", round(value * 65536))

    def text(value: str) -> bytes:
        coded = value.encode("utf-16-be")
        return b"mluc\0\0\0\0" + struct.pack(">II", 1, 12) + b"enUS" + struct.pack(">II", len(coded), 28) + coded

    def xyz(*values: float) -> bytes:
        return b"XYZ \0\0\0\0" + b"".join(map(fixed, values))

    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(2.2 * 256)) + b"\0\0"
    tags = {
        b"desc": text("Wide gamut"),
        b"cprt": text("none"),
        b"wtpt": xyz(0.9642, 1.0, 0.8249),
        b"rXYZ": xyz(0.51512, 0.2412, -0.00105),
        b"gXYZ": xyz(0.29198, 0.69225, 0.04189),
        b"bXYZ": xyz(0.1571, 0.06657, 0.78407),
        b"rTRC": curve,
        b"gTRC": curve,
        b"bTRC": curve,
    }
    table, content = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, value in tags.items():
        padded = value + b"\0" * (-len(value) % 4)
        table += name + struct.pack(">II", start + len(content), len(value))
        content += padded
    size = start + len(content)
    head = struct.pack(">I4sI4s4s4s", size, b"none", 0x02400000, b"mntr", b"RGB ", b"XYZ ")
    head += b"\0" * 12 + b"acsp" + b"\0" * 24 + struct.pack(">I", 0) + fixed(0.9642) + fixed(1.0) + fixed(0.8249)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + content


def private_exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x013B] = "SECRET ARTIST"
    exif[0x8298] = "SECRET COPYRIGHT"
    exif.get_ifd(0x8825)[2] = (48.0, 51.0, 29.0)
    exif.get_ifd(0x8769)[0x927C] = b"SECRET MAKER"
    return exif


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/">SECRET XMP</x:xmpmeta>'


def private(pictures: Any, format_: str) -> bytes:
    picture = pictures.halves()
    if format_ == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_text("Author", "SECRET TEXT")
        text.add_itxt("XML:com.adobe.xmp", XMP.decode())
        text.add_text("Comment", "SECRET " * 40, zip=True)
        return pictures.encoded(picture, "PNG", pnginfo=text, exif=private_exif()) + b"SECRET TRAILER"
    if format_ == "GIF":
        return pictures.encoded(picture.quantize(), "GIF", comment=b"SECRET COMMENT") + b"SECRET TRAILER"
    data = pictures.encoded(picture, format_, exif=private_exif(), xmp=XMP)
    if format_ == "JPEG":
        comment = b"\xff\xfe\x00\x10SECRET COMMENT"
        iptc = b"\xff\xed\x00\x16Photoshop 3.0\0SECRET"
        data = data[:2] + comment + iptc + data[2:] + b"SECRET TRAILER"
    return data


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF"])
def test_metadata_is_cut_out_without_touching_a_pixel(pictures: Any, format_: str) -> None:
    data = private(pictures, format_)
    assert b"SECRET" in data
    made = preprocess(data, format="keep")
    assert b"SECRET" not in made.bytes
    for mark in (b"Exif\0\0", b"eXIf", b"EXIF", b"tEXt", b"iTXt", b"zTXt", b"xmpmeta", b"XMP "):
        assert mark not in made.bytes
    before, after = pictures.opened(data), pictures.opened(made.bytes)
    assert after.format == format_
    assert dict(after.getexif()) == {}
    assert before.convert("RGBA").tobytes() == after.convert("RGBA").tobytes()
    again = preprocess(made.bytes, format="keep")
    assert again.bytes == made.bytes
    assert not again.changed


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"])
@pytest.mark.parametrize("target", ["jpeg", "webp", "png", "keep"])
@pytest.mark.parametrize("max_size", [None, 20])
def test_nothing_private_is_in_any_result(pictures: Any, format_: str, target: str, max_size: int | None) -> None:
    made = preprocess(private(pictures, format_), format=target, max_size=max_size)
    assert b"SECRET" not in made.bytes
    seen = pictures.opened(made.bytes)
    assert dict(seen.getexif().get_ifd(0x8825)) == {}
    assert not {"exif", "xmp", "comment", "photoshop"} & seen.info.keys()


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF"])
def test_without_stripping_the_bytes_are_the_same(pictures: Any, format_: str) -> None:
    data = private(pictures, format_)
    made = preprocess(data, format="keep", strip_metadata=False)
    assert made.bytes is data
    assert not made.changed


def test_without_stripping_exif_survives_a_resize_but_not_its_orientation(pictures: Any) -> None:
    exif = private_exif()
    exif[0x0112] = 6
    data = pictures.encoded(pictures.halves(), "JPEG", exif=exif, xmp=XMP)
    made = preprocess(data, max_size=20, strip_metadata=False)
    seen = pictures.opened(made.bytes)
    assert seen.size == (10, 20)
    assert seen.getexif()[0x013B] == "SECRET ARTIST"
    assert 0x0112 not in seen.getexif()
    assert seen.info["xmp"] == XMP


def test_an_embedded_thumbnail_goes(pictures: Any) -> None:
    thumbnail = pictures.encoded(pictures.halves((16, 8)), "JPEG")
    ifd0 = struct.pack(">HHHII", 1, 0x0112, 3, 1, 1 << 16) + struct.pack(">I", 26)
    ifd1 = (
        struct.pack(">H", 2)
        + struct.pack(">HHII", 0x0201, 4, 1, 56)
        + struct.pack(">HHII", 0x0202, 4, 1, len(thumbnail))
    )
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + ifd0 + ifd1 + struct.pack(">I", 0) + thumbnail
    data = pictures.encoded(pictures.halves(), "JPEG", exif=exif)
    assert data.count(b"\xff\xd8\xff") == 2
    assert preprocess(data).bytes.count(b"\xff\xd8\xff") == 1


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("max_size", [None, 10])
@pytest.mark.parametrize("target", ["jpeg", "png", "keep"])
def test_a_wide_profile_is_applied_not_dropped(
    pictures: Any, format_: str, max_size: int | None, target: str
) -> None:
    profile = display_p3()
    picture = Image.new("RGB", (40, 20), (255, 0, 0))
    options = (
        {"quality": 100, "subsampling": 0} if format_ == "JPEG" else {"lossless": True} if format_ == "WEBP" else {}
    )
    data = pictures.encoded(picture, format_, icc_profile=profile, **options)
    made = pictures.opened(preprocess(data, max_size=max_size, format=target, quality=100).bytes)
    assert near(made.convert("RGB").getpixel((4, 4)), (255, 0, 0), 3)
    assert "icc_profile" not in made.info
    # A colour inside both gamuts moves: P3 (200, 100, 100) is redder in sRGB.
    inner = pictures.encoded(Image.new("RGB", (40, 20), (200, 100, 100)), format_, icc_profile=profile, **options)
    red, green, _ = (
        pictures.opened(preprocess(inner, max_size=max_size, format=target, quality=100).bytes)
        .convert("RGB")
        .getpixel((4, 4))
    )
    assert red > 205
    assert green < 97


def test_an_srgb_profile_changes_nothing(pictures: Any) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = pictures.encoded(pictures.halves(), "JPEG", icc_profile=profile)
    assert preprocess(data).bytes is data


def test_a_broken_profile_is_ignored(pictures: Any) -> None:
    data = pictures.encoded(pictures.halves(), "PNG", icc_profile=b"not a profile" * 20)
    assert near(pictures.opened(preprocess(data, max_size=10).bytes).getpixel((1, 2)), RED, 12)


def test_a_cmyk_profile_does_not_fit_an_rgb_picture(pictures: Any) -> None:
    data = pictures.encoded(pictures.halves(mode="L"), "JPEG", icc_profile=display_p3())
    assert pictures.opened(preprocess(data, max_size=10).bytes).mode == "L"


# Transparency (C55).


def transparent(mode: str) -> Image.Image:
    if mode in ("RGBA", "LA"):
        return Image.new(mode, (32, 32), (0, 0) if mode == "LA" else (255, 0, 0, 0))
    if mode == "1":
        return Image.new("1", (32, 32), 0)
    picture = Image.new("P", (32, 32), 0)
    picture.putpalette([10, 20, 30, 200, 100, 50])
    return picture


@pytest.mark.parametrize(
    ("mode", "options"),
    [("RGBA", {}), ("LA", {}), ("P", {"transparency": 0}), ("1", {"transparency": 0}), ("L", {"transparency": 0}),
     ("RGB", {"transparency": (0, 0, 0)})],
)  # fmt: skip
@pytest.mark.parametrize(("background", "expected"), [("white", (255, 255, 255)), ("#00ff00", (0, 255, 0))])
@pytest.mark.parametrize("max_size", [None, 8])
def test_transparency_shows_the_background(
    pictures: Any, mode: str, options: dict[str, Any], background: str, expected: Any, max_size: int | None
) -> None:
    picture = Image.new(mode, (32, 32), 0) if mode in ("L", "RGB") else transparent(mode)
    data = pictures.encoded(picture, "PNG", **options)
    made = pictures.opened(preprocess(data, background=background, max_size=max_size, quality=95).bytes)
    assert made.format == "JPEG"
    assert near(made.convert("RGB").getpixel((4, 4)), expected, 2)


def test_half_red_on_white(pictures: Any) -> None:
    for format_, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        data = pictures.encoded(Image.new("RGBA", (32, 32), (255, 0, 0, 128)), format_, **options)
        made = pictures.opened(preprocess(data, quality=95).bytes)
        assert near(made.getpixel((9, 9)), (255, 127, 127), 3)


def test_opaque_pixels_do_not_change(pictures: Any) -> None:
    picture = pictures.halves((32, 32), "RGBA")
    picture.putpixel((0, 0), (1, 2, 3, 0))
    made = pictures.opened(preprocess(pictures.encoded(picture, "PNG"), quality=100).bytes)
    assert near(made.getpixel((4, 16)), RED, 2)
    assert near(made.getpixel((28, 16)), BLUE, 2)


def test_white_on_transparent_black_has_no_dark_fringe(pictures: Any) -> None:
    picture = Image.new("RGBA", (400, 400), (0, 0, 0, 0))
    picture.paste((255, 255, 255, 255), (100, 100, 300, 300))
    data = pictures.encoded(picture, "PNG")
    made = pictures.opened(preprocess(data, max_size=64, quality=95).bytes).convert("L")
    assert made.getextrema()[0] >= 250
    # Where alpha stays, so does the colour of half-covered pixels.
    kept = pictures.opened(preprocess(data, max_size=64, format="png").bytes)
    assert kept.mode == "RGBA"
    assert all(min(pixel[:3]) >= 250 for pixel in (kept.getpixel((x, 32)) for x in range(64)) if pixel[3] > 8)


# Bombs and broken files (C58).


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(4096))) + chunk(b"IEND", b"")
    )


def jpeg_header(width: int, height: int, pictures: Any) -> bytes:
    data = bytearray(pictures.encoded(pictures.halves(), "JPEG", progressive=True))
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("side", [8000, 10000, 20000, 60000])
@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_too_many_pixels_are_refused_from_the_header(
    pictures: Any, side: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(self: Any) -> None:
        raise AssertionError("decoded")

    data = png_header(side, side) if kind == "png" else jpeg_header(side, side, pictures)
    monkeypatch.setattr(ImageFile.ImageFile, "load", loaded)
    limits = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    with pytest.raises(ImageError, match=f"too large: {side} x {side}") as caught:
        preprocess(data, max_pixels=25_000_000)
    assert isinstance(caught.value, ValueError)
    assert limits == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_the_process_limit_of_pillow_neither_warns_nor_counts(pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert preprocess(pictures.encoded(pictures.halves(), "PNG"), max_size=8).size == (8, 4)


def icon(content: bytes) -> bytes:
    """An icon that says it is 16 x 16."""
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(content), 22) + content


def test_what_is_hidden_behind_a_small_header_counts(pictures: Any) -> None:
    bitmap = struct.pack("<IiiHHIIiiII", 40, 9000, 18000, 1, 32, 0, 0, 0, 0, 0, 0)
    old_bitmap = struct.pack("<Ihhhh", 12, 9000, 18000, 1, 24)
    tiled = pictures.encoded(pictures.halves((16, 16)), "TIFF")
    start, count = struct.unpack_from("<I", tiled, 4)[0], 0
    (count,) = struct.unpack_from("<H", tiled, start)
    tiles = struct.pack("<HHIIHHII", 322, 4, 1, 9000, 323, 4, 1, 9000)
    directory = struct.pack("<H", count + 2) + tiled[start + 2 : start + 2 + 12 * count] + tiles + bytes(4)
    tiled = tiled[:4] + struct.pack("<I", len(tiled)) + tiled[8:] + directory
    wavelet = bytearray(pictures.encoded(pictures.halves((32, 16)), "JPEG2000"))
    position = wavelet.index(b"\xff\x4f\xff\x51")
    wavelet[position + 8 : position + 16] = struct.pack(">II", 9000, 9000)
    for data in (icon(png_header(9000, 9000)), icon(bitmap), icon(old_bitmap), tiled, bytes(wavelet)):
        with pytest.raises(ImageError, match="81000000 pixels inside"):
            preprocess(data, max_pixels=25_000_000)
    assert preprocess(pictures.encoded(pictures.halves((32, 32)), "ICO"), max_pixels=2000).size == (32, 32)


def test_a_frame_larger_than_its_animation_is_refused(pictures: Any) -> None:
    data = bytearray(moving(pictures, "GIF"))
    second = data.index(b"\x2c", data.index(b"\x2c") + 10)
    while data[second + 1 : second + 5] != bytes(4):
        second = data.index(b"\x2c", second + 1)
    data[second + 5 : second + 9] = struct.pack("<HH", 60000, 400)
    with pytest.raises(ImageError):
        preprocess(bytes(data), format="keep")


def test_the_first_of_several_pictures_in_a_jpeg(pictures: Any) -> None:
    picture = pictures.halves()
    data = pictures.encoded(picture, "MPO", save_all=True, append_images=[Image.new("RGB", (40, 20), "green")])
    made = preprocess(data)
    assert (made.mime, made.size) == ("image/jpeg", (40, 20))
    assert made.bytes.count(b"\xff\xd8\xff") == 1
    assert near(pictures.opened(made.bytes).getpixel((4, 10)), RED, 25)


def test_many_frames_count_as_many_pixels(pictures: Any) -> None:
    frames = [Image.new("P", (50, 50), number) for number in range(20)]
    for number, frame in enumerate(frames):
        frame.putpalette([number, 0, 0] * 20)
        frame.putpixel((number, 0), 1)
    data = pictures.encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(ImageError, match="20 frames of 50 x 50"):
        preprocess(data, max_pixels=2500 * 19)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("max_size", [None, 64])
@pytest.mark.parametrize("lenient", [False, True])
def test_half_a_file_is_refused(
    pictures: Any, format_: str, max_size: int | None, lenient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lenient:
        if format_ not in ("JPEG", "PNG", "WEBP", "GIF"):
            pytest.skip("decoded as leniently as the application wants it")
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = pictures.encoded(pictures.scene((300, 200)), format_)
    with pytest.raises(ImageError) as caught:
        preprocess(data[: len(data) // 2], max_size=max_size, format="keep")
    assert isinstance(caught.value.__cause__, Exception) or "ends too early" in str(caught.value)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_jpeg_without_its_end_is_refused(pictures: Any, missing: int) -> None:
    data = pictures.encoded(pictures.scene((300, 200)), "JPEG")
    with pytest.raises(ImageError):
        preprocess(data[:-missing])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"hello, I am a text file named photo.jpg\n" * 20,
        b"\0" * 5000,
        b"<svg xmlns='x'/>",
        b"%PDF-1.7",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ImageError):
        preprocess(data)


def test_a_picture_without_a_decoder_says_so() -> None:
    with pytest.raises(ImageError, match="HEIC, for which this Pillow has no decoder"):
        preprocess(b"\0\0\0\x18ftypheic" + bytes(64))


# What stays as it is (C59).


@pytest.mark.parametrize("fit", ["inside", "cover", "smart"])
@pytest.mark.parametrize("size", [(10000, 3), (3, 10000), (550, 5), (1, 1), (224, 224), (100, 50)])
def test_extreme_shapes(pictures: Any, size: tuple[int, int], fit: str) -> None:
    made = preprocess(pictures.encoded(Image.new("RGB", size, "red"), "PNG"), fit=fit, format="png")
    assert pictures.opened(made.bytes).size == made.size
    assert min(made.size) >= 1
    assert max(made.size) <= 224
    assert all(after <= before for after, before in zip(made.size, size, strict=True))


@pytest.mark.parametrize(("format_", "target"), [("JPEG", "jpeg"), ("PNG", "png"), ("WEBP", "webp"), ("GIF", "keep")])
def test_what_is_within_all_limits_is_the_same_object(pictures: Any, format_: str, target: str) -> None:
    picture = pictures.halves((224, 100))
    data = pictures.encoded(picture.quantize() if format_ == "GIF" else picture, format_)
    for chosen in (target, "keep"):
        made = preprocess(data, format=chosen)
        assert made.bytes is data
        assert (made.changed, made.ratio, made.size) == (False, 1.0, (224, 100))


def test_a_small_png_that_would_be_a_larger_jpeg_stays(pictures: Any) -> None:
    data = pictures.encoded(Image.new("RGB", (100, 50), "red"), "PNG", optimize=True)
    made = preprocess(data, format="jpeg")
    assert made.bytes is data
    assert made.mime == "image/png"
    photograph = pictures.encoded(Image.effect_noise((200, 200), 90), "PNG")
    assert preprocess(photograph).mime == "image/jpeg"


def test_what_no_server_reads_is_always_converted(pictures: Any) -> None:
    for format_ in ("TGA", "PCX", "SGI", "PPM", "ICO"):
        made = preprocess(pictures.encoded(pictures.halves((32, 32)), format_), format="keep")
        assert (made.mime, pictures.opened(made.bytes).format) == ("image/png", "PNG")


def test_the_same_bytes_each_time(pictures: Any) -> None:
    for format_ in ("JPEG", "PNG", "WEBP"):
        data = pictures.encoded(pictures.scene((900, 700)), format_)
        for target in ("jpeg", "png", "webp"):
            for fit in ("inside", "smart"):
                assert preprocess(data, format=target, fit=fit) == preprocess(data, format=target, fit=fit)


# Limits on bytes.


@pytest.mark.parametrize("target", ["jpeg", "webp"])
def test_quality_falls_until_it_fits(pictures: Any, target: str) -> None:
    data = pictures.encoded(Image.effect_noise((600, 600), 80), "PNG")
    free = preprocess(data, format=target)
    limit = len(free.bytes) // 2
    made = preprocess(data, format=target, max_bytes=limit)
    assert limit // 2 < len(made.bytes) <= limit
    with pytest.raises(ImageError, match="does not fit 50 bytes"):
        preprocess(data, format=target, max_bytes=50)


def test_png_has_no_quality_to_lower(pictures: Any) -> None:
    data = pictures.encoded(Image.effect_noise((100, 100), 80), "PNG")
    with pytest.raises(ImageError, match="does not fit 1000 bytes as PNG"):
        preprocess(data, format="png", max_bytes=1000)


def test_an_original_that_is_too_many_bytes_is_encoded_anew(pictures: Any) -> None:
    data = pictures.encoded(Image.effect_noise((200, 200), 80), "JPEG", quality=100)
    made = preprocess(data, max_bytes=len(data) - 1)
    assert len(made.bytes) < len(data)


# Animations.


def moving(pictures: Any, format_: str, count: int = 4, size: tuple[int, int] = (60, 30)) -> bytes:
    frames = [Image.new("RGB", size, (number * 60, 0, 255 - number * 60)) for number in range(count)]
    return pictures.encoded(
        frames[0],
        format_,
        save_all=True,
        append_images=frames[1:],
        duration=[100 + 10 * n for n in range(count)],
        loop=0,
    )


@pytest.mark.parametrize("format_", ["GIF", "WEBP", "PNG"])
@pytest.mark.parametrize("target", ["keep", "jpeg", "webp", "png"])
def test_frames_are_kept(pictures: Any, format_: str, target: str) -> None:
    made = preprocess(moving(pictures, format_), max_size=20, format=target)
    seen = pictures.opened(made.bytes)
    assert seen.format == (format_ if target in ("keep", "jpeg") else target.upper())
    assert (seen.size, seen.n_frames) == ((20, 10), 4)
    for number in range(4):
        seen.seek(number)
        seen.load()
        assert near(seen.convert("RGB").getpixel((10, 5)), (number * 60, 0, 255 - number * 60), 12)
        assert abs(seen.info["duration"] - (100 + 10 * number)) <= 1


@pytest.mark.parametrize("format_", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_alone(pictures: Any, format_: str) -> None:
    for target in ("jpeg", "keep"):
        made = preprocess(moving(pictures, format_), animated="first_frame", format=target)
        seen = pictures.opened(made.bytes)
        assert getattr(seen, "n_frames", 1) == 1
        assert near(seen.convert("RGB").getpixel((10, 5)), (0, 0, 255), 12)


@pytest.mark.parametrize("format_", ["GIF", "WEBP", "PNG"])
def test_an_animation_within_limits_stays(pictures: Any, format_: str) -> None:
    data = moving(pictures, format_)
    assert preprocess(data, format="keep").bytes is data


def test_an_animation_that_is_cut_is_refused(pictures: Any) -> None:
    data = moving(pictures, "GIF")
    with pytest.raises(ImageError):
        preprocess(data[: len(data) * 3 // 4], format="keep")


# The plain function.


def test_sources_of_every_kind(pictures: Any, tmp_path: Any) -> None:
    picture = pictures.scene((500, 400))
    data = pictures.encoded(picture, "PNG")
    (tmp_path / "photo.jpg").write_bytes(data)  # the name lies
    made = preprocess(data)
    assert preprocess(tmp_path / "photo.jpg") == preprocess(str(tmp_path / "photo.jpg")) == made
    assert preprocess(bytearray(data)) == preprocess(memoryview(data)) == made
    before = picture.copy()
    from_decoded = preprocess(picture)
    assert from_decoded.bytes == made.bytes
    assert picture == before
    assert from_decoded.ratio == len(made.bytes) / (500 * 400 * 3)
    assert made.data_url == "data:image/jpeg;base64," + made.base64
    assert made.ratio == len(made.bytes) / len(data)


def test_a_decoded_picture_is_checked_too(pictures: Any) -> None:
    with pytest.raises(ImageError, match="pixels"):
        preprocess(Image.new("L", (100, 100)), max_pixels=9999)
    with pytest.raises(ImageError, match="pixels"):
        preprocess(Image.new("L", (0, 5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_size": 0}, "max_size"),
        ({"max_size": "big"}, "max_size"),
        ({"max_size": (5, 0)}, "max_size"),
        ({"fit": "stretch"}, "fit"),
        ({"format": "gif"}, "format"),
        ({"quality": 0}, "quality"),
        ({"quality": 101}, "quality"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"background": "no colour"}, "unknown color"),
        ({"background": "#ffffff80"}, "opaque"),
        ({"animated": "no"}, "animated"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PictureOptions(**options)


@pytest.mark.parametrize(
    ("given", "box"),
    [(224, (224, 224)), ("336", (336, 336)), ("320x240", (320, 240)), ((5, 6), (5, 6)), (None, None)],
)
def test_sizes_as_they_are_written(given: Any, box: Any) -> None:
    assert PictureOptions(max_size=given).box == box


def test_the_estimate_of_memory_knows_of_draft_decoding(pictures: Any) -> None:
    jpeg = inspect(pictures.encoded(Image.new("RGB", (1600, 1200)), "JPEG"), 10**8)
    png = inspect(pictures.encoded(Image.new("RGB", (1600, 1200)), "PNG"), 10**8)
    options = PictureOptions()
    assert memory_needed(png, options) == 12 * 1600 * 1200
    assert memory_needed(jpeg, options) == 12 * 800 * 600
    assert memory_needed(jpeg, PictureOptions(max_size=None)) == 12 * 1600 * 1200


def test_the_draft_is_never_smaller_than_twice_the_result(pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    original = Image.Image.resize

    def resize(self: Image.Image, size: Any, *args: Any, **kwargs: Any) -> Image.Image:
        seen.append(self.size)
        return original(self, size, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "resize", resize)
    for size in ((4000, 3000), (1000, 3000), (449, 449), (3000, 400)):
        for fit in ("inside", "cover"):
            seen.clear()
            data = pictures.encoded(Image.new("RGB", size, "red"), "JPEG")
            made = preprocess(data, fit=fit)
            (decoded,) = seen
            assert all(have >= min(full, 2 * want) for have, full, want in zip(decoded, size, made.size, strict=True))


def test_io_errors_are_the_callers(tmp_path: Any) -> None:
    with pytest.raises(FileNotFoundError):
        preprocess(tmp_path / "nothing.jpg")
