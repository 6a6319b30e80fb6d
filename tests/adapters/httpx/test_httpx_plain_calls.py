"""What a client without plugins does by itself, and what netkit spares a client that calls again and again."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from http.cookiejar import CookieJar
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face

import netkit
from netkit.facade import attach, edge_of, listen, stats
from netkit.testing import MockGPU

BARE = {"retry": False, "pool": False, "http2": False}


def _frames(face: Face, seen: list[str]) -> Any:
    """A transport that notes whether the call came through the chain."""

    def handler(request: Any) -> Any:
        frame, found = sys._getframe(), []
        while frame is not None:
            found.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        seen.append("chained" if "sync_terminal" in found or "async_terminal" in found else "native")
        return face.native.Response(200, content=b"x")

    return face.transport(handler)


@pytest.mark.parametrize("attached", [False, True])
def test_without_plugins_the_native_call_itself_is_made_and_counted(face: Face, attached: bool) -> None:
    seen: list[str] = []
    transport = _frames(face, seen)
    client = (
        attach(face.keep(face.NativeClient(transport=transport)), plugins=BARE)
        if attached
        else face.client(transport=transport, plugins=BARE)
    )
    assert edge_of(client).is_bare
    assert face.run(client.get("http://host/")).content == b"x"
    assert seen == ["native"]
    counted = stats(client).requests
    assert (counted.total, counted.attempts, counted.errors, counted.in_flight) == (1, 1, 0, 0)


def _overridden(face: Face, client: Any) -> None:
    async def inside() -> None:
        with netkit.overrides(retry=True):
            await client.get("http://host/")

    if face.asynchronous:
        face.run(inside())
    else:
        with netkit.overrides(retry=True):
            client.get("http://host/")


@pytest.mark.parametrize("attached", [False, True])
def test_a_listener_or_an_override_brings_the_chain_back(face: Face, attached: bool) -> None:
    seen: list[str] = []
    transport = _frames(face, seen)
    client = (
        attach(face.keep(face.NativeClient(transport=transport)), plugins=BARE)
        if attached
        else face.client(transport=transport, plugins=BARE)
    )
    events: list[Any] = []
    stop = listen(client, events.append)
    face.run(client.get("http://host/"))
    stop()
    _overridden(face, client)
    face.run(client.get("http://host/"))
    assert seen == ["chained", "chained", "native"]
    assert [type(event).__name__ for event in events] == ["CallStarted", "CallEnded"]
    assert stats(client).requests.total == 3


def test_a_failure_without_plugins_is_the_very_exception_and_counts(face: Face) -> None:
    boom = face.native.ConnectError("no")

    def handler(request: Any) -> Any:
        raise boom

    client = face.client(transport=face.transport(handler), plugins=BARE)
    with pytest.raises(face.native.ConnectError) as caught:
        face.run(client.get("http://host/"))
    assert caught.value is boom
    assert (stats(client).requests.errors, stats(client).requests.in_flight) == (1, 0)


def test_without_plugins_one_client_serves_several_loops(async_face: Face, gpu: MockGPU) -> None:
    face = async_face
    client = face.Client(plugins=BARE, verify=False, base_url=gpu.url)

    async def post() -> tuple[int, bool]:
        status = (await client.post(PATH, json=EMBED)).status_code
        again = (await client.post(PATH, json=EMBED)).status_code
        assert status == again
        return status, client._netkit_wiring.pool.loops.is_home()

    assert asyncio.run(post()) == (200, True)
    assert asyncio.run(post()) == (200, True)

    # Two at once: the second has connections of its own, and ends without harm to the first.
    async def beside() -> None:
        assert await post() == (200, True)
        found: list[tuple[int, bool]] = []
        other = threading.Thread(target=lambda: found.append(asyncio.run(post())))
        other.start()
        await asyncio.to_thread(other.join)
        assert found == [(200, False)]
        assert await post() == (200, True)
        await client.aclose()

    asyncio.run(beside())
    assert len(gpu.log.connections) == 4
    assert stats(client).requests.total == 10


def test_a_text_is_merged_with_the_base_url_of_now(face: Face) -> None:
    seen: list[str] = []

    def handler(request: Any) -> Any:
        seen.append(str(request.url))
        return face.native.Response(200)

    client = face.client(transport=face.transport(handler), base_url="http://one/v1")
    face.run(client.get("models"))
    face.run(client.get("models", params={"q": "1"}))
    face.run(client.get("models"))
    client.base_url = "http://two"
    face.run(client.get("models"))
    face.run(client.get("http://three/x"))
    assert seen == [
        "http://one/v1/models",
        "http://one/v1/models?q=1",
        "http://one/v1/models",
        "http://two/models",
        "http://three/x",
    ]


def test_merging_of_other_classes_is_asked_each_time(face: Face) -> None:
    native: Any = face.NativeClient
    tenants = iter(["a", "b"])

    class Tenant(native):  # type: ignore[misc]
        def _merge_url(self, url: Any) -> Any:
            return super()._merge_url(f"http://{next(tenants)}{url}")

    class Mine(face.Client, Tenant):  # type: ignore[misc, name-defined]
        pass

    seen: list[str] = []

    def handler(request: Any) -> Any:
        seen.append(request.url.host)
        return face.native.Response(200)

    client = face.keep(Mine(transport=face.transport(handler)))
    face.run(client.get("/x"))
    face.run(client.get("/x"))
    assert seen == ["a", "b"]


def test_kept_urls_are_bounded(face: Face) -> None:
    client = face.client(transport=face.transport(lambda _: face.native.Response(200)))
    for number in range(600):
        client.build_request("GET", f"http://host/{number}")
    client.build_request("GET", "http://host/" + "x" * 5000)
    _, kept = client._netkit_urls._kept
    assert 0 < len(kept) <= 256
    assert max(map(len, kept)) < 5000
    first = client.build_request("GET", "http://host/same")
    second = client.build_request("GET", "http://host/same")
    assert first.url == second.url
    with pytest.raises(face.native.InvalidURL):
        client.build_request("GET", "http://host:bad/")
    with pytest.raises(TypeError):
        client.build_request("GET", 7)
    assert pickle.loads(pickle.dumps(first)).url == first.url


class Jar(CookieJar):
    asked = 0

    def extract_cookies(self, response: Any, request: Any) -> None:
        self.asked += 1
        super().extract_cookies(response, request)


def test_cookies_are_kept_as_ever_and_a_jar_of_the_users_own_sees_every_answer(face: Face) -> None:
    def handler(request: Any) -> Any:
        headers = {"Set-Cookie": "k=v"} if request.url.path == "/set" else {}
        return face.native.Response(200, headers=headers)

    transport = face.transport(handler)
    client = face.client(transport=transport)
    face.run(client.get("http://host/"))
    assert dict(client.cookies) == {}
    face.run(client.get("http://host/set"))
    assert dict(client.cookies) == {"k": "v"}
    native = face.keep(face.NativeClient(transport=transport))
    own = face.client(transport=transport)
    for client in (native, own):
        client.cookies.jar = Jar()
        face.run(client.get("http://host/"))
        face.run(client.get("http://host/set"))
        assert dict(client.cookies) == {"k": "v"}
    # httpx asks the jar each time, httpx2 where the answer sets a cookie: as it does itself.
    assert own.cookies.jar.asked == native.cookies.jar.asked


def test_a_patched_extract_cookies_is_called(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(face.native.Cookies, "extract_cookies", lambda self, response: asked.append(1))
    client = face.client(transport=face.transport(lambda _: face.native.Response(200)))
    face.run(client.get("http://host/"))
    assert asked == [1]
