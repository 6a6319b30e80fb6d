"""Fixtures of the httpx faces' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from httpx_faces import Face, served

from netkit.testing import MockGPU


@pytest.fixture(params=["httpx-sync", "httpx-async", "httpx2-sync", "httpx2-async"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    stack, _, world = request.param.partition("-")
    found = Face(stack, world == "async")
    yield found
    found.finish()


@pytest.fixture(params=["httpx-sync", "httpx2-sync"])
def sync_face(request: pytest.FixtureRequest) -> Iterator[Face]:
    found = Face(request.param.partition("-")[0], False)
    yield found
    found.finish()


@pytest.fixture(params=["httpx-async", "httpx2-async"])
def async_face(request: pytest.FixtureRequest) -> Iterator[Face]:
    found = Face(request.param.partition("-")[0], True)
    yield found
    found.finish()


@pytest.fixture(params=["1.1", "2"])
def http(request: pytest.FixtureRequest) -> str:
    """The protocol that netkit's clients speak to `gpu` and `plain_gpu`: by ALPN, or by prior knowledge."""
    return str(request.param)


@pytest.fixture
def gpu(http: str) -> Iterator[MockGPU]:
    with MockGPU(http=served(http), launch_ms=0, per_item_ms=0) as server:
        yield server


@pytest.fixture
def plain_gpu(http: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MockGPU]:
    if http == "2":
        monkeypatch.setenv("NETKIT_HTTP2__ENABLED", "prior-knowledge")
    with MockGPU(http=served(http), tls=False, launch_ms=0, per_item_ms=0) as server:
        yield server
