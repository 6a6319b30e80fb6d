"""On every stack, over HTTP/1.1 and HTTP/2: what the server saw, and what the caller caught."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

import netkit
from netkit.testing import MockGPU, expected_vector

FACES = ("requests", "httpx", "httpx-async", "httpx2", "httpx2-async", "aiohttp")


@pytest.fixture(scope="module", params=["1.1", "2"])
def gpu(request: pytest.FixtureRequest) -> Iterator[MockGPU]:
    with MockGPU(http=request.param) as gpu:
        gpu.route("/form", _said, methods=("POST",))
        gpu.route("/raw", _said, methods=("POST",))
        yield gpu


def _said(exchange: Any) -> Any:
    from netkit.testing.mock_gpu import Answer

    return Answer.json({"size": len(exchange.content)})


@pytest.fixture
def photo(pictures: Any) -> bytes:
    data: bytes = pictures.encoded(pictures.scene((800, 600)), "PNG")
    return data


def post(face: str, gpu: MockGPU, path: str, plugins: dict[str, Any], **what: Any) -> Any:
    """POST on one face; the decoded JSON answer."""
    url = gpu.url + path
    trust = ssl.create_default_context(cafile=gpu.ca_file)
    if face == "requests":
        with netkit.Session(plugins=plugins) as session:
            if "content" in what:
                what["data"] = what.pop("content")
            return session.post(url, verify=gpu.ca_file, **what).json()
    if face == "aiohttp":
        return asyncio.run(_aiohttp(url, trust, plugins, what))
    module = netkit.httpx2 if face.startswith("httpx2") else netkit.httpx
    if not face.endswith("async"):
        with module.Client(verify=trust, plugins=plugins) as client:
            return client.post(url, **what).json()

    async def main() -> Any:
        async with module.AsyncClient(verify=trust, plugins=plugins) as client:
            return (await client.post(url, **what)).json()

    return asyncio.run(main())


async def _aiohttp(url: str, trust: ssl.SSLContext, plugins: dict[str, Any], what: dict[str, Any]) -> Any:
    import aiohttp

    if "files" in what:
        form = aiohttp.FormData()
        for name, value in what.pop("data", {}).items():
            form.add_field(name, value)
        for name, (filename, file, kind) in what.pop("files").items():
            form.add_field(name, file, filename=filename, content_type=kind)
        what["data"] = form
    if "content" in what:
        what["data"] = what.pop("content")
    async with netkit.ClientSession(plugins=plugins) as session, session.post(url, ssl=trust, **what) as answer:
        return await answer.json()


PLUGINS = {"image": True, "retry": False}


@pytest.mark.parametrize("face", FACES)
def test_a_picture_in_json(face: str, gpu: MockGPU, photo: bytes) -> None:
    gpu.reset()
    answer = post(face, gpu, "/gme", PLUGINS, json={"model": "m", "image": base64.b64encode(photo).decode()})
    expected = netkit.preprocess(photo)
    assert answer["data"][0]["embedding"] == expected_vector(expected.base64)
    (seen,) = gpu.log.requests
    assert seen.json() == {"model": "m", "image": expected.base64}
    assert seen.header("content-length") == str(seen.body_size)


@pytest.mark.parametrize("face", FACES)
def test_a_chat_with_pictures(face: str, gpu: MockGPU, photo: bytes) -> None:
    gpu.reset()
    url = "data:image/png;base64," + base64.b64encode(photo).decode()
    parts = [{"type": "text", "text": "what?"}, *({"type": "image_url", "image_url": {"url": url}} for _ in range(2))]
    messages = [{"role": "user", "content": parts}]
    answer = post(face, gpu, "/v1/chat/completions", PLUGINS, json={"model": "m", "messages": messages})
    assert answer["choices"]
    (seen,) = gpu.log.requests
    sent = seen.json()["messages"][0]["content"]
    assert sent[0] == parts[0]
    assert [part["image_url"]["url"] for part in sent[1:]] == [netkit.preprocess(photo).data_url] * 2


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("face", FACES)
def test_multipart(face: str, gpu: MockGPU, photo: bytes, in_memory: bool) -> None:
    gpu.reset()
    files = {
        "photo": ("holiday.png", photo if in_memory else io.BytesIO(photo), "image/png"),
        "notes": ("notes.txt", b"nothing\r\n--to see", "text/plain"),
    }
    answer = post(face, gpu, "/form", PLUGINS, files=files, data={"k": "v"})
    (seen,) = gpu.log.requests
    assert answer == {"size": seen.body_size}
    assert seen.header("content-length") == str(seen.body_size)
    assert seen.body is not None
    assert netkit.preprocess(photo).bytes in seen.body
    assert b'filename="holiday.jpg"' in seen.body
    assert b"nothing\r\n--to see" in seen.body
    boundary = (seen.header("content-type") or "").partition("boundary=")[2].strip('"').encode()
    assert seen.body.startswith(b"--" + boundary)
    assert seen.body.rstrip().endswith(b"--" + boundary + b"--")


@pytest.mark.parametrize("face", FACES)
def test_a_raw_body(face: str, gpu: MockGPU, photo: bytes) -> None:
    gpu.reset()
    post(face, gpu, "/raw", PLUGINS, content=photo, headers={"Content-Type": "image/png"})
    (seen,) = gpu.log.requests
    assert seen.body == netkit.preprocess(photo).bytes
    assert seen.header("content-type") == "image/jpeg"
    assert seen.header("content-length") == str(seen.body_size)


@pytest.mark.parametrize("face", FACES)
def test_what_the_caller_catches(face: str, gpu: MockGPU, photo: bytes) -> None:
    import aiohttp
    import httpx
    import httpx2
    import requests

    native = {
        "requests": requests.RequestException,
        "httpx": httpx.RequestError,
        "httpx-async": httpx.RequestError,
        "httpx2": httpx2.RequestError,
        "httpx2-async": httpx2.RequestError,
        "aiohttp": aiohttp.ClientError,
    }[face]
    gpu.reset()
    bad = {
        "truncated": base64.b64encode(photo[: len(photo) // 2]).decode(),
        "text": base64.b64encode(b"hello, this is photo.jpg").decode(),
        "empty": "",
    }
    for name, text in bad.items():
        with pytest.raises(netkit.ImageError, match="image: ") as caught:
            post(face, gpu, "/gme", PLUGINS, json={"image": text})
        assert isinstance(caught.value, ValueError), name
        assert isinstance(caught.value, native), name
    too_large = {**PLUGINS, "image": {"max_pixels": 1000}}
    with pytest.raises(netkit.ImageError, match="too large: 800 x 600") as caught:
        post(face, gpu, "/gme", too_large, json={"image": base64.b64encode(photo).decode()})
    assert isinstance(caught.value, native)
    assert gpu.log.requests == []
    passing = {**PLUGINS, "image": {"on_error": "pass"}}
    payload = {"image": bad["truncated"]}
    post(face, gpu, "/gme", passing, json=payload)
    assert [json.loads(seen.body or b"") for seen in gpu.log.requests] == [payload]


@pytest.mark.parametrize("face", FACES)
def test_a_retry_sends_the_same_small_body_again(face: str, gpu: MockGPU, photo: bytes) -> None:
    from netkit.testing import faults

    gpu.reset()
    gpu.script(faults.Status(503))
    plugins = {"image": True, "retry": {"attempts": 2, "backoff_initial": 0.0, "budget_min_per_second": 1000.0}}
    post(face, gpu, "/gme", plugins, json={"model": "m", "image": base64.b64encode(photo).decode()})
    first, second = gpu.log.requests
    assert first.status == 503
    assert first.body == second.body
    assert len(first.body or b"") < len(photo)


def test_options_from_configuration(gpu: MockGPU, photo: bytes, tmp_path: Any) -> None:
    (tmp_path / "netkit.toml").write_text(
        '[image]\nmax_size = "64x48"\nformat = "webp"\npaths = ["picture.data"]\npresets = []\nupload = false\n'
    )
    gpu.reset()
    payload = {"picture": {"data": base64.b64encode(photo).decode()}, "image": base64.b64encode(photo).decode()}
    with netkit.Session(config=str(tmp_path / "netkit.toml")) as session:
        session.post(f"{gpu.url}/gme", json=payload, verify=gpu.ca_file)
    (seen,) = gpu.log.requests
    expected = netkit.preprocess(photo, max_size=(64, 48), format="webp")
    assert seen.json() == {"picture": {"data": expected.base64}, "image": payload["image"]}
