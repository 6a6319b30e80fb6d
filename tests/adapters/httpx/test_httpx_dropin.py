"""What a drop-in must keep (COMPAT 18 to 24), and how netkit gets in and out of a client."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face, context_of

from netkit import errors
from netkit.facade import attach, detach, edge_of, stats
from netkit.flow import compose
from netkit.testing import MockGPU

OFF = {"retry": False, "pool": False}


def layers(client: Any, *found: Any) -> None:
    """Put layers of the test's own into a client's chain."""
    edge = edge_of(client)
    edge._default = compose(found, edge._default)


def test_a_real_subclass_with_the_real_transport(face: Face, gpu: MockGPU, http: str) -> None:
    client = face.client(gpu)
    assert isinstance(client, face.NativeClient)
    assert type(client._transport) is face.HTTPTransport
    assert client._transport_for_url(face.native.URL(gpu.url)) is client._transport
    assert face.run(client.post(PATH, json=EMBED)).status_code == 200
    assert len(client._transport._pool.connections) == (1 if http == "1.1" else 0)
    assert pickle.loads(pickle.dumps(face.Client)) is face.Client


def test_an_unchanged_request_reaches_the_transport_as_the_same_object(face: Face) -> None:
    seen: list[Any] = []

    def handler(request: Any) -> Any:
        seen.append(request)
        return face.native.Response(200)

    client = face.client(transport=face.transport(handler), plugins=OFF)
    request = client.build_request("POST", "http://host/path?q=1", content=b"x", extensions={"trace": None})
    before = (request.method, request.url, list(request.headers.raw), request.stream, dict(request.extensions))
    response = face.run(client.send(request))
    assert seen == [request]
    assert seen[0] is request
    assert response.request is request
    assert before == (
        request.method,
        request.url,
        list(request.headers.raw),
        request.stream,
        dict(request.extensions),
    )


def test_bytes_on_the_wire_are_the_stacks_own(face: Face, gpu: MockGPU, http: str) -> None:
    arguments = {"json": EMBED, "headers": [("X-A", "1"), ("x-a", "2")]}
    native = face.keep(face.NativeClient(verify=False, base_url=gpu.url, http2=http == "2"))
    face.run(native.post(PATH, **arguments))
    face.run(face.client(gpu).post(PATH, **arguments))
    first, second = gpu.log.requests
    if http == "1.1":
        assert first.headers == second.headers
    else:
        # httpx sends "connection" over HTTP/2, where RFC 9113 section 8.2.2 has no place for it.
        assert sorted(field for field in first.headers if field[0] != "connection") == sorted(second.headers)
        assert [value for name, value in second.headers if name == "x-a"] == ["1", "2"]
    assert first.body == second.body
    assert first.protocol == second.protocol == f"HTTP/{http}"


def test_what_a_client_fills_in_a_response(face: Face, gpu: MockGPU, http: str) -> None:
    client = face.client(gpu, default_encoding="utf-16")
    response = face.run(client.get("/v1/models"))
    assert response.elapsed.total_seconds() > 0
    assert response.http_version == f"HTTP/{http}"
    assert response.extensions["network_stream"] is not None
    assert response.default_encoding == "utf-16"
    assert response.request.url == gpu.url + "/v1/models"
    assert response.is_closed


def test_redirects_pass_the_chain_hop_by_hop_and_hooks_run(face: Face) -> None:
    hops: list[str] = []
    hooked: list[int] = []

    async def watch(request: Any, send: Any) -> Any:
        hops.append(request.url)
        return await send(request)

    def handler(request: Any) -> Any:
        if request.url.path == "/a":
            return face.native.Response(302, headers={"location": "/b", "set-cookie": "k=v"})
        assert request.headers["cookie"] == "k=v"
        return face.native.Response(200)

    def hook(response: Any) -> None:
        hooked.append(response.status_code)

    async def async_hook(response: Any) -> None:
        hook(response)

    hooks = {"response": [async_hook if face.asynchronous else hook]}
    client = face.client(transport=face.transport(handler), plugins=OFF, event_hooks=hooks)
    layers(client, watch)
    held = face.run(client.get("http://host/a"))
    assert held.status_code == 302
    assert held.next_request.url == "http://host/b"
    response = face.run(client.get("http://host/a", follow_redirects=True))
    assert hops == ["http://host/a", "http://host/a", "http://host/b"]
    assert [earlier.status_code for earlier in response.history] == [302]
    assert hooked == [302, 302, 200]
    assert dict(client.cookies) == {"k": "v"}
    assert stats(client).requests.total == 3


def test_each_leg_of_an_auth_flow_passes_the_chain(face: Face) -> None:
    def handler(request: Any) -> Any:
        if "authorization" in request.headers:
            return face.native.Response(200)
        challenge = 'Digest realm="r", nonce="n", qop="auth"'
        return face.native.Response(401, headers={"www-authenticate": challenge})

    client = face.client(transport=face.transport(handler), plugins=OFF, auth=face.native.DigestAuth("u", "p"))
    assert face.run(client.get("http://host/")).status_code == 200
    assert stats(client).requests.total == 2


def test_environment_proxies_and_mounts_stay_native(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    client = face.client()
    native = face.keep(face.NativeClient())
    assert list(client._mounts) == list(native._mounts)
    proxied = client._transport_for_url(face.native.URL("http://host/"))
    assert type(proxied) is face.HTTPTransport
    assert proxied is not client._transport


def test_a_mounted_transport_is_what_gets_called(face: Face) -> None:
    mounted = face.transport(lambda request: face.native.Response(201))
    client = face.client(mounts={"all://only.here": mounted}, plugins=OFF)
    assert face.run(client.get("http://only.here/")).status_code == 201


def test_a_patched_transport_is_called_and_nothing_goes_out(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest-httpx patches this method, respx the pool's or _transport_for_url.
    name = "handle_async_request" if face.asynchronous else "handle_request"

    def mock(self: Any, request: Any) -> Any:
        return face.native.Response(299, text="mocked")

    async def async_mock(self: Any, request: Any) -> Any:
        return mock(self, request)

    monkeypatch.setattr(face.HTTPTransport, name, async_mock if face.asynchronous else mock)
    assert face.run(face.client().get("https://nowhere.invalid/")).text == "mocked"
    monkeypatch.undo()
    transport = face.transport(lambda request: face.native.Response(298))
    monkeypatch.setattr(face.NativeClient, "_transport_for_url", lambda self, url: transport)
    assert face.run(face.client().get("https://nowhere.invalid/")).status_code == 298


def test_a_patched_pool_is_called(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    core = __import__("httpcore" if face.stack == "httpx" else "httpcore2")
    pool = core.AsyncConnectionPool if face.asynchronous else core.ConnectionPool
    name = "handle_async_request" if face.asynchronous else "handle_request"

    def mock(self: Any, request: Any) -> Any:
        return core.Response(297, content=b"pool")

    async def async_mock(self: Any, request: Any) -> Any:
        return mock(self, request)

    monkeypatch.setattr(pool, name, async_mock if face.asynchronous else mock)
    response = face.run(face.client().get("https://nowhere.invalid/"))
    assert (response.status_code, response.content) == (297, b"pool")


def test_overrides_of_subclasses_keep_working(face: Face) -> None:
    calls: list[str] = []
    base: Any = face.Client
    transport = face.transport(lambda request: face.native.Response(200))

    class Mine(base):  # type: ignore[misc]
        def _transport_for_url(self, url: Any) -> Any:
            calls.append("pick")
            return super()._transport_for_url(url)

        if face.asynchronous:

            async def _send_single_request(self, request: Any) -> Any:
                calls.append("single")
                return await super()._send_single_request(request)
        else:

            def _send_single_request(self, request: Any) -> Any:
                calls.append("single")
                return super()._send_single_request(request)

    client = face.keep(Mine(transport=transport, plugins=OFF))
    face.run(client.get("http://host/"))
    assert calls == ["single", "pick"]
    assert stats(client).requests.total == 1


def test_attached_subclasses_may_call_super(face: Face) -> None:
    calls: list[str] = []
    base: Any = face.NativeClient

    class Mine(base):  # type: ignore[misc]
        if face.asynchronous:

            async def _send_single_request(self, request: Any) -> Any:
                calls.append("single")
                return await super()._send_single_request(request)
        else:

            def _send_single_request(self, request: Any) -> Any:
                calls.append("single")
                return super()._send_single_request(request)

    client = attach(face.keep(Mine(transport=face.transport(lambda _: face.native.Response(200)))), plugins=OFF)
    face.run(client.get("http://host/"))
    assert calls == ["single"]
    assert stats(client).requests.total == 1


def test_attach_and_detach(face: Face) -> None:
    client = face.keep(face.NativeClient(transport=face.transport(lambda _: face.native.Response(200))))
    before = dict(client.__dict__)
    with pytest.raises(TypeError, match="not attached"):
        edge_of(client)
    detach(client)
    assert attach(client, plugins=OFF) is client
    edge = edge_of(client)
    attach(client, plugins=OFF)
    assert edge_of(client) is edge
    attach(client, plugins={**OFF, "retry": True})
    assert edge_of(client) is not edge
    face.run(client.get("http://host/"))
    assert stats(client).requests.total == 1
    detach(client)
    assert client.__dict__ == {**before, "_state": client._state}
    face.run(client.get("http://host/"))
    assert type(client)._send_single_request is face.NativeClient._send_single_request


def test_attach_to_netkits_own_client_replaces_its_settings(face: Face) -> None:
    client = face.client(plugins=OFF)
    edge = edge_of(client)
    attach(client, plugins=OFF)
    assert edge_of(client) is edge
    attach(client, plugins={**OFF, "retry": {"attempts": 7}})
    assert edge_of(client) is not edge
    with pytest.raises(TypeError, match="cannot be detached"):
        detach(client)


@pytest.mark.parametrize("own", [True, False], ids=["netkit's own", "attached"])
def test_wrong_settings_leave_what_is_there(face: Face, gpu: MockGPU, own: bool) -> None:
    arguments = {"verify": context_of(gpu), "base_url": gpu.url}
    plugins = {"http2": False}
    client = (
        face.client(plugins=plugins, **arguments)
        if own
        else attach(face.keep(face.NativeClient(**arguments)), plugins=plugins)
    )
    assert face.run(client.post(PATH, json=EMBED)).status_code == 200
    edge, attributes, driven = edge_of(client), dict(client.__dict__), dict(client._transport._pool.__dict__)
    assert "create_connection" in driven
    with pytest.raises(errors.ConfigError, match="attempts"):
        attach(client, plugins={"retry": {"attemps": 3}})
    assert edge_of(client) is edge
    assert client.__dict__ == attributes
    assert client._transport._pool.__dict__ == driven
    assert face.run(client.post(PATH, json=EMBED)).status_code == 200
    assert stats(client).requests.total == 2
    assert gpu.stats().connections == 1


def test_attach_refuses_what_it_does_not_know(face: Face) -> None:
    with pytest.raises(TypeError):
        face.adapter.attach(object())
    client = face.keep(face.NativeClient())
    client._send_single_request = lambda request: None
    with pytest.raises(TypeError, match="_send_single_request"):
        attach(client)


def test_a_wrong_setting_is_told_at_construction(face: Face) -> None:
    with pytest.raises(errors.ConfigError, match="attempts"):
        face.Client(plugins={"retry": {"attemps": 3}})


def test_netkit_keeps_no_client_alive(face: Face) -> None:
    client = face.Client(transport=face.transport(lambda _: face.native.Response(200)), plugins=OFF)
    face.run(client.get("http://host/"))
    face.close(client)
    attached = attach(face.NativeClient(transport=face.transport(lambda _: face.native.Response(200))), plugins=OFF)
    face.run(attached.get("http://host/"))
    face.close(attached)
    gc.collect()
    gc.disable()
    try:
        seen = [weakref.ref(client), weakref.ref(attached)]
        del client, attached
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()


def test_closing(face: Face) -> None:
    client = face.client()
    face.close(client)
    face.close(client)
    assert client.is_closed
    with pytest.raises(RuntimeError):
        face.run(client.get("http://host/"))
    with pytest.raises(RuntimeError):
        face.run(client.__aenter__()) if face.asynchronous else client.__enter__()


def test_a_copy_of_an_attached_client_says_so(sync_face: Face) -> None:
    face = sync_face
    client = attach(face.NativeClient(transport=face.transport(lambda _: face.native.Response(200))), plugins=OFF)
    other = copy.copy(client)
    assert other.get("http://host/").status_code == 200
    del client
    with pytest.raises(RuntimeError, match="copy"):
        other.get("http://host/")
    other.__dict__.pop("close")
    other.close()


def test_the_mirrored_namespace(face: Face, gpu: MockGPU) -> None:
    import importlib

    mirror: Any = importlib.import_module(f"netkit.{face.stack}")
    assert mirror.Client is face.adapter.Client
    assert mirror.AsyncClient is face.adapter.AsyncClient
    assert mirror.Timeout is face.native.Timeout
    assert mirror.ConnectError is face.native.ConnectError
    if face.asynchronous:
        return
    made: list[Any] = []
    original = face.adapter.Client.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(face.adapter.Client, "__init__", lambda self, **k: (made.append(self), original(self, **k))[1])
        assert mirror.post(gpu.url + PATH, json=EMBED, verify=False).status_code == 200
        with mirror.stream("GET", gpu.url + "/v1/models", verify=False) as response:
            assert response.read()
    assert [type(client) for client in made] == [face.adapter.Client] * 2
    assert pickle.loads(pickle.dumps(mirror.get)) is mirror.get


def test_answers_of_layers_become_native_responses(face: Face) -> None:
    from netkit import Response

    async def answer(request: Any, send: Any) -> Any:
        pairs = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Content-Type", "application/json")]
        return Response.of(203, pairs, b'{"x": 1}', cached=True)

    client = face.client(transport=face.transport(lambda request: pytest.fail("sent")), plugins=OFF)
    layers(client, answer)
    response = face.run(client.get("http://host/"))
    assert type(response) is face.native.Response
    assert (response.status_code, response.json(), response.reason_phrase) == (
        203,
        {"x": 1},
        "Non-Authoritative Information",
    )
    assert dict(client.cookies) == {"a": "1", "b": "2"}
    assert response.extensions["cached"] is True
    assert response.http_version == "HTTP/1.1"
    assert response.elapsed.total_seconds() >= 0
    assert stats(client).requests.in_flight == 0
    assert stats(client).requests.attempts == 0


def test_timeouts_and_extensions_cross_both_ways(face: Face) -> None:
    seen: list[Any] = []

    async def shorten(request: Any, send: Any) -> Any:
        seen.append(request.timeout)
        return await send(request.replace(timeout=request.timeout.at_most(1.5)))

    def handler(request: Any) -> Any:
        seen.append(request.extensions)
        return face.native.Response(200)

    client = face.client(transport=face.transport(handler), plugins=OFF)
    layers(client, shorten)
    timeout = face.native.Timeout(connect=1.0, read=9.0, write=None, pool=4.0)
    face.run(client.get("http://host/", timeout=timeout, extensions={"sni_hostname": "other"}))
    assert (seen[0].connect, seen[0].read, seen[0].write, seen[0].pool) == (1.0, 9.0, None, 4.0)
    assert seen[1] == {
        "timeout": {"connect": 1.0, "read": 1.5, "write": 1.5, "pool": 1.5},
        "sni_hostname": "other",
    }


def test_streamed_responses_guard_their_content(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    with face.stream(client, "GET", "/v1/models") as response:
        with pytest.raises(face.native.ResponseNotRead):
            response.content  # noqa: B018
        assert b"".join(face.chunks(response))
        with pytest.raises(face.native.StreamConsumed):
            list(face.chunks(response))


def test_a_native_trace_callback_is_called(face: Face, gpu: MockGPU) -> None:
    events: list[str] = []

    def trace(name: str, info: Any) -> None:
        events.append(name)

    async def async_trace(name: str, info: Any) -> None:
        events.append(name)

    face.run(face.client(gpu).get("/v1/models", extensions={"trace": async_trace if face.asynchronous else trace}))
    assert "http11.send_request_headers.complete" in events
