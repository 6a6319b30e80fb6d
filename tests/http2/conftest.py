from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from netkit.http2 import Engine, Http2Options, SyncEngine
from tests.http2.scripted import Script, Server


@pytest.fixture(params=["ngh2", "h2"])
def machine(request: pytest.FixtureRequest) -> str:
    """Each test that asks for it runs on both protocol machines."""
    return str(request.param)


class Certificates:
    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.leaf = self.ca.issue_cert("localhost", "127.0.0.1")
        self.cert_file, self.key_file = directory / "cert.pem", directory / "key.pem"
        self.cert_file.write_bytes(b"".join(blob.bytes() for blob in self.leaf.cert_chain_pems))
        self.leaf.private_key_pem.write_to_path(str(self.key_file))

    def server(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.leaf.configure_cert(context)
        context.set_alpn_protocols(list(protocols or ("h2",)))
        return context

    def client(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start scripted servers that end with the test."""
    with ExitStack() as stack:

        def start(script: Script | None = None, context: ssl.SSLContext | None = None) -> Server:
            return stack.enter_context(Server(script, context))

        yield start


@pytest.fixture
async def engine_for(machine: str) -> Any:
    """Make engines on the machine under test; they are closed with the test."""
    engines: list[Engine] = []

    def make(**options: Any) -> Engine:
        options = {"acquire_timeout": 20.0, "connect_timeout": 20.0, **options}
        engines.append(Engine(Http2Options(machine=machine, **options)))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.aclose()


@pytest.fixture
def sync_engine_for(machine: str) -> Iterator[Callable[..., SyncEngine]]:
    engines: list[SyncEngine] = []

    def make(**options: Any) -> SyncEngine:
        options = {"acquire_timeout": 20.0, "connect_timeout": 20.0, **options}
        engines.append(SyncEngine(Http2Options(machine=machine, **options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
