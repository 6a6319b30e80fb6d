"""CacheControl, whose distribution has no tests: its adapter is called, and what it remembers is not asked for."""

from __future__ import annotations

from email.utils import formatdate

import pytest
import requests

import netkit
from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer, Exchange

from .conftest import Seen

cachecontrol = pytest.importorskip("cachecontrol")


@pytest.fixture
def url(gpu: MockGPU) -> str:
    def fresh(exchange: Exchange) -> Answer:
        if any(name.lower() == "if-none-match" for name, _ in exchange.headers):
            return Answer(304, [("etag", '"1"'), ("cache-control", "no-cache")])
        age = "max-age=600" if exchange.query == "fresh" else "no-cache"
        return Answer.text("x", headers=[("cache-control", age), ("etag", '"1"'), ("date", formatdate(usegmt=True))])

    gpu.route("/page", fresh)
    return f"{gpu.url}/page"


def test_fresh_is_served_by_the_cache(url: str, seen: Seen) -> None:
    with cachecontrol.CacheControl(requests.Session()) as session:
        first, second = session.get(f"{url}?fresh"), session.get(f"{url}?fresh")
        assert (first.from_cache, second.from_cache, second.text) == (False, True, "x")
        assert netkit.stats(session).requests.total == 2, "both passed netkit, one reached the wire"
    seen.check(1, protocol="HTTP/1.1")


def test_stale_is_asked_for_with_its_tag(url: str, seen: Seen) -> None:
    with cachecontrol.CacheControl(requests.Session()) as session:
        assert [session.get(f"{url}?stale").text for _ in range(2)] == ["x", "x"]
    assert [request.status for request in seen.requests] == [200, 304]
    seen.check(2, protocol="HTTP/1.1")


def test_its_adapter_mounted_late(url: str, seen: Seen) -> None:
    with requests.Session() as session:
        assert session.get(f"{url}?fresh").raw.version == 20
        session.mount("https://", cachecontrol.CacheControlAdapter())
        assert [session.get(f"{url}?fresh").from_cache for _ in range(2)] == [False, True]
    assert [request.protocol for request in seen.requests] == ["HTTP/2", "HTTP/1.1"]
