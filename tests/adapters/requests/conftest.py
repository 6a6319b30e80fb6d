"""A plain-HTTP and a TLS mock server for the adapter's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import netkit
from netkit.testing import MockGPU


@pytest.fixture(scope="module")
def plain_server() -> Iterator[MockGPU]:
    with MockGPU(tls=False, launch_ms=0, per_item_ms=0) as gpu:
        yield gpu


@pytest.fixture(scope="module")
def tls_server() -> Iterator[MockGPU]:
    with MockGPU(http="1.1", launch_ms=0, per_item_ms=0) as gpu:
        yield gpu


@pytest.fixture(params=["1.1", "2"])
def http(request: pytest.FixtureRequest) -> str:
    """The protocol that netkit's sessions speak to `gpu`; plain sessions always speak HTTP/1.1 to it."""
    return str(request.param)


@pytest.fixture
def gpu(plain_server: MockGPU, http: str, monkeypatch: pytest.MonkeyPatch) -> MockGPU:
    if http == "2":
        monkeypatch.setenv("NETKIT_HTTP2__ENABLED", "prior-knowledge")
    plain_server.script()
    plain_server.log.clear()
    return plain_server


@pytest.fixture
def tls_gpu(tls_server: MockGPU) -> MockGPU:
    tls_server.script()
    tls_server.log.clear()
    return tls_server


@pytest.fixture
def session() -> Iterator[netkit.Session]:
    with netkit.Session() as session:
        session.trust_env = False
        yield session
