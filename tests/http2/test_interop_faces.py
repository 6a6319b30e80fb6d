"""Every face against servers that nobody here wrote: what it says it spoke, and that bodies pass whole both ways.

A server that is not installed is skipped, with the package that has it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization

from netkit.flow import run_sync
from netkit.testing import MockGPU, conformance
from netkit.testing.mock_gpu import expected_bytes
from tests.http2.asgi_app import PIECE
from tests.http2.test_interop import NGINX, free_port, wait_for

pytestmark = pytest.mark.interop

BIG = PIECE * 64
UPLOAD = os.urandom(1 << 20)


class Peer(NamedTuple):
    """One server, and what it answers to what."""

    url: str
    ca_file: str
    version: str
    small: tuple[str, bytes]
    """Path and answer of a GET."""
    post: str
    answer: Callable[[bytes], bytes]
    """Path of a POST, and its answer to a body."""
    big: tuple[str, bytes]


def size_of(body: bytes) -> bytes:
    return b"%d" % len(body)


@contextmanager
def process(command: list[str], port: int, output: Path) -> Iterator[None]:
    with output.open("wb") as file:
        running = subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, cwd=Path(__file__).parents[2]
        )
    try:
        wait_for(port)
        yield
    finally:
        # granian and hypercorn have workers, which must not be left behind.
        os.killpg(running.pid, signal.SIGTERM)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait(10)


class Peers:
    """Started when first asked for."""

    def __init__(self, root: Path, certificates: Any) -> None:
        self._root = root
        self._certificates = certificates
        self._stack = ExitStack()
        self._running: dict[str, Peer] = {}
        self._ca = root / "ca.pem"
        certificates.ca.cert_pem.write_to_path(str(self._ca))
        key = serialization.load_pem_private_key(certificates.key_file.read_bytes(), password=None)
        self._key = root / "pkcs8.pem"  # which granian insists on
        self._key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def get(self, name: str) -> Peer:
        if name not in self._running:
            self._running[name] = getattr(self, f"_{name}")()
        return self._running[name]

    def close(self) -> None:
        self._stack.close()

    def _start(self, name: str, command: list[str], port: int) -> str:
        self._stack.enter_context(process(command, port, self._root / f"{name}.out"))
        return f"https://127.0.0.1:{port}"

    def _nginx(self, http2: str = " http2", version: str = "HTTP/2") -> Peer:
        _needs("nginx", "nginx-light")
        port = free_port()
        root = self._root / f"nginx{port}"
        (root / "www").mkdir(parents=True)
        (root / "www" / "big").write_bytes(BIG)
        cert, key = self._certificates.cert_file, self._certificates.key_file
        text = NGINX.format(root=root, port=port, plain=free_port(), http2=http2, recycle=1000, cert=cert, key=key)
        (root / "nginx.conf").write_text(text)
        url = self._start(f"nginx{port}", ["nginx", "-c", str(root / "nginx.conf")], port)
        return Peer(url, str(self._ca), version, ("/return", b"fine"), "/read", size_of, ("/big", BIG))

    def _nginx_http1(self) -> Peer:
        return self._nginx("", "HTTP/1.1")

    def _nghttpd(self) -> Peer:
        _needs("nghttpd", "nghttp2-server")
        port, root = free_port(), self._root / "nghttpd"
        root.mkdir()
        (root / "small").write_bytes(b"fine")
        (root / "big").write_bytes(BIG)
        command = ["nghttpd", "--echo-upload", "-d", str(root), str(port)]
        url = self._start("nghttpd", [*command, str(self._key), str(self._certificates.cert_file)], port)
        return Peer(url, str(self._ca), "HTTP/2", ("/small", b"fine"), "/echo", bytes, ("/big", BIG))

    def _asgi(self, name: str, *flags: str, port: int) -> Peer:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (PyPI: {name})")
        url = self._start(name, [sys.executable, "-m", name, "tests.http2.asgi_app:application", *flags], port)
        return Peer(url, str(self._ca), "HTTP/2", ("/", b"fine"), "/", size_of, ("/big", BIG))

    def _granian(self) -> Peer:
        port, cert = free_port(), str(self._certificates.cert_file)
        flags = ["--interface", "asgi", "--port", str(port), "--http", "auto", "--no-ws", "--no-log"]
        return self._asgi("granian", *flags, "--ssl-certificate", cert, "--ssl-keyfile", str(self._key), port=port)

    def _hypercorn(self) -> Peer:
        port, cert = free_port(), str(self._certificates.cert_file)
        flags = ["--bind", f"127.0.0.1:{port}", "--certfile", cert, "--keyfile", str(self._key)]
        return self._asgi("hypercorn", *flags, port=port)

    def _mock(self) -> Peer:
        gpu = self._stack.enter_context(MockGPU())
        big = ("/bytes/1000000?chunked=1", expected_bytes(1_000_000))
        return Peer(gpu.url, str(gpu.ca_file), "HTTP/2", ("/bytes/4", expected_bytes(4)), "/bytes/7", _seven, big)


def _seven(body: bytes) -> bytes:
    return expected_bytes(7)


def _needs(program: str, package: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (Debian: {package})")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, certificates: Any) -> Iterator[Peers]:
    started = Peers(tmp_path_factory.mktemp("peers"), certificates)
    yield started
    started.close()


@pytest.fixture(autouse=True)
def own_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


async def exercise(face: Any, peer: Peer) -> None:
    session = face.open(conformance.Subject(None).plugins("2"), {"verify": peer.ca_file})
    try:
        got = await session.request("GET", peer.url + peer.small[0])
        assert (got.status, got.http_version, got.content) == (200, peer.version, peer.small[1])
        for body in (b"{}", UPLOAD):
            got = await session.request("POST", peer.url + peer.post, content=body, timeout=20.0)
            assert (got.status, got.http_version, got.content) == (200, peer.version, peer.answer(body))

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(UPLOAD), 100_000):
                yield UPLOAD[start : start + 100_000]

        if peer.version == "HTTP/2":  # over HTTP/1.1 this is the stack's own affair
            got = await session.request("POST", peer.url + peer.post, content=pieces, timeout=20.0)
            assert (got.status, got.http_version) == (200, peer.version)
        async with session.stream("GET", peer.url + peer.big[0]) as stream:
            parts = []
            while part := await stream.chunk():
                parts.append(part)
        assert b"".join(parts) == peer.big[1]
    finally:
        await session.close()


@pytest.mark.parametrize("server", ["nginx", "nghttpd", "granian", "hypercorn", "mock", "nginx_http1"])
@pytest.mark.parametrize("face", [face for face in conformance.FACES if conformance.is_installed(face)], ids=str)
def test_a_face_and_a_server_understand_each_other(face: Any, server: str, peers: Peers) -> None:
    peer = peers.get(server)
    if face.is_async:
        asyncio.run(exercise(face, peer))
    else:
        run_sync(exercise(face, peer))
