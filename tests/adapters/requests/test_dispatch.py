"""What happens around the adapter is what requests does there: redirects, cookies, hooks, content, and patches."""

from __future__ import annotations

import io
from datetime import timedelta
from http.client import HTTPMessage
from typing import Any

import pytest
import requests
from netkit_adapters.requests.dispatch import may_dispatch
from requests.adapters import HTTPAdapter
from urllib3.response import HTTPResponse

import netkit

PAGES: dict[str, tuple[int, dict[str, str], bytes]] = {
    "/plain": (200, {}, b"plain"),
    "/cookie": (200, {"Set-Cookie": "a=1; Path=/"}, b""),
    "/once": (302, {"Location": "/plain", "Set-Cookie": "hop=1; Path=/"}, b"moved"),
    "/twice": (307, {"Location": "/once"}, b""),
    "/away": (301, {"Location": "http://elsewhere/plain"}, b""),
    "/loop": (302, {"Location": "/loop"}, b""),
    "/nowhere": (302, {}, b"no location"),
    "/missing": (404, {"Location": "/plain"}, b"missing"),
}


class Site(HTTPAdapter):
    """A site without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str | None, str, str | None, Any, dict[str, Any]]] = []

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        cookie, authorization = request.headers.get("Cookie"), request.headers.get("Authorization")
        self.seen.append((request.method, request.url or "", cookie, authorization, kwargs))
        status, headers, body = PAGES[request.path_url]
        message: Any = HTTPMessage()
        for name, value in headers.items():
            message.add_header(name, value)
        original: Any = type("Original", (), {"msg": message, "isclosed": lambda self: True})()
        raw = HTTPResponse(
            body=io.BytesIO(body), headers=headers, status=status, preload_content=False, original_response=original
        )
        return self.build_response(request, raw)


def _outcome(session: requests.Session, path: str, **arguments: Any) -> Any:
    site = Site()
    session.mount("http://", site)
    session.max_redirects = 4
    hooked: list[Any] = []

    def hook(response: requests.Response, **kwargs: Any) -> None:
        hooked.append((response.url, response.elapsed > timedelta(0), kwargs))

    try:
        response = session.post(f"http://site{path}", data=b"x", hooks={"response": hook}, **arguments)
    except requests.RequestException as error:
        return type(error), str(error), site.seen, hooked
    following = response.next
    return {
        "seen": site.seen,
        "hooked": hooked,
        "answer": (response.status_code, response.url, response._content_consumed, response.content),
        "history": [(earlier.status_code, earlier.url, earlier.content) for earlier in response.history],
        "next": following and (following.method, following.url, dict(following.headers)),
        "cookies": dict(session.cookies),
        "took time": response.elapsed > timedelta(0),
    }


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("arguments", [{}, {"allow_redirects": False}, {"stream": True}, {"auth": ("u", "p")}])
def test_the_answer_is_what_requests_makes_of_it(path: str, arguments: dict[str, Any]) -> None:
    assert _outcome(netkit.Session(), path, **arguments) == _outcome(requests.Session(), path, **arguments)


def test_a_hook_may_replace_the_answer() -> None:
    session = netkit.Session()
    session.mount("http://", Site())
    other = requests.Response()
    other.status_code = 200
    other._content = b"other"
    other._content_consumed = True
    assert session.get("http://site/plain", hooks={"response": lambda response, **kwargs: other}) is other


@pytest.mark.parametrize("make", [requests.Session, netkit.Session])
def test_only_prepared_requests_are_sent(make: Any) -> None:
    with make() as session, pytest.raises(ValueError, match="PreparedRequests"):
        session.send(requests.Request("GET", "http://site/plain"))


def test_a_bare_send_takes_the_sessions_settings() -> None:
    session, site = netkit.Session(), Site()
    session.mount("http://", site)
    session.verify, session.cert, session.stream = "/ca.pem", "/client.pem", True
    session.proxies = {"http": "http://proxy"}
    session.trust_env = False
    session.send(requests.Request("GET", "http://site/plain").prepare())
    assert site.seen[0][4] == {
        "stream": True, "verify": "/ca.pem", "cert": "/client.pem", "proxies": {"http": "http://proxy"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (requests.sessions, "dispatch_hook"),
        (requests.sessions, "extract_cookies_to_jar"),
        (requests.Session, "resolve_redirects"),
        (requests.Session, "get_redirect_target"),
    ],
)
def test_whoever_patches_the_way_of_an_answer_is_called(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, calls = netkit.Session(), []
    session.mount("http://", Site())
    request = requests.Request("GET", "http://site/plain").prepare()
    assert may_dispatch(session, request)
    original = getattr(owner, name)

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, spy)
    assert session.send(request).content == b"plain"
    assert calls


def test_an_override_on_one_session_keeps_its_say() -> None:
    session = netkit.Session()
    session.mount("http://", Site())
    session.get_redirect_target = lambda response: None  # type: ignore[method-assign]
    assert session.get("http://site/once").status_code == 302
