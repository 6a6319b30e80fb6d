"""Requests that netkit's clients build from what was built before are those of the stack, in every particular."""

from __future__ import annotations

import inspect
import pickle
import threading
from typing import Any

import pytest
from httpx_faces import Face

URL = "https://host.test/v1/embeddings?a=1#f"
CALLS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "json": ("POST", URL, {"json": {"input": ["é", 1, None]}}),
    "empty json": ("POST", URL, {"json": {}}),
    "bytes": ("PUT", URL, {"content": b"abc"}),
    "no bytes": ("POST", URL, {"content": b""}),
    "text": ("POST", URL, {"content": "abc"}),
    "nothing": ("GET", URL, {}),
    "nothing posted": ("POST", URL, {}),
    "lower case": ("delete", URL, {}),
    "relative": ("GET", "/models", {}),
    "path of its own": ("GET", "models?x=%20y z", {}),
    "timeout": ("GET", URL, {"timeout": 3.5}),
    "no timeout": ("GET", URL, {"timeout": None}),
    "timeouts": ("POST", URL, {"json": 1, "timeout": (1.0, 2.0, 3.0, 4.0)}),
    "headers": ("POST", URL, {"json": [1], "headers": {"X-A": "1", "Content-Type": "text/plain"}}),
    "params": ("GET", URL, {"params": {"q": "1"}}),
    "no params": ("GET", URL, {"params": {}}),
    "form": ("POST", URL, {"data": {"a": "1"}}),
    "both": ("POST", URL, {"content": b"x", "json": {"a": 1}}),
    "both, the other way": ("POST", URL, {"json": {"a": 1}, "content": b"x"}),
    "extensions": ("GET", URL, {"extensions": {"timeout": {"read": 1}, "own": 2}}),
    "userinfo": ("GET", "http://u:p@host.test/", {}),
    "unicode": ("GET", "http://bücher.test/ä", {}),
    "port": ("GET", "http://host.test:80/", {}),
}
CLIENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "base": {"base_url": "http://base.test/v1"},
    "headers": {"headers": [("Authorization", "Bearer x"), ("X-A", "1"), ("x-a", "2")]},
    "content type": {"headers": {"content-type": "application/x-own", "host": "virtual.test"}},
    "length": {"headers": {"Content-Length": "3"}},
    "chunked": {"headers": {"Transfer-Encoding": "chunked"}},
    "params": {"params": {"k": "v"}},
    "cookies": {"cookies": {"k": "v"}},
    "timeout": {"timeout": 60},
    "latin": {"headers": {"X-Name": "Zoë".encode("latin-1")}},
}


def _seen(request: Any) -> dict[str, Any]:
    return {
        "method": request.method,
        "url": str(request.url),
        "headers": request.headers.raw,
        "encoding": request.headers.encoding,
        "extensions": request.extensions,
        "content": request.content,
        "stream": type(request.stream),
        "read": request.read(),
        "attributes": sorted(request.__dict__),
        "pickled": pickle.loads(pickle.dumps(request)).headers.raw,
    }


@pytest.mark.parametrize("of_client", CLIENTS)
def test_a_request_is_the_stacks_own_each_time(face: Face, of_client: str) -> None:
    arguments = CLIENTS[of_client]
    native = face.keep(face.NativeClient(**arguments))
    ours = face.client(**arguments)
    for name, (method, url, options) in CALLS.items():
        if of_client != "base" and not url.startswith("http"):
            continue
        for _ in range(3):
            expected = _seen(native.build_request(method, url, **options))
            assert _seen(ours.build_request(method, url, **options)) == expected, name


def test_a_body_is_each_calls_own(face: Face) -> None:
    ours, native = face.client(), face.keep(face.NativeClient())
    for size in (1, 20, 300):
        for client in (ours, native):
            made = client.build_request("POST", URL, json=["x" * size])
            assert made.headers["content-length"] == str(size + 4)
            assert made.content == b'["' + b"x" * size + b'"]'
    first, second = (ours.build_request("POST", URL, json=1) for _ in range(2))
    first.headers["X-Changed"] = "1"
    first.extensions["changed"] = True
    assert "x-changed" not in second.headers
    assert "changed" not in second.extensions
    assert "x-changed" not in ours.build_request("POST", URL, json=1).headers


