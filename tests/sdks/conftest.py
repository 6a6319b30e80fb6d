"""SDKs with clients of their own, under `netkit.install()`, against a mock server that speaks both protocols.

Those whose package is not installed here are skipped; `make compat` runs all of them in an environment of their own.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import netkit
from netkit import Context, Layer, Request, Response, Send, hookimpl
from netkit.plugins import registry
from netkit.testing import MockGPU
from netkit.testing.mock_gpu import RequestRecord

PASS = "x-pass"


@dataclass(frozen=True)
class Options:
    """None."""


def _make(options: Options, context: Context) -> Layer:
    async def passes(request: Request, send: Send) -> Response:
        return await send(request.replace(headers=request.headers.add(PASS, "1")))

    return passes


class _Passes:
    """A layer that adds one more header each time that a request passes it."""

    @hookimpl
    def netkit_register(self, register: Any) -> None:
        register("passes", _make, options=Options, request_headers=(PASS,))


class Seen:
    """What the server saw since the test began."""

    def __init__(self, gpu: MockGPU) -> None:
        self._gpu = gpu

    @property
    def requests(self) -> list[RequestRecord]:
        return self._gpu.log.requests

    def check(self, count: int, *, protocol: str = "HTTP/2") -> None:
        """`count` requests over `protocol`, each of which passed the chain exactly once."""
        seen = self.requests
        assert [(r.protocol, sum(name.lower() == PASS for name, _ in r.headers)) for r in seen] == [
            (protocol, 1)
        ] * count


@pytest.fixture
def gpu() -> Iterator[MockGPU]:
    with MockGPU(launch_ms=0, per_item_ms=0) as server:
        yield server


@pytest.fixture
def seen(gpu: MockGPU) -> Seen:
    return Seen(gpu)


@pytest.fixture
def trust(gpu: MockGPU) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(gpu.ca_file))


@pytest.fixture(autouse=True)
def _installed(_clean: None, gpu: MockGPU, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a legacy program: certificates by the variables that the stacks read, netkit by `install`."""
    if "passes" not in registry().names():
        registry().register(_Passes(), "tests.passes")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(gpu.ca_file))
    monkeypatch.setenv("SSL_CERT_FILE", str(gpu.ca_file))
    monkeypatch.setenv("NETKIT_PASSES", "true")
    netkit.install()
    yield
    netkit.uninstall()


@pytest.fixture
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NETKIT_CONFIG", "NETKIT_DISABLE", "NETKIT_RETRY"):
        monkeypatch.delenv(name, raising=False)
