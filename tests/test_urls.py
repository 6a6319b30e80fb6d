"""What the text of a URL says: parts, and one text for one origin."""

from __future__ import annotations

import pytest

from netkit import Headers, Request
from netkit.identity import Identities
from netkit.urls import origin_of, split_url


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://host/path?q#f", ("https", "", "host", "/path?q")),
        ("HTTPS://User:Pass@HOST:443/P", ("https", "User:Pass", "host", "/P")),
        ("http://host:443", ("http", "", "host:443", "")),
        ("http://host:80?x=a@b", ("http", "", "host", "?x=a@b")),
        ("http://host/a@b", ("http", "", "host", "/a@b")),
        ("http://host?a=/x@y", ("http", "", "host", "?a=/x@y")),
        ("http://host#@elsewhere", ("http", "", "host", "")),
        ("https://[::1]:443/", ("https", "", "[::1]", "/")),
        ("https://a@b@host/", ("https", "a@b", "host", "/")),
        ("unix://host:80", ("unix", "", "host:80", "")),
        ("nonsense", ("nonsense", "", "", "")),
        ("", ("", "", "", "")),
    ],
)
def test_parts(url: str, parts: tuple[str, str, str, str]) -> None:
    assert split_url(url) == parts


def test_one_origin_has_one_text() -> None:
    spellings = ["https://host", "https://HOST:443/", "HTTPS://u:p@host?x=@y", "https://host#@other"]
    assert {origin_of(url) for url in spellings} == {"https://host"}
    assert origin_of("http://host:443") != origin_of("https://host:443")


def _key(url: str, *, per_credential: bool) -> bytes:
    identities = Identities(b"secret", per_credential=per_credential)
    return identities.key(Request("GET", url, Headers()), None)


def test_an_at_sign_in_a_query_hides_no_host() -> None:
    assert _key("https://one?x=@z", per_credential=False) != _key("https://two?x=@z", per_credential=False)
    assert _key("https://u:p@one?x", per_credential=False) == _key("https://one?x", per_credential=False)
    assert _key("https://u:p@one?x", per_credential=True) != _key("https://one?x", per_credential=True)


def test_what_a_query_asks_is_no_credential() -> None:
    identities = Identities(b"secret")
    asking = [identities.credential(Request("GET", f"https://one?x={who}@z", Headers())) for who in "ab"]
    assert asking[0] == asking[1]
    named = [identities.credential(Request("GET", f"https://{who}@one?x", Headers())) for who in "ab"]
    assert named[0] != named[1]


def test_a_request_shows_neither_credentials_nor_query_nor_fragment() -> None:
    request = Request("GET", "https://user:secret@host/path?key=secret#token=secret", Headers())
    assert repr(request) == "<Request GET https://host/path>"
