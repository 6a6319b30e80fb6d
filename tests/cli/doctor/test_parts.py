"""The doctor's pure parts."""

from __future__ import annotations

import tomllib

import pytest

from netkit.cli.doctor.advice import block, settings
from netkit.cli.doctor.batching import MAX_PROBES, Batching, explore, form_of, routes_of
from netkit.cli.doctor.budget import Budget, Spent
from netkit.cli.doctor.diagnosis import Diagnosis, Http1Facts, Http2Facts
from netkit.cli.doctor.frames import Frames
from netkit.cli.doctor.reply import Reply
from netkit.cli.doctor.target import parse
from netkit.config import Config
from netkit.errors import ConfigError
from netkit.plugins import registry


def test_a_budget_is_kept() -> None:
    budget = Budget(2, 60.0)
    budget.spend()
    budget.spend()
    with pytest.raises(Spent, match="all 2 requests"):
        budget.spend()
    assert budget.spent == 2
    with pytest.raises(Spent, match="time"):
        Budget(2, 0.0).deadline()


def test_frames_in_any_pieces() -> None:
    settings_frame = bytes([0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9, 0, 4, 0, 1, 0, 0])
    ack = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])
    data = bytes([0, 0, 3, 0, 1, 0, 0, 0, 1]) + b"abc"
    window = bytes([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0])
    other = bytes([0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 0, 1, 0])
    stream = settings_frame + ack + data + window + other
    for size in (1, 2, 7, len(stream)):
        frames = Frames()
        for start in range(0, len(stream), size):
            frames.feed(stream[start : start + size])
        assert (frames.settled, frames.settings, frames.window) == (True, {3: 9, 4: 65536}, 65535 + 256)


def test_a_long_frame_is_not_kept() -> None:
    frames = Frames()
    frames.feed(bytes([255, 255, 255, 4, 0, 0, 0, 0, 0]))
    for _ in range(100):
        frames.feed(bytes(1 << 16))
    assert len(frames._payload) <= 16 << 10


@pytest.mark.parametrize(
    ("path", "routes"),
    [
        ("/", ["/v1/embeddings", "/embed"]),
        ("/v1", ["/v1/embeddings"]),
        ("/api/v1/?k=1", ["/api/v1/embeddings"]),
        ("/x/embed", ["/x/embed"]),
        ("/gateway", ["/gateway/v1/embeddings", "/gateway/embed"]),
    ],
)
def test_where_embeddings_may_be(path: str, routes: list[str]) -> None:
    assert routes_of(path) == routes


def test_forms() -> None:
    assert [form_of(route) for route in ("/a/embeddings", "/embed/", "/gme", "/x")] == [
        "openai",
        "tei",
        "gme",
        "openai",
    ]


@pytest.mark.parametrize("limit", [1, 2, 5, 9, 31, 33, 127])
@pytest.mark.parametrize("words", ["batch size is invalid, it should not be larger than {}", "no"])
def test_exploring_ends_at_the_limit_or_at_the_bound(limit: int, words: str) -> None:
    sizes = []

    def post(route: str, body: bytes) -> Reply:
        size = body.count(b"netkit doctor")
        sizes.append(size)
        if size > limit:
            return Reply(400, (), words.format(limit).encode(), 0.1)
        return Reply(200, (), f"[{','.join(['[1.0]'] * size)}]".encode(), 0.1)

    found = explore("/embed", "m", post, largest=128, note=lambda reply: str(reply.status))
    assert found is not None
    assert len(sizes) <= MAX_PROBES
    assert max(sizes) <= 128
    assert found.largest <= limit < (found.refused or 129)
    if words != "no" and limit > 1:
        assert (found.largest, found.named) == (limit, limit)
    assert found.works is (limit > 1)


def test_advice_is_valid_and_made_of_what_was_found() -> None:
    diagnosis = Diagnosis(
        'https://h"x/v1',
        'https://h"x/*',
        http2=Http2Facts(3, 65535, 65535, 16384, None),
        http1=Http1Facts("HTTP/1.1", True, timeout=75.0, max_requests=100),
        idle={"HTTP/2": (5.0, "GOAWAY"), "HTTP/1.1": None},
        batching=Batching("/v1/rank", "openai", works=True, largest=16, refused=128, named=16),
        limits={"x-ratelimit-limit-requests": "9"},
    )
    (route,) = tomllib.loads(block(diagnosis))["tool"]["netkit"]["route"]
    assert route == {"match": 'https://h"x/*', **settings(diagnosis)}
    assert route["pool"] == {"idle_timeout": 4.0, "max_requests": 100}
    assert route["batch"] == {"max_items": 16, "routes": {"*/rank": "openai"}}
    assert route["http2"] == {"max_connections": 43}
    Config.from_mapping({"route": [{**route, "match": "*"}]}).check(registry())


def test_nothing_found_is_nothing_advised() -> None:
    bare = Diagnosis("http://h/", "http://h/*", http1=Http1Facts("HTTP/1.0", False))
    assert settings(bare) == {"http2": False, "pool": True}


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://h:99999", "http://h/a b", "http://h/\x1b", "http://h/ä"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError):
        parse(url, [])


def test_a_target() -> None:
    target = parse("https://me:pa%20ss@[::1]:8443/v1?key=abcdefgh", ["X-Token: s3cretvalue"])
    assert (target.authority, target.port, target.shown) == ("[::1]:8443", 8443, "https://[::1]:8443/v1")
    assert ("authorization", "Basic bWU6cGEgc3M=") in target.headers
    assert "s3cret" not in repr(target)
    assert "abcdefgh" not in repr(target)
    assert target.quote("a s3cretvalue\n\x1b[1m b \u202e abcdefgh") == "a *** [1m b ***"
    assert len(target.quote("x" * 5000)) == 160
    assert parse("example.org", []).origin == "https://example.org"
