"""Calls in which a client has nothing to do go past its own handling of auth, hooks and redirects, unseen."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face

from netkit.testing import MockGPU, faults


@pytest.fixture
def http() -> str:
    return "2"


@pytest.fixture
def steps(face: Face, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way each call went: "dispatched", or the stack's own "handled" for each hop."""
    went: list[str] = []
    shapes = __import__(f"netkit_adapters.{face.stack}.faces", fromlist=["SHAPES"]).SHAPES
    dispatch = shapes.dispatch[face.asynchronous]
    applies = type(dispatch).applies

    def noting(self: Any, *args: Any) -> bool:
        answer: bool = applies(self, *args)
        went.append("dispatched" if answer else "handled")
        return answer

    monkeypatch.setattr(type(dispatch), "applies", noting)
    return went


def test_a_plain_call_is_dispatched_and_answered_as_by_the_stack(face: Face, gpu: MockGPU, steps: list[str]) -> None:
    client = face.client(gpu, default_encoding="latin-1")
    native = face.keep(face.NativeClient(verify=False, http2=True, base_url=gpu.url, default_encoding="latin-1"))
    got, expected = (face.run(one.post(PATH, json=EMBED)) for one in (client, native))
    assert steps == ["dispatched"]
    assert got.__dict__.keys() == expected.__dict__.keys() - {"_decoder"}
    assert type(got.stream) is type(expected.stream)
    assert (got.history, got.next_request, got.default_encoding) == ([], None, "latin-1")
    assert got.request.url == expected.request.url
    assert got.elapsed.total_seconds() > 0
    assert not client.is_closed


def test_redirects_are_the_stacks_to_follow(face: Face, gpu: MockGPU, steps: list[str]) -> None:
    client = face.client(gpu)
    gpu.faults.push(faults.Status(302, headers={"location": "/v1/models"}))
    response = face.run(client.get("/v1/models", follow_redirects=True))
    assert response.status_code == 200
    assert [(earlier.status_code, earlier.is_closed) for earlier in response.history] == [(302, True)]
    gpu.faults.push(faults.Status(307, headers={"location": "/v1/models?again"}))
    response = face.run(client.get("/v1/models"))
    assert (response.status_code, response.history, response.is_closed) == (307, [], True)
    assert response.next_request.url.query == b"again"
    gpu.faults.push(*[faults.Status(302, headers={"location": "/v1/models"})] * 3)
    strict = face.client(gpu, max_redirects=2, follow_redirects=True)
    with pytest.raises(face.native.TooManyRedirects):
        face.run(strict.get("/v1/models"))
    gpu.faults.push(faults.Status(301))
    assert face.run(strict.get("/v1/models")).status_code == 301
    assert steps == ["dispatched"] * 4


def test_cookies_are_kept(face: Face, gpu: MockGPU, steps: list[str]) -> None:
    client = face.client(gpu)
    gpu.faults.push(faults.Status(200, headers={"set-cookie": "k=v"}))
    face.run(client.get("/v1/models"))
    assert dict(client.cookies) == {"k": "v"}
    assert steps == ["dispatched"]


def test_a_failure_names_its_request(face: Face, steps: list[str]) -> None:
    def fail(request: Any) -> Any:
        raise face.native.ReadTimeout("late")

    client = face.client(transport=face.transport(fail), plugins={"retry": {"attempts": 1}})
    with pytest.raises(face.native.ReadTimeout) as caught:
        face.run(client.post("http://host.test/x"))
    assert str(caught.value.request.url) == "http://host.test/x"
    assert steps == ["dispatched"]


def test_what_somebody_put_in_between_is_called(
    face: Face, gpu: MockGPU, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def auth(request: Any) -> Any:
        seen.append("auth")
        return request

    def hook(message: Any) -> None:
        seen.append("hook")

    async def async_hook(message: Any) -> None:
        hook(message)

    def spy_on(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        own = getattr(owner, name)

        def spy(*args: Any, **options: Any) -> Any:
            seen.append(name)
            return own(*args, **options)

        patch.setattr(owner, name, spy)

    hooks = {"request": [async_hook if face.asynchronous else hook]}
    face.run(face.client(gpu, event_hooks=hooks).get("/v1/models"))
    client = face.client(gpu)
    face.run(client.get("/v1/models", auth=auth))
    face.run(client.get(str(client.base_url).replace("://", "://user:secret@") + "/v1/models"))
    client.auth = auth
    face.run(client.get("/v1/models"))
    assert seen == ["hook", "auth", "auth"]
    client.auth = None
    face.run(client.get("/v1/models"))
    assert steps == ["handled"] * 4 + ["dispatched"]
    for name in ("_send_handling_auth", "_send_handling_redirects", "_send_single_request", "_transport_for_url"):
        for owner in (face.NativeClient, client):
            with monkeypatch.context() as patch:
                spy_on(patch, owner, name)
                face.run(client.get("/v1/models"))
            assert seen.pop() == name


def test_a_subclass_is_asked(face: Face, gpu: MockGPU) -> None:
    seen: list[str] = []

    class Mine(face.Client):  # type: ignore[misc, name-defined]
        def _send_single_request(self, request: Any) -> Any:
            seen.append("single")
            return super()._send_single_request(request)

        def _build_request_auth(self, *args: Any) -> Any:
            seen.append("auth")
            return super()._build_request_auth(*args)

    client = face.keep(Mine(verify=False, base_url=gpu.url))
    face.run(client.get("/v1/models"))
    assert seen == ["auth", "single"]


def test_a_mixin_below_netkits_class_is_asked(face: Face, gpu: MockGPU) -> None:
    seen: list[str] = []
    native: Any = face.NativeClient

    class Below(native):  # type: ignore[misc]
        def _send_single_request(self, request: Any) -> Any:
            seen.append("single")
            return super()._send_single_request(request)

    class Mine(face.Client, Below):  # type: ignore[misc, name-defined]
        pass

    client = face.keep(Mine(verify=False, base_url=gpu.url))
    face.run(client.get("/v1/models"))
    assert seen == ["single"]


def test_the_log_is_the_stacks_own(face: Face, gpu: MockGPU, caplog: pytest.LogCaptureFixture) -> None:
    client = face.client(gpu)
    with caplog.at_level(logging.INFO, logger=face.stack):
        face.run(client.get("/v1/models"))
    records = [record for record in caplog.records if record.name == face.stack]
    assert [(record.funcName, record.getMessage().split()[:3]) for record in records] == [
        ("_send_single_request", ["HTTP", "Request:", "GET"])
    ]


def test_a_closed_client_refuses(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    face.run(client.get("/v1/models"))
    face.close(client)
    with pytest.raises(RuntimeError, match="closed"):
        face.run(client.get("/v1/models"))


def test_constructors_and_encoders_of_somebody_else_are_called(
    face: Face, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, seen = face.client(gpu), list[str]()
    face.run(client.post(PATH, json=EMBED))
    face.run(client.post(PATH, json=EMBED))
    native: Any = face.native
    for kind in (native.Request, native.Response, native.Headers):
        own = kind.__init__

        def spy(self: Any, *args: Any, own: Any = own, **options: Any) -> None:
            seen.append(type(self).__name__)
            own(self, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "__init__", spy)
            face.run(client.post(PATH, json=EMBED))
        assert kind.__name__ in seen
    content = __import__(f"{face.stack}._content", fromlist=["json_dumps"])
    monkeypatch.setattr(content, "json_dumps", lambda value, **options: '"mine"')
    assert client.build_request("POST", PATH, json=EMBED).content == b'"mine"'
