"""A layer sends a request elsewhere: which transport carries it, what it says, and what stays behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face, context_of, served

from netkit.facade import attach, edge_of, stats
from netkit.flow import compose
from netkit.testing import MockGPU


@pytest.fixture
def pair(http: str) -> Iterator[tuple[MockGPU, MockGPU]]:
    """Two servers with different names: localhost and 127.0.0.1."""
    with ExitStack() as stack:
        yield tuple(  # type: ignore[misc]
            stack.enter_context(MockGPU(http=served(http), launch_ms=0, per_item_ms=0)) for _ in range(2)
        )


def _moving(face: Face, client: Any, url: str, **changes: Any) -> None:
    """A layer of the test's own that sends each request to `url` instead."""

    async def move(request: Any, send: Any) -> Any:
        made = {name: change(request) for name, change in changes.items()}
        return await send(request.replace(url=url + request.url.partition("://")[2].partition("/")[2], **made))

    edge = edge_of(client)
    edge._default = compose([move], edge._default)


def _client(face: Face, attached: bool = False, **arguments: Any) -> Any:
    if attached:
        return attach(face.keep(face.NativeClient(verify=False, **arguments)))
    return face.client(verify=False, **arguments)


def _sent(gpu: MockGPU, name: str) -> str | None:
    return gpu.log.requests[-1].header(name)


@pytest.mark.parametrize("attached", [False, True])
def test_host_and_credentials_follow_the_new_origin(
    face: Face, pair: tuple[MockGPU, MockGPU], http: str, attached: bool
) -> None:
    old, new = pair
    client = _client(face, attached, base_url=old.url.replace("://", "://user:secret@"))
    _moving(face, client, new.url + "/")
    headers = {"X-Kept": "1"}
    response = face.run(client.post(PATH, json=EMBED, headers=headers))
    assert response.status_code == 200
    assert old.log.requests == []
    record = new.log.requests[-1]
    assert record.protocol == f"HTTP/{http}"
    assert record.path == PATH
    assert record.authority == new.url.partition("://")[2]
    assert record.header("x-kept") == "1"
    assert record.header("authorization") is None
    assert record.body == response.request.content
    assert str(response.request.url).startswith(old.url.replace("://", "://user:secret@"))


def test_what_the_caller_or_a_layer_wrote_is_sent(face: Face, pair: tuple[MockGPU, MockGPU]) -> None:
    old, new = pair
    client = _client(face, base_url=old.url.replace("://", "://user:secret@"))
    _moving(
        face, client, new.url + "/", headers=lambda request: request.headers.set("Authorization", "Bearer replica")
    )
    face.run(client.get("/v1/models"))
    assert _sent(new, "authorization") == "Bearer replica"
    own = _client(face, base_url=old.url, headers={"Authorization": "Bearer caller", "Cookie": "mine=1"})
    _moving(face, own, new.url + "/")
    face.run(own.get("/v1/models"))
    assert _sent(new, "authorization") == "Bearer caller"
    assert _sent(new, "cookie") == "mine=1"


def test_an_explicit_host_is_kept(face: Face, pair: tuple[MockGPU, MockGPU]) -> None:
    old, new = pair
    callers = _client(face, base_url=old.url, headers={"Host": "virtual.example"})
    _moving(face, callers, new.url + "/")
    face.run(callers.get("/v1/models"))
    assert new.log.requests[-1].authority == "virtual.example"
    layers = _client(face, base_url=old.url)
    _moving(face, layers, new.url + "/", headers=lambda request: request.headers.set("Host", "replica.example"))
    face.run(layers.get("/v1/models"))
    assert new.log.requests[-1].authority == "replica.example"


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("of_client", [False, True])
def test_what_netrc_has_for_the_old_host_stays_behind(
    face: Face, pair: tuple[MockGPU, MockGPU], tmp_path: Path, attached: bool, of_client: bool
) -> None:
    if attached and not of_client:
        pytest.skip("an attached client does not show the auth of one call")
    old, new = pair
    host = old.url.partition("://")[2].partition(":")[0]
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {host} login user password secret\n")
    auth = face.native.NetRCAuth(str(netrc))
    client = _client(face, attached, base_url=old.url, **({"auth": auth} if of_client else {}))
    call = {} if of_client else {"auth": auth}
    face.run(client.get("/v1/models", **call))
    assert str(_sent(old, "authorization")).startswith("Basic ")
    _moving(face, client, new.url + "/")
    face.run(client.get("/v1/models", **call))
    assert _sent(new, "authorization") is None


