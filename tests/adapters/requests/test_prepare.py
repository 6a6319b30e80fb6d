"""Prepared requests are requests' own, field by field, whatever is asked; and whoever patches requests is asked."""

from __future__ import annotations

import io
import json as standard_json
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3.filepost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from netkit_adapters.requests import prepare as module
from netkit_adapters.requests.prepare import is_untouched
from requests.cookies import RequestsCookieJar, create_cookie
from requests.structures import CaseInsensitiveDict

import netkit


class _Catch:
    """Stands before the network: what would be sent, and with which arguments."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> Any:
        return request, kwargs


class Plain(_Catch, requests.Session):
    pass


class Ours(_Catch, netkit.Session):
    pass


def outcome(session: requests.Session, arguments: dict[str, Any]) -> Any:
    """Everything that can be seen of what `session` would send, or the exception instead."""
    try:
        prepared, sent = session.request(**arguments)  # type: ignore[misc]
    except Exception as error:
        inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
        return type(error), type(inner), str(inner)
    body = prepared.body
    if hasattr(body, "read"):
        body = body.read()
    elif isinstance(body, Iterator):
        body = list(body)
    return {
        "type": type(prepared),
        "fields": list(prepared.__dict__),
        "method": prepared.method,
        "url": prepared.url,
        "headers": (type(prepared.headers), list(prepared.headers._store.items())),
        "types": [(type(name), type(value)) for name, value in prepared.headers.items()],
        "body": (type(prepared.body), body),
        "position": prepared._body_position,
        "hooks": (type(prepared.hooks), prepared.hooks),
        "cookies": (type(prepared._cookies), sorted(map(repr, prepared._cookies))),
        "sent": [(name, type(value), value) for name, value in sent.items()],
    }


def _nothing(response: Any, **kwargs: Any) -> None:
    return None


def _signed(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
    prepared.headers["X-Signature"] = f"{prepared.method} {len(prepared.body or '')}"
    return prepared


def _jar(**values: str) -> RequestsCookieJar:
    jar = RequestsCookieJar()
    for name, value in values.items():
        jar.set_cookie(create_cookie(name, value))
    return jar


# Values that can be read once, or changed, are made for each side: strategies draw how, not what.
Made = Callable[[], Any]


def _made(*values: Any) -> st.SearchStrategy[Made]:
    return st.sampled_from([(lambda value=value: value) for value in values])


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
LATIN = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=12)
URLS = st.one_of(
    st.sampled_from(
        [
            "http://h", "https://host.test/v1/embeddings", "http://host.test:8080/a b?q=ä&x=%zz#frag", "http:///x",
            "http://bücher.example/straße", "http://user:pa%20ss@host.test/x", "http://user@host.test/", "http://*.x/",
            "http://.x/", "http://[::1]:8000/p", "http://[::1", "https://host.test?", "HTTP://HOST.test/UP", "httpx://h/",
            "http:/host", "http", "http+unix://%2Fsock/x", "mailto:a@b.test", "host.test/x", "", " http://h/ ",
            "https://h/a;b?c=d&c=e", "http://h/%7Euser/%2F", "http://h:99999/", "http://h:x/", "https://ex\u3002test/",
        ]
    ),
    TEXT.map(lambda path: f"https://host.test/{path}"),
    TEXT.map(lambda host: f"http://{host}/x"),
    st.just(b"http://bytes.test/x"),
)  # fmt: skip
METHODS = st.one_of(st.sampled_from(["GET", "get", "POST", "Put", "HEAD", "DELETE", "OPTIONS", "x-ß"]), TEXT)
PARAMS = st.one_of(
    _made(None, {}, [], "", "a=b", b"a=b", {"k": None}, {"k": ["1", "2"]}, [("a", "ü")], {"n": 3}, {1: 2}),
    st.dictionaries(TEXT, TEXT, max_size=3).map(lambda value: lambda: dict(value)),
)
NAMES = st.one_of(
    st.sampled_from(["X-Id", "accept", "Content-Type", "content-length", "Cookie", "User-Agent"]), LATIN
)
HEADERS = st.one_of(
    _made(None, {}, [], {"X": None}, {"Accept": None}, {b"X-Bytes": b"v"}, {"X": 3}, {"X": "a\nb"}, [("X", "1")]),
    _made(CaseInsensitiveDict({"X-Own": "1"}), {"Content-Length": "7"}, {"accept": "a", "ACCEPT": "b"}, {"": "x"}),
    _made({"x": " lead"}, {"X": "a\nb", "x": "fine"}, {"User-Agent": "mine", "X": b"bytes"}),
    st.dictionaries(NAMES, st.one_of(LATIN, LATIN.map(lambda text: text.encode("latin-1"))), max_size=4).map(
        lambda value: lambda: dict(value)
    ),
)
BODIES: st.SearchStrategy[Made] = st.one_of(
    _made(
        None, b"", b"bytes", "", "text ü", {}, {"a": "b", "c": ["1", "2"]}, [("a", "b")], [], bytearray(b"x"), (), 7
    ),
    st.sampled_from(
        [
            lambda: io.BytesIO(b"file"),
            lambda: io.BytesIO(b""),
            lambda: io.StringIO("text"),
            lambda: iter([b"a", b"b"]),
            lambda: (part for part in [b"x"]),
        ]
    ),
)
JSONS = st.one_of(
    _made(None, {}, [], 0, "", float("nan"), {"a": float("inf")}, {1: 2}, {"a": object()}, {("t",): 1}),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
        max_leaves=6,
    ).map(lambda value: lambda: value),
)
FILES = _made(None, None, None, {}, [], {"f": ("name.txt", b"content")}, {"f": b"raw"})
COOKIES: st.SearchStrategy[Made] = st.one_of(
    _made(None, {}, {"a": "1"}, {"b": "2", "c": "3"}),
    st.sampled_from([lambda: _jar(), lambda: _jar(j="1"), lambda: CookieJar()]),
)
AUTHS = _made(
    None, (), "", ("user", "pass"), ("üser", b"bytes"), ["not", "a tuple"], ("one",), _signed,
    requests.auth.HTTPBasicAuth("a", "b"), ("u", "p", "x"),
)  # fmt: skip
HOOKS = _made(None, {}, {"response": _nothing}, {"response": [_nothing]}, {"unknown": _nothing}, {"response": []})

SETTINGS: dict[str, st.SearchStrategy[Made]] = {
    "params": PARAMS,
    "data": BODIES,
    "json": JSONS,
    "headers": HEADERS,
    "files": FILES,
    "cookies": COOKIES,
    "auth": AUTHS,
    "hooks": HOOKS,
    "timeout": _made(None, 3, (1, 2)),
    "allow_redirects": _made(True, False),
    "proxies": _made(None, {}, {"http": "http://proxy.test"}),
    "stream": _made(None, True, False),
    "verify": _made(None, True, False, "/ca.pem"),
    "cert": _made(None, "/client.pem", ("/c.pem", "/k.pem")),
}
SESSION: dict[str, st.SearchStrategy[Made]] = {
    "headers": st.one_of(HEADERS, _made(CaseInsensitiveDict({"X-None": None, "X-Set": "1"}))),
    "params": _made({}, None, {"session": "1"}, [("a", "b")]),
    "auth": _made(None, ("session", "secret"), _signed, ""),
    "hooks": st.sampled_from([lambda: {"response": []}, lambda: {"response": [_nothing]}, lambda: None, dict]),
    "cookies": st.one_of(st.sampled_from([lambda: _jar(), lambda: _jar(s="1"), dict, lambda: {"plain": "1"}])),
    "proxies": _made({}, None, {"https": "http://proxy.test"}),
    "stream": _made(False, True, None),
    "verify": _made(True, False, "/session.pem", None),
    "cert": _made(None, "/session.pem"),
    "trust_env": _made(True, False),
}


@pytest.fixture(autouse=True)
def _same_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setattr(urllib3.filepost, "choose_boundary", lambda: "boundary")


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=METHODS,
    url=URLS,
    asked=st.fixed_dictionaries({}, optional=SETTINGS),
    own=st.fixed_dictionaries({}, optional=SESSION),
)
def test_what_would_be_sent_is_what_requests_would_send(
    method: str, url: Any, asked: dict[str, Made], own: dict[str, Made]
) -> None:
    outcomes = []
    for make in (Plain, Ours, Ours):
        session = make()
        for name, value in own.items():
            setattr(session, name, value())
        if make is Ours:
            assert is_untouched(session)
        for _ in range(2):  # from memory, too
            arguments = {name: value() for name, value in asked.items()}
            outcomes.append(outcome(session, {"method": method, "url": url, **arguments}))
    for other in outcomes[1:]:
        assert other == outcomes[0]


def test_session_headers_may_change_between_two_calls() -> None:
    session = Ours()
    session.headers = CaseInsensitiveDict({"A": "1", "B": "2"})

    def sent() -> list[tuple[str, Any]]:
        prepared, _ = session.get("http://h/")
        return list(prepared.headers.items())

    assert sent() == sent() == [("A", "1"), ("B", "2")]
    session.headers["a"] = "3"
    assert sent() == [("a", "3"), ("B", "2")]
    del session.headers["A"]
    assert sent() == [("B", "2")]
    session.headers["B"] = None
    assert sent() == []
    session.headers["B"] = "bad\n"
    with pytest.raises(requests.exceptions.InvalidHeader):
        sent()
    assert list(session.get("http://h/", headers={"b": "good"})[0].headers.items()) == [("b", "good")]
    session.headers = {"C": "4"}  # type: ignore[assignment]
    assert sent() == [("C", "4")]


def test_two_requests_share_nothing_that_can_be_changed() -> None:
    session = Ours()
    first, sent = session.post("http://h/", json={})
    first.headers["X-First"] = "1"
    first.hooks["response"].append(_nothing)
    first._cookies.set("a", "1")
    sent["proxies"]["http"] = "http://proxy.test"
    second, again = session.post("http://h/", json={})
    assert "x-first" not in second.headers
    assert "x-first" not in session.headers
    assert second.hooks == {"response": []}
    assert not list(second._cookies)
    assert again["proxies"] == {}


def test_no_url_with_credentials_is_remembered_and_memory_is_bounded() -> None:
    module._urls.clear()
    session = Ours()
    session.get("http://user:secret@host.test/x")
    assert not any("secret" in url for url in module._urls)
    session.get("http://h/" + "x" * module.MAX_URL_LENGTH)
    for number in range(2 * module.MAX_URLS):
        session.get(f"http://h/{number}")
    assert len(module._urls) <= module.MAX_URLS
    assert all(len(url) <= module.MAX_URL_LENGTH for url in module._urls)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (requests.Session, "prepare_request"),
        (requests.Session, "merge_environment_settings"),
        (requests.Session, "request"),
        (requests.models.PreparedRequest, "prepare"),
        (requests.models.PreparedRequest, "prepare_url"),
        (requests.models.PreparedRequest, "prepare_headers"),
        (requests.models.PreparedRequest, "prepare_body"),
        (requests.models.PreparedRequest, "prepare_cookies"),
        (requests.models.PreparedRequest, "prepare_auth"),
        (requests.models.PreparedRequest, "prepare_content_length"),
        (requests.models.PreparedRequest, "prepare_hooks"),
        (requests.models, "parse_url"),
        (requests.models, "requote_uri"),
        (requests.models, "check_header_validity"),
        (requests.models, "get_cookie_header"),
        (requests.sessions, "merge_setting"),
        (requests.sessions, "Request"),
        (requests.sessions, "PreparedRequest"),
        (standard_json, "dumps"),
        (standard_json.JSONEncoder, "encode"),
    ],
)
def test_whoever_patches_requests_is_called(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Ours()
    session.post("http://h/", json={"a": 1})
    calls = []
    original = getattr(owner, name)

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, spy)
    prepared, _ = session.post("http://h/", json={"a": 1}, headers={"X": "1"})
    assert calls
    assert prepared.body == b'{"a": 1}'


def test_a_patched_default_of_json_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_json.JSONEncoder, "default", lambda self, value: "patched")
    assert Ours().post("http://h/", json=object())[0].body == b'"patched"'


@pytest.mark.parametrize("name", ["prepare_request", "merge_environment_settings"])
def test_an_override_on_one_session_is_called(name: str) -> None:
    session = Ours()
    calls = []
    original = getattr(session, name)

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    setattr(session, name, spy)
    session.get("http://h/")
    assert calls == [name]


def test_a_class_between_netkits_and_requests_is_called() -> None:
    class Between(requests.Session):
        def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
            return "between", method, url

    class Mixed(Ours, Between):
        pass

    assert Mixed().get("http://h/") == ("between", "GET", "http://h/")