def test_what_the_client_is_told_later_holds_from_then_on(face: Face) -> None:
    ours, native = face.client(), face.keep(face.NativeClient())
    changes: list[Any] = [
        lambda client: client.headers.update({"X-New": "1"}),
        lambda client: client.headers.__setitem__("X-New", "2"),
        lambda client: setattr(client, "headers", {"X-Other": "3"}),
        lambda client: setattr(client, "timeout", 7),
        lambda client: client.cookies.set("k", "v"),
        lambda client: client.cookies.clear(),
        lambda client: setattr(client, "params", {"p": "1"}),
        lambda client: setattr(client, "params", {}),
        lambda client: setattr(client, "base_url", "http://later.test"),
    ]
    for change in changes:
        for client in (ours, native):
            change(client)
        for url in (URL, "http://host.test/x"):
            for _ in range(2):
                expected = _seen(native.build_request("POST", url, json={"a": 1}))
                assert _seen(ours.build_request("POST", url, json={"a": 1})) == expected


def test_overridden_methods_are_asked_each_time(face: Face) -> None:
    calls: list[str] = []

    class Mine(face.Client):  # type: ignore[misc, name-defined]
        def _merge_headers(self, headers: Any = None) -> Any:
            calls.append("headers")
            return super()._merge_headers(headers)

    client = face.keep(Mine())
    for _ in range(3):
        client.build_request("GET", URL)
    assert calls == ["headers"] * 3


def test_a_patched_build_request_is_called(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    made = face.native.Request("GET", "http://patched.test/")
    client = face.client()
    client.build_request("GET", URL)
    kind = face.native._client.BaseClient
    monkeypatch.setattr(kind, "build_request", lambda self, method, url, **options: made)
    assert client.build_request("GET", URL) is made


def test_errors_are_the_stacks_own(face: Face) -> None:
    client, native = face.client(), face.keep(face.NativeClient())
    client.build_request("POST", URL, json={})
    for options in ({"json": {1, 2}}, {"json": float("nan")}, {"timeout": ()}, {"content": 7}, {"unknown": 1}):
        kinds: list[type] = []
        for one in (client, native):
            with pytest.raises(Exception) as caught:
                one.build_request("POST", URL, **options)
            kinds.append(caught.type)
        assert kinds[0] is kinds[1], options


def test_templates_are_bounded_and_keep_no_body(face: Face) -> None:
    client = face.client()
    for number in range(600):
        client.build_request("POST", f"http://host.test/{number}", json="secret")
    _, _, kept = client._netkit_builder._kept
    assert 0 < len(kept) <= 256
    assert "secret" not in repr([(template.url, template.fields) for template in kept.values()])
    client.build_request("GET", "http://host.test/" + "x" * 5000)
    assert max(len(url) for _, url, _ in client._netkit_builder._kept[2]) < 5000


def test_the_signature_is_the_stacks_own(face: Face) -> None:
    assert inspect.signature(face.Client.build_request) == inspect.signature(face.NativeClient.build_request)
    with pytest.raises(TypeError):
        face.client().build_request("GET")


def test_threads_that_share_a_client_get_their_own_requests(sync_face: Face) -> None:
    client = sync_face.client(headers={"X-Turn": "0"})
    stop, wrong = threading.Event(), list[Any]()

    def build(number: int) -> None:
        body = "x" * (number + 1)
        while not stop.is_set():
            made = client.build_request("POST", f"http://host.test/{number % 4}", json=body)
            turn = made.headers.get_list("x-turn")
            if (
                made.content != b'"%s"' % body.encode()
                or made.headers["content-length"] != str(len(body) + 2)
                or made.url.path != f"/{number % 4}"
                or turn not in (["0"], ["1"])
            ):
                wrong.append((number, made.headers.raw))

    threads = [threading.Thread(target=build, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        client.headers = {"X-Turn": str(turn % 2)}
        seen = client.build_request("POST", "http://host.test/0", json=turn).headers["x-turn"]
        assert seen == str(turn % 2)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
