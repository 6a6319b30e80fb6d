"""A plain-HTTP and a TLS mock server for the adapter's tests, and sessions with layers of the test's own."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from netkit_adapters.aiohttp import edge_of

import netkit
from netkit.flow import Layer, compose
from netkit.testing import MockGPU

QUIET: dict[str, Any] = {"pool": False, "retry": False}
"""No plugin at all: the bare chain."""

OpenSession = Callable[..., netkit.ClientSession]


@pytest.fixture(scope="module")
def plain_server() -> Iterator[MockGPU]:
    with MockGPU(tls=False, launch_ms=0, per_item_ms=0, token_ms=0) as gpu:
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
def left(http: str) -> str:
    """How the server saw a caller leave: on HTTP/2 only that request's stream ends."""
    return "client_reset" if http == "2" else "client_left"


@pytest.fixture
def gpu(plain_server: MockGPU, http: str, monkeypatch: pytest.MonkeyPatch) -> MockGPU:
    if http == "2":
        monkeypatch.setenv("NETKIT_HTTP2__ENABLED", "prior-knowledge")
    plain_server.script()
    plain_server.close_connections(idle_only=False)
    plain_server.log.clear()
    return plain_server


@pytest.fixture
def tls_gpu(tls_server: MockGPU) -> MockGPU:
    tls_server.script()
    tls_server.close_connections(idle_only=False)
    tls_server.log.clear()
    return tls_server


@pytest.fixture
def context(tls_gpu: MockGPU) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=tls_gpu.ca_file)


@pytest_asyncio.fixture
async def open_session() -> AsyncIterator[OpenSession]:
    """`open_session(*layers, plugins=…, **native)`: a session whose chain is exactly these layers, if any."""
    opened: list[netkit.ClientSession] = []

    def opener(*layers: Layer, **arguments: Any) -> netkit.ClientSession:
        if layers:
            arguments.setdefault("plugins", QUIET)
        session = netkit.ClientSession(**arguments)
        if layers:
            edge = edge_of(session)
            transports = [layer for (name, _), layer in edge._instances.items() if name == "http2"]
            edge._default = compose([*layers, *transports], edge._terminal)
        opened.append(session)
        return session

    yield opener
    for session in opened:
        await session.close()
