"""The layer on the Scripted runtime: what leaves, what is counted, and what happens at every wait."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from netkit_plugins.image import ImageLayer, ImageOptions
from PIL import Image

from netkit import Body, Context, ImageError, Request, Response
from netkit.events import Emitter
from netkit.runtime import Scripted
from netkit.stats import Meter

JSON = [("Content-Type", "application/json")]


class Rig:
    """`rig.call(body)` runs one call to its end; `rig.sent` is what left."""

    def __init__(self, **options: Any) -> None:
        self.runtime = Scripted()
        context = Context(runtime=self.runtime, emit=Emitter(), stack="scripted", meter=Meter())
        self.layer = ImageLayer(ImageOptions(**options), context)
        self.sent: list[Request] = []

    async def send(self, request: Request) -> Response:
        await self.runtime.checkpoint("send")
        self.sent.append(request)
        return Response.of(200)

    def start(self, body: Body | bytes, headers: Any = JSON, **how: Any) -> Any:
        body = body if isinstance(body, Body) else Body.of(body)
        return self.runtime.task(self.layer(Request("POST", "http://gpu.test/", headers, body), self.send), **how)

    def call(self, body: Body | bytes, headers: Any = JSON) -> Request:
        task = self.start(body, headers)
        self.runtime.run_to_end()
        task.result()
        return self.sent[-1]


@pytest.fixture
def photo(pictures: Any) -> bytes:
    data: bytes = pictures.encoded(pictures.scene((600, 400)), "PNG")
    return data


def gme(*pictures: bytes) -> bytes:
    return json.dumps({"inputs": [{"image": base64.b64encode(data).decode()} for data in pictures]}).encode()


def test_pictures_are_replaced_and_counted(photo: bytes, pictures: Any) -> None:
    rig = Rig()
    request = rig.call(gme(photo, photo))
    assert request.body.size == len(request.body.content or b"")
    for item in json.loads(request.body.content or b"")["inputs"]:
        seen = pictures.opened(base64.b64decode(item["image"]))
        assert (seen.format, seen.size) == ("JPEG", (224, 149))
    stats = rig.layer.stats()
    assert (stats.pictures, stats.unchanged, stats.failed, stats.bytes_in) == (2, 0, 0, 2 * len(photo))
    assert 0 < stats.bytes_out < stats.bytes_in
    assert (stats.in_use, stats.waiting, stats.memory, stats.pending) == (0, 0, 0, 0)


def test_what_holds_no_picture_is_the_very_same_request(photo: bytes) -> None:
    rig = Rig()
    for body, headers in (
        (b'{"input": "text"}', JSON),
        (b"", JSON),
        (b"not json", JSON),
        (photo, [("Content-Type", "application/octet-stream")]),
        (photo, []),
        (gme(photo), [*JSON, ("Content-Encoding", "gzip")]),
        (b"a=b", [("Content-Type", "application/x-www-form-urlencoded")]),
    ):
        original = Request("POST", "http://gpu.test/", headers, Body.of(body))
        task = rig.runtime.task(rig.layer(original, rig.send))
        rig.runtime.run_to_end()
        task.result()
        assert rig.sent[-1] is original


def test_a_picture_within_limits_leaves_the_request_as_it_is(pictures: Any) -> None:
    rig = Rig()
    body = Body.of(gme(pictures.encoded(pictures.halves(), "JPEG")))
    assert rig.call(body).body is body
    assert rig.layer.stats().unchanged == 1


def test_a_raw_body_gets_its_new_type_and_loses_stale_digests(photo: bytes, pictures: Any) -> None:
    headers = [
        ("Content-Type", "image/png"),
        ("Content-MD5", "x"),
        ("Digest", "y"),
        ("Content-Digest", "z"),
        ("X-A", "b"),
    ]
    request = Rig().call(photo, headers)
    assert request.headers.items() == (("Content-Type", "image/jpeg"), ("X-A", "b"))
    assert pictures.opened(request.body.content or b"").format == "JPEG"
    sniffed = Rig(sniff=True).call(photo, [])
    assert pictures.opened(sniffed.body.content or b"").format == "JPEG"
    assert sniffed.headers.items() == ()


@pytest.mark.parametrize("bad", [b"hello, this is text", b"", b"\x89PNG\r\n\x1a\n cut"])
def test_nothing_is_sent_when_one_picture_is_bad(photo: bytes, bad: bytes) -> None:
    rig = Rig()
    task = rig.start(gme(photo, bad))
    rig.runtime.run_to_end()
    with pytest.raises(ImageError, match=r"inputs\.1\.image"):
        task.result()
    assert rig.sent == []
    assert rig.layer.stats().failed == 1


@pytest.mark.parametrize("form", ["base64", "data URL", "escaped", "raw", "part"])
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF"])
def test_the_header_is_found_in_the_head(pictures: Any, form: str, format_: str) -> None:
    """Also when it is far behind the beginning: here behind 130 KB of metadata."""
    options: dict[str, Any] = {}
    if format_ in ("JPEG", "PNG"):
        options["exif"] = Image.Exif()
        options["exif"][0x010E] = "x" * 60_000
    data = pictures.encoded(pictures.scene((600, 400)), format_, **options)
    if format_ == "JPEG":
        comment = b"\xff\xfe\xff\xff" + bytes(65533)
        data = data[:2] + comment * 2 + data[2:]
    text = base64.b64encode(data).decode()
    body, headers = {
        "base64": (json.dumps({"image": text}).encode(), JSON),
        "data URL": (json.dumps({"image": "data:image/png;base64," + text}).encode(), JSON),
        "escaped": (json.dumps({"image": text}).replace("/", "\\/").encode(), JSON),
        "raw": (data, [("Content-Type", "image/png")]),
        "part": (
            b"--b\r\nContent-Type: image/png\r\n\r\n" + data + b"\r\n--b--",
            [("Content-Type", "multipart/form-data; boundary=b")],
        ),
    }[form]
    rig = Rig(max_pixels=600 * 400)
    assert (rig.call(body, headers).body.size or 0) < len(body)
    assert rig.layer.stats().pictures == 1
    strict = Rig(max_pixels=600 * 400 - 1)
    task = strict.start(body, headers)
    strict.runtime.run_to_end()
    with pytest.raises(ImageError, match="too large: 600 x 400"):
        task.result()


def test_workers_leave_a_processor_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, alone, beside in ((8, 8, 7), (2, 2, 1), (1, 1, 1), (None, 1, 1)):
        monkeypatch.setattr("os.cpu_count", lambda count=processors: count)
        assert ImageOptions().worker_count(beside_a_loop=False) == alone
        assert ImageOptions().worker_count(beside_a_loop=True) == beside
        assert ImageOptions(workers=5).worker_count(beside_a_loop=True) == 5


def test_passing_sends_what_is_bad_as_it_came(photo: bytes) -> None:
    rig = Rig(on_error="pass")
    body = gme(b"hello, this is text")
    assert rig.call(body).body.content == body
    mixed = json.loads(rig.call(gme(photo, b"no picture")).body.content or b"")["inputs"]
    assert base64.b64decode(mixed[1]["image"]) == b"no picture"
    assert len(mixed[0]["image"]) < len(photo)
    assert rig.layer.stats().failed == 2


def test_the_decoders_error_is_the_cause(photo: bytes) -> None:
    rig = Rig()
    task = rig.start(gme(photo[: len(photo) // 2]))
    rig.runtime.run_to_end()
    with pytest.raises(ImageError) as caught:
        task.result()
    assert isinstance(caught.value.__cause__, OSError)


def test_cancelled_at_every_wait(photo: bytes) -> None:
    for step in range(40):
        rig = Rig(workers=1)
        task = rig.start(gme(photo, photo), cancel_at=step)
        other = rig.start(gme(photo))
        rig.runtime.run_to_end()
        assert other.result().status == 200
        stats = rig.layer.stats()
        assert (stats.in_use, stats.waiting, stats.memory) == (0, 0, 0)
        if not task.cancelled:
            return
    raise AssertionError("it never ended")


# Bodies that are not in memory.


def chunks(data: bytes) -> Any:
    return (data[start : start + 1000] for start in range(0, len(data), 1000))


async def chunks_async(data: bytes) -> Any:
    for chunk in chunks(data):
        yield chunk


@pytest.mark.parametrize("kind", ["sync", "async", "reopenable"])
def test_streamed_bodies(photo: bytes, pictures: Any, kind: str) -> None:
    def body(data: bytes) -> Body:
        if kind == "reopenable":
            return Body.reopenable(lambda: chunks(data), len(data))
        return Body.one_shot(chunks(data) if kind == "sync" else chunks_async(data))

    headers = [("Content-Type", "image/png")]
    rig = Rig()
    assert pictures.opened(rig.call(body(photo), headers).body.content or b"").size == (224, 149)
    # Without a picture: the same bytes, framed as they were.
    request = rig.call(body(b'{"input": "text"}'), JSON)
    opened = request.body.open()
    assert b"".join(opened) == b'{"input": "text"}'  # type: ignore[arg-type]
    assert request.body.size == (17 if kind == "reopenable" else None)
    # Too long to be searched.
    limited = Rig(max_body=2500)
    task = limited.start(body(photo), headers)
    limited.runtime.run_to_end()
    with pytest.raises(ImageError, match="max_body, 2500 bytes"):
        task.result()
    assert limited.sent == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stream_that_is_too_long_passes_whole(photo: bytes, kind: str) -> None:
    rig = Rig(max_body=2500, on_error="pass")
    source = chunks(photo) if kind == "sync" else chunks_async(photo)
    request = rig.call(Body.one_shot(source, len(photo)), [("Content-Type", "image/png")])
    assert (request.body.size, request.body.replayable) == (len(photo), False)

    async def read() -> bytes:
        opened: Any = request.body.open()
        return b"".join([chunk async for chunk in opened]) if kind == "async" else b"".join(opened)

    task = rig.runtime.task(read())
    rig.runtime.run_to_end()
    assert task.result() == photo


def test_a_stream_that_says_nothing_is_not_touched(photo: bytes) -> None:
    def never() -> Any:
        raise AssertionError("opened")
        yield b""

    body = Body.one_shot(never())
    assert Rig().call(body, []).body is body
    assert Rig().call(body, [("Content-Type", "application/octet-stream")]).body is body


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"presets": ("other",)}, "presets"),
        ({"paths": ("a..b",)}, "empty step"),
        ({"on_error": "ignore"}, "on_error"),
        ({"workers": 0}, "workers"),
        ({"memory": 0}, "memory"),
        ({"max_body": 0}, "max_body"),
        ({"upload": True}, "upload"),
        ({"upload": "ftp://a/{sha256}"}, "http"),
        ({"upload": "https://a/fixed"}, "sha256"),
        ({"upload_url": "https://a/{sha256}"}, "upload_url needs"),
        ({"upload": "https://a/{sha256}", "upload_url": "https://b/x"}, "sha256"),
        ({"upload_timeout": 0}, "upload_timeout"),
        ({"upload_ttl": float("inf")}, "upload_ttl"),
        ({"max_size": 0}, "max_size"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageOptions(**options)


def test_no_url_of_a_storage_is_in_a_repr() -> None:
    assert "secret" not in repr(
        ImageOptions(upload="https://u:secret@a/{sha256}?sig=secret", upload_url="https://secret/{sha256}")
    )