def test_cookies_of_the_old_origin_stay_behind(face: Face) -> None:
    seen: list[Any] = []

    def handler(request: Any) -> Any:
        seen.append(request)
        return face.native.Response(200)

    client = face.client(transport=face.transport(handler))
    client.cookies.set("session", "1", domain="old.test")
    client.cookies.set("everywhere", "2")
    _moving(face, client, "http://new.test/")
    native = face.keep(face.NativeClient(transport=face.transport(handler), cookies=client.cookies))
    face.run(native.get("http://old.test/"))
    assert sorted(seen.pop().headers["cookie"].split("; ")) == ["everywhere=2", "session=1"]
    face.run(client.get("http://old.test/", headers={"X-A": "1"}))
    assert seen[0].url == "http://new.test/"
    assert seen[0].headers["host"] == "new.test"
    assert seen[0].headers["cookie"] == "everywhere=2"
    del client.cookies["everywhere"]
    face.run(client.get("http://old.test/"))
    assert "cookie" not in seen[1].headers


def test_mounts_extensions_and_proxy_credentials(face: Face) -> None:
    seen: list[tuple[str, Any]] = []

    def transport(name: str) -> Any:
        def handler(request: Any) -> Any:
            seen.append((name, request))
            return face.native.Response(200)

        return face.transport(handler)

    mounts = {"all://old.test": transport("old"), "all://new.test": transport("new")}
    client = face.client(mounts=mounts)
    _moving(face, client, "http://new.test:8080/")
    extensions = {"sni_hostname": "name", "own": 7}
    headers = {"Proxy-Authorization": "Basic secret"}
    face.run(client.post("http://old.test/path?q=1", content=b"abc", headers=headers, extensions=extensions))
    [(name, request)] = seen
    assert name == "new"
    assert str(request.url) == "http://new.test:8080/path?q=1"
    assert request.headers["host"] == "new.test:8080"
    assert "proxy-authorization" not in request.headers
    assert {key: request.extensions[key] for key in extensions} == extensions
    assert request.extensions["timeout"]["read"] == 5.0
    assert face.read(request) == b"abc"


def test_a_direct_transport_carries_no_proxy_credentials_elsewhere(face: Face) -> None:
    seen: list[Any] = []

    def handler(request: Any) -> Any:
        seen.append(request)
        return face.native.Response(200)

    client = face.client(transport=face.transport(handler))
    _moving(face, client, "http://new.test/")
    face.run(client.get("http://old.test/", headers={"Proxy-Authorization": "Basic secret"}))
    assert "proxy-authorization" not in seen[0].headers


def test_auths_that_were_found_are_kept_no_longer_than_their_call(face: Face) -> None:
    client = face.client(transport=face.transport(lambda _: face.native.Response(200)))
    face.run(client.get("http://user:secret@old.test/"))
    face.run(client.get("http://old.test/", auth=("user", "secret")))
    gc.collect()
    assert client._netkit_wiring.found_auths._found == {}


def test_credentials_survive_a_redirect_and_still_stay_behind(face: Face) -> None:
    seen: list[Any] = []

    def handler(request: Any) -> Any:
        seen.append(request)
        return face.native.Response(302, headers={"location": "/b"}) if len(seen) == 1 else face.native.Response(200)

    client = face.client(transport=face.transport(handler), follow_redirects=True)

    async def move_the_second(request: Any, send: Any) -> Any:
        return await send(request.replace(url="http://new.test/b") if seen else request)

    edge = edge_of(client)
    edge._default = compose([move_the_second], edge._default)
    face.run(client.get("http://user:secret@old.test/a"))
    first, second = seen
    assert first.headers["authorization"].startswith("Basic ")
    assert second.url.host == "new.test"
    assert "authorization" not in second.headers


def test_a_path_alone_changes_nothing_else(face: Face) -> None:
    seen: list[Any] = []

    def handler(request: Any) -> Any:
        seen.append(request)
        return face.native.Response(200)

    client = face.client(transport=face.transport(handler))
    client.cookies.set("session", "1", domain="old.test")

    async def move(request: Any, send: Any) -> Any:
        return await send(request.replace(url=request.url + "/v2"))

    edge = edge_of(client)
    edge._default = compose([move], edge._default)
    face.run(client.get("http://user:secret@old.test/v1"))
    assert seen[0].url.path == "/v1/v2"
    assert seen[0].headers["authorization"].startswith("Basic ")
    face.run(client.get("http://old.test/v1"))
    assert seen[1].headers["cookie"] == "session=1"


def test_verification_is_that_of_the_new_urls_transport(face: Face, pair: tuple[MockGPU, MockGPU]) -> None:
    old, new = pair
    trusted = face.HTTPTransport(verify=context_of(new))
    client = face.client(mounts={new.url: trusted}, base_url=old.url)
    _moving(face, client, new.url + "/")
    assert face.run(client.get("/v1/models")).status_code == 200
    strict = face.client(mounts={old.url: face.HTTPTransport(verify=False)}, base_url=old.url)
    _moving(face, strict, new.url + "/")
    with pytest.raises(face.native.ConnectError):
        face.run(strict.get("/v1/models"))
    assert stats(strict).requests.errors == 1
