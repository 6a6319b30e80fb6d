"""Finding pictures in bodies and putting others in their place, with everything else byte for byte as it came."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netkit_plugins.image.bodies import find, kind_of
from netkit_plugins.image.json_bodies import Malformed, find_in_json, strings
from netkit_plugins.image.multipart import boundary_of, find_in_multipart
from netkit_plugins.image.places import PRESETS, Places, parse_path
from netkit_plugins.image.result import ProcessedImage
from netkit_plugins.image.spots import decoded_base64, spliced

from netkit import Headers, ImageError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(60))
GIF = b"GIF89a" + bytes(range(60))
OTHER = ProcessedImage(b"\xff\xd8\xff other picture", "image/jpeg", (1, 1), 68, True)
EVERYWHERE = Places(tuple(PRESETS))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def found(value: Any, places: Places = EVERYWHERE) -> list[str]:
    return [spot.where for spot in find_in_json(json.dumps(value).encode(), places)]


# JSON.

texts = st.text() | st.sampled_from(["\\", '"', "\\\\", '\\"', "/9j/\u2028", "data:image/png;base64,"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def every_string(value: Any, steps: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        return [(steps, value)]
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in every_string(inner, (*steps, key))]
    if isinstance(value, list):
        return [item for number, inner in enumerate(value) for item in every_string(inner, (*steps, number))]
    return []


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_every_string_is_seen_with_its_path(value: Any, indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    seen = [(string.steps, json.loads(body[string.start : string.end])) for string in strings(body)]
    assert seen == every_string(value)


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\ a1', max_size=60).map(str.encode))
@settings(max_examples=300)
def test_what_is_no_json_has_no_pictures_and_does_no_harm(body: bytes) -> None:
    assert isinstance(find_in_json(body, EVERYWHERE), list)


@pytest.mark.parametrize(
    "body", [b'{"image": "', b'{"image": "abc"', b"[1, 2", b"}", b'["a"}', b'"a", "b"', b"[" * 300]
)
def test_broken_json(body: bytes) -> None:
    with pytest.raises(Malformed):
        list(strings(body))
    assert find_in_json(body, EVERYWHERE) == []


def test_long_arrays_of_numbers_are_one_step() -> None:
    body = b'{"input": [' + b"12345, " * 200_000 + b'1], "image": "%b"}' % b64(PNG).encode()
    assert [spot.where for spot in find_in_json(body, EVERYWHERE)] == ["image"]
    assert len(list(strings(b"[" + b"[1, 2.5e-7, -3]," * 1000 + b'"a"]'))) == 1


DATA_URL = "data:image/png;base64," + b64(PNG)

SHAPES = {
    "chat": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}, {"image_url": {"url": DATA_URL}}]}
            ]
        },
        ["messages.0.content.1.image_url.url"],
    ),
    "chat, plain": ({"messages": [{"content": [{"image_url": DATA_URL}]}]}, ["messages.0.content.0.image_url"]),
    "tool result, nested": (
        {"messages": [{"content": [{"content": [{"image_url": {"url": DATA_URL, "detail": "low"}}]}]}]},
        ["messages.0.content.0.content.0.image_url.url"],
    ),
    "responses": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": DATA_URL}]}]},
        ["input.0.content.0.image_url"],
    ),
    "embeddings of data URLs": ({"input": [DATA_URL, "text"]}, ["input.0"]),
    "embeddings of one": ({"input": DATA_URL}, ["input"]),
    "gme": ({"model": "m", "image": b64(PNG), "task": "t"}, ["image"]),
    "gme, several": ({"image": [b64(PNG), b64(GIF)]}, ["image.0", "image.1"]),
    "gme inputs": (
        {"inputs": ["text", {"image": b64(PNG)}, {"text": "x"}, b64(GIF), DATA_URL]},
        ["inputs.1.image", "inputs.3", "inputs.4"],
    ),
    "tei": ({"inputs": b64(PNG)}, ["inputs"]),
    "clip": ({"data": [{"uri": DATA_URL}, {"blob": b64(PNG)}, {"text": "a"}]}, ["data.0.uri", "data.1.blob"]),
    "hosted": ({"images": [DATA_URL], "input_type": "image"}, ["images.0"]),
    "hosted, parts": (
        {"inputs": [{"content": [{"type": "image_base64", "image_base64": DATA_URL}]}]},
        ["inputs.0.content.0.image_base64"],
    ),
    "anthropic": (
        {"content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(PNG)}}]},
        ["content.0.source.data"],
    ),
    "anthropic, what says that it is a picture": (
        {"content": [{"source": {"data": "aGVsbG8=", "media_type": "image/jpeg"}}]},
        ["content.0.source.data"],
    ),
    "anthropic, a document": (
        {
            "content": [
                {"source": {"media_type": "application/pdf", "data": "JVBERi0xLjc="}},
                {"source": {"data": "text"}},
            ]
        },
        [],
    ),
    "gemini": (
        {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": b64(PNG)}}, {"text": "x"}]}]},
        ["contents.0.parts.0.inlineData.data"],
    ),
    "urls are left alone": (
        {
            "image": "https://a.test/x.png",
            "images": ["s3://b/c"],
            "messages": [{"image_url": {"url": "http://a.test"}}],
        },
        [],
    ),
    "texts are left alone": ({"input": ["hello", "aGVsbG8="], "inputs": "text", "text": b64(PNG)}, []),
    "other data URLs are left alone": ({"image_url": "data:application/pdf;base64,JVBERi0="}, []),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    value, expected = SHAPES[shape]
    assert found(value) == expected
    assert found(value, Places(())) == []


def test_own_paths() -> None:
    places = Places((), ["document.pages.*.scan", "**.thumb"])
    value = {"document": {"pages": [{"scan": b64(PNG)}, {"thumb": "no base64!"}]}, "image": b64(PNG)}
    assert found(value, places) == ["document.pages.0.scan", "document.pages.1.thumb"]
    with pytest.raises(ValueError, match="empty step"):
        parse_path("a..b")


def test_only_the_picture_changes() -> None:
    body = (
        b' {"model" :"m" ,\n"n":1.50e+3,"n":2, "im\\u0061ge" : "%b","t":"\\u00e4\\/\xc3\xa4", "list":[ 1,2 ] } '
        % b64(PNG).encode()
    )
    (spot,) = find_in_json(body, EVERYWHERE)
    assert spot.read() == PNG
    made = spliced(body, [spot.edit(OTHER)])
    assert made == body.replace(b64(PNG).encode(), OTHER.base64.encode())
    assert spliced(body, [spot.edit_url("https://a.test/1.jpg")]) == body.replace(
        b'"im\\u0061ge" : "%b"' % b64(PNG).encode(), b'"image_url" : "https://a.test/1.jpg"'
    )


def test_several_pictures_each_in_its_place() -> None:
    body = json.dumps({"inputs": [{"image": b64(PNG)}, "x", {"image": DATA_URL}]}).encode()
    first, second = find_in_json(body, EVERYWHERE)
    made = json.loads(spliced(body, [second.edit(OTHER), first.edit(OTHER)]))
    assert made == {"inputs": [{"image": OTHER.base64}, "x", {"image": OTHER.data_url}]}
    stored = json.loads(spliced(body, [second.edit_url("https://s/2"), first.edit_url("https://s/1")]))
    assert stored == {"inputs": [{"image_url": "https://s/1"}, "x", {"image_url": "https://s/2"}]}


@pytest.mark.parametrize("first", ["media_type", "data"])
def test_the_type_beside_a_picture_follows_it(first: str) -> None:
    values = {"media_type": "image/png", "data": b64(PNG)}
    source = {name: values[name] for name in sorted(values, key=lambda name: name != first)}
    body = json.dumps({"a": 1, "source": {**source, "type": "base64"}, "z": [2]}).encode()
    (spot,) = find_in_json(body, EVERYWHERE)
    assert not spot.takes_url
    made = spliced(body, [spot.edit(OTHER)])
    assert made == body.replace(b"image/png", b"image/jpeg").replace(b64(PNG).encode(), OTHER.base64.encode())


@pytest.mark.parametrize(
    "text",
    [
        DATA_URL,
        DATA_URL.replace("image/png", "IMAGE/PNG").replace("data", "DATA"),
        "data:;base64," + b64(PNG),
        "data:image/png;charset=x;base64," + b64(PNG),
        "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
        b64(PNG),
        b64(PNG).rstrip("="),
        base64.urlsafe_b64encode(PNG).decode(),
        base64.encodebytes(PNG).decode(),
    ],
)
@pytest.mark.parametrize("escape", [False, True])
def test_ways_to_write_a_picture(text: str, escape: bool) -> None:
    body = json.dumps({"image": text}).encode()
    body = body.replace(b"/", b"\\/") if escape else body
    (spot,) = find_in_json(body, EVERYWHERE)
    assert spot.read() == PNG


@given(st.binary(min_size=1, max_size=400))
def test_base64_both_ways(data: bytes) -> None:
    assert decoded_base64(base64.b64encode(data)) == data
    assert decoded_base64(base64.urlsafe_b64encode(data).rstrip(b"=")) == data


def test_long_base64_in_pieces() -> None:
    data = bytes(range(256)) * 20_000
    assert decoded_base64(base64.b64encode(data)) == data
    with pytest.raises(ImageError):
        decoded_base64(b"AA==" * 600_000)


@pytest.mark.parametrize(
    "text", ["no picture!", "a", "\u00e4\u00f6\u00fc", "data:image/png;base64,@@@", "data:image/png"]
)
def test_what_is_neither_base64_nor_a_url(text: str) -> None:
    (spot,) = find_in_json(json.dumps({"image": text}).encode(), EVERYWHERE)
    with pytest.raises(ImageError):
        spot.read()


# Multipart.


def parts_of(body: bytes, content_type: str) -> list[Any]:
    boundary = boundary_of(content_type)
    assert boundary is not None
    return list(find_in_multipart(body, boundary))


BODY = (
    b"preamble\r\n--b-1\r\n"
    b'Content-Disposition: form-data; name="text"\r\n\r\nvalue\r\n'
    b"--b-1\r\n"
    b'Content-Disposition: form-data; name="file"; filename="photo.PNG"\r\n'
    b"X-Own: kept\r\ncontent-type: image/png\r\nContent-Length: 68\r\n\r\n" + PNG + b"\r\n"
    b"--b-1\r\n"
    b'Content-Disposition: form-data; name="unnamed"; filename="blob"\r\n\r\n' + GIF + b"\r\n"
    b"--b-1\r\n"
    b'Content-Disposition: form-data; name="doc"; filename="a.pdf"\r\n\r\n%PDF\r\n'
    b"--b-1--\r\nepilogue"
)


def test_parts_that_are_pictures() -> None:
    file, unnamed = parts_of(BODY, 'multipart/form-data; boundary="b-1"')
    assert (file.where, unnamed.where) == ("part 'file'", "part 'unnamed'")
    assert (file.read(), unnamed.read()) == (PNG, GIF)
    expected = BODY.replace(PNG, OTHER.bytes).replace(b"photo.PNG", b"photo.jpg").replace(b"image/png", b"image/jpeg")
    expected = expected.replace(b"Content-Length: 68", b"Content-Length: %d" % len(OTHER.bytes))
    assert spliced(BODY, [file.edit(OTHER)]) == expected
    assert spliced(BODY, [unnamed.edit(OTHER)]) == BODY.replace(GIF, OTHER.bytes)


@pytest.mark.parametrize("coding", ["base64", "quoted-printable"])
def test_a_part_in_mime_coding(coding: str) -> None:
    import quopri

    content = base64.encodebytes(PNG) if coding == "base64" else quopri.encodestring(PNG)
    body = b"--x\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: %b\r\n\r\n%b\r\n--x--" % (
        coding.encode(),
        content,
    )
    (part,) = parts_of(body, "multipart/mixed; boundary=x")
    assert part.read() == PNG or coding == "quoted-printable"
    made = spliced(body, [part.edit(OTHER)])
    (again,) = parts_of(made, "multipart/mixed; boundary=x")
    assert again.read() == OTHER.bytes
    assert b"Content-Transfer-Encoding: base64" in made


@pytest.mark.parametrize("cut", range(0, len(BODY), 7))
def test_a_multipart_body_that_ends_anywhere(cut: int) -> None:
    for part in parts_of(BODY[:cut], "multipart/form-data; boundary=b-1"):
        assert BODY.startswith(spliced(BODY[:cut], []))
        assert part.read() in (PNG, GIF) or BODY[:cut].endswith(part.read())


def test_a_picture_that_holds_the_boundary_is_refused() -> None:
    (file, *_) = parts_of(BODY, "multipart/form-data; boundary=b-1")
    with pytest.raises(ImageError, match="boundary"):
        file.edit(ProcessedImage(b"..\r\n--b-1..", "image/png", (1, 1), 3, True))


@given(st.binary(max_size=200))
def test_any_bytes_as_multipart(data: bytes) -> None:
    for part in find_in_multipart(b"--b\r\n" + data + b"\r\n--b--", b"b"):
        part.read()


def test_no_boundary_no_parts() -> None:
    assert boundary_of("multipart/form-data") is None
    assert find(BODY, "multipart", Headers([("content-type", "multipart/form-data")]), EVERYWHERE, sniff=True) == []


# Kinds of bodies.


@pytest.mark.parametrize(
    ("content_type", "sniff", "kind"),
    [
        ("application/json", False, "json"),
        ("application/json; charset=utf-8", False, "json"),
        ("application/vnd.api+json", False, "json"),
        ("image/jpeg", False, "raw"),
        ("multipart/form-data; boundary=x", False, "multipart"),
        ("application/octet-stream", False, None),
        ("application/octet-stream", True, "any"),
        ("text/plain", False, None),
        ("application/x-www-form-urlencoded", True, None),
        (None, False, "any"),
    ],
)
def test_kinds(content_type: str | None, sniff: bool, kind: str | None) -> None:
    headers = Headers([] if content_type is None else [("Content-Type", content_type)])
    assert kind_of(headers, sniff=sniff) == kind
    assert kind_of(headers.add("Content-Encoding", "gzip"), sniff=sniff) is None


def test_a_body_without_a_type() -> None:
    body = json.dumps({"image": b64(PNG)}).encode()
    assert len(find(body, "any", Headers(), EVERYWHERE, sniff=False)) == 1
    assert find(PNG, "any", Headers(), EVERYWHERE, sniff=False) == []
    assert len(find(PNG, "any", Headers(), EVERYWHERE, sniff=True)) == 1
    assert find(b"text", "any", Headers(), EVERYWHERE, sniff=True) == []
