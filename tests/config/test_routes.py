"""Which URLs a route is for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import netkit.config._config as module
from netkit.config import Config
from netkit.config._routes import compile_match, location

CASES = [
    ("*", "https://any/thing", True),
    ("https://host/path*", "https://host/path", True),
    ("https://host/path*", "https://host/path/deep/er", True),
    ("https://host/path*", "https://host/Path", False),
    ("https://host/path*", "http://host/path", False),
    ("HTTPS://HOST/path", "https://host/path", True),
    ("https://host/path", "HTTPS://HosT:443/path?query=1#part", True),
    ("https://host:443/path", "https://host/path", True),
    ("http://host/path", "http://host:80/path", True),
    ("http://host/path", "http://host:443/path", False),
    ("https://host/path", "https://host:8443/path", False),
    ("https://host:*/path", "https://host:8443/path", True),
    ("https://host", "https://host", True),
    ("https://host", "https://host/", True),
    ("https://host/", "https://host", True),
    ("https://host", "https://host/x", False),
    ("https://host*", "https://host/x", True),
    ("https://host*", "https://host:1/x", True),
    ("https://host/*", "https://host.evil/x", False),
    ("https://*.host/*", "https://a.b.host/x", True),
    ("https://*.host/v1*", "https://evil/x.host/v1", False),
    ("https://*.host/v1*", "https://evil?.host/v1", False),
    ("https://host/*", "https://host@evil/x", False),
    ("https://host/*", "https://user:word@host/x", True),
    ("*://host/*/embeddings", "http://host/a/b/embeddings", True),
    ("*://host/*/embeddings", "http://host/embeddings", False),
    ("http://[::1]:8000/*", "http://[::1]:8000/v1", True),
    ("http://[::1]/*", "http://[::1]:80/v1", True),
    ("https://host/a.c", "https://host/abc", False),
    ("https://host/a[b]c", "https://host/a[b]c", True),
]


@pytest.mark.parametrize(("match", "url", "expected"), CASES)
def test_match(match: str, url: str, expected: bool) -> None:
    config = Config.from_mapping({"route": [{"match": match}]})
    assert config.matching_routes(url) == ((0,) if expected else ())
    assert config.matching_routes(url) == ((0,) if expected else ())


@pytest.mark.parametrize(
    "match", ["", "host", "/path", "://x", "https://", "https://h/?q", "https://h/#x", "https://u@h/"]
)
def test_a_match_that_can_never_match_is_refused(match: str) -> None:
    with pytest.raises(ValueError):
        compile_match(match)


def test_every_match_counts_in_the_order_of_the_file() -> None:
    config = Config.from_mapping(
        {"route": [{"match": m} for m in ("https://h/*", "https://x/*", "*", "https://h/a")]}
    )
    assert config.matching_routes("https://h/a") == (0, 2, 3)
    assert config.matching_routes("https://h/b?https://x/") == (0, 2)
    assert Config().matching_routes("https://h/a") == ()


def test_the_memory_of_locations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOCATIONS", 10)
    config = Config.from_mapping({"route": [{"match": "https://h/1*"}]})
    for number in range(100):
        url = f"https://h/{number}?{number}"
        assert config.matching_routes(url) == ((0,) if str(number).startswith("1") else ())
        assert len(config._located) <= 10


@given(st.text(alphabet="abc*/.:@-", max_size=20), st.text(alphabet="abc/.:@-", max_size=20))
def test_a_literal_location_matches_itself_and_a_star_any_end(path: str, tail: str) -> None:
    plain = path.replace("*", "")
    assert compile_match(f"https://h/{plain}").fullmatch(location(f"https://h/{plain}"))
    assert compile_match(f"https://h/{plain}*").fullmatch(location(f"https://h/{plain}{tail}"))
    assert not compile_match(f"https://h/{path}").fullmatch(location(f"https://x{tail}/h/{plain}"))
