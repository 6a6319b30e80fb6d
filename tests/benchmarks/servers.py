"""The servers of the benchmarks: nginx for small requests and uploads, granian for streams. Nobody here wrote them.

Rules of this file:

- Every server dies with the process that started it, however that ends.
- Each counts what it saw (requests, protocols, connections), so that a result can be checked.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["Granian", "Nginx", "Seen", "die_with_parent", "granian", "missing", "nginx"]

REPOSITORY = Path(__file__).resolve().parents[2]

ANSWER = '{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.0125,-0.25,0.5]}],"model":"m"}'
NGINX = """
daemon off; master_process off; worker_processes 1; error_log {root}/error.log; pid {root}/nginx.pid;
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
  log_format seen '$server_protocol $connection $status';
  access_log {root}/seen.log seen buffer=64k flush=100ms;
  keepalive_requests 1000000000; http2_max_concurrent_streams 128;
  open_file_cache max=10; client_body_buffer_size 2m; client_max_body_size 0;
  client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
  uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
  ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem;
  server {{
    listen 127.0.0.1:{h2} ssl http2; listen 127.0.0.1:{h1} ssl; listen 127.0.0.1:{plain};
    # `mirror` makes nginx read the body before it answers, as a server that uses it does; `return` alone resets
    # every HTTP/2 POST. Its static files refuse POST, and that refusal is the answer.
    location = /v1/embeddings {{ mirror /_read; root {root}/www; error_page 405 =200 @answer; }}
    location = /_read {{ internal; access_log off; return 204; }}
    location @answer {{ default_type application/json; return 200 '{answer}'; }}
    location = /get {{ default_type application/json; return 200 '{answer}'; }}
  }}
}}
"""


@dataclass
class Seen:
    """What a server counted during one run."""

    requests: int = 0
    protocols: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    failures: int = 0
    most_open: int = 0
    """Streams open at once; streams only."""

    def words(self) -> str:
        return "+".join(sorted(self.protocols)) or "nothing"


@dataclass
class Nginx:
    """Ports: `h2` offers HTTP/2 by ALPN, `h1` TLS without it, `plain` neither."""

    h2: int
    h1: int
    plain: int
    certificates: Path
    log: Path
    _offset: int = 0

    def url(self, kind: str) -> str:
        port: int = getattr(self, kind)
        return f"{'http' if kind == 'plain' else 'https'}://127.0.0.1:{port}/v1/embeddings"

    def begin(self) -> None:
        self._settle()
        self._offset = self.log.stat().st_size

    def seen(self, at_least: int) -> Seen:
        """What came since `begin()`; the log is written late, so wait for `at_least` requests, at most a second."""
        deadline = time.monotonic() + 1.0
        while (found := self._count()).requests < at_least and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _settle(self) -> None:
        size = -1
        while size != (size := self.log.stat().st_size):
            time.sleep(0.15)

    def _count(self) -> Seen:
        with self.log.open() as file:
            file.seek(self._offset)
            lines = [line.split() for line in file if line.endswith("\n")]
        protocols = Counter(line[0] for line in lines)
        failures = sum(line[2] != "200" for line in lines)
        return Seen(len(lines), dict(protocols), len({line[1] for line in lines}), failures)


@dataclass
class Granian:
    """An ASGI server in Rust; the application (`stream_app.py`) counts."""

    port: int
    certificates: Path

    def url(self, kind: str) -> str:
        return f"https://127.0.0.1:{self.port}/{kind}"

    def begin(self) -> None:
        self._counters()

    def seen(self, at_least: int) -> Seen:
        return Seen(**self._counters())

    def _counters(self) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        with urllib.request.urlopen(self.url("counters"), context=context, timeout=10) as answer:
            counters: dict[str, Any] = json.load(answer)
        return counters


def missing() -> dict[str, str]:
    """Servers that are not installed: name → how to get it."""
    absent = {}
    if shutil.which("nginx") is None:
        absent["nginx"] = "apt-get install nginx-light"
    if find_spec("granian") is None:
        absent["granian"] = "pip install granian"
    if shutil.which("h2load") is None:
        absent["h2load"] = "apt-get install nghttp2-client"
    return absent


def make_certificates(root: Path) -> None:
    import trustme

    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(root / "ca.pem"))
    (root / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(root / "key-traditional.pem"))
    # granian reads PKCS#8 only.
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), password=None)
    (root / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@contextmanager
def nginx(root: Path) -> Iterator[Nginx]:
    """nginx with certificates made in `root`."""
    h2, h1, plain = _free_ports(3)
    (root / "www" / "v1").mkdir(parents=True)
    (root / "www" / "v1" / "embeddings").touch()
    (root / "seen.log").touch()
    (root / "nginx.conf").write_text(NGINX.format(root=root, h2=h2, h1=h1, plain=plain, answer=ANSWER))
    with _running(["nginx", "-c", str(root / "nginx.conf")], root / "nginx.out", h2):
        yield Nginx(h2, h1, plain, root, root / "seen.log")


@contextmanager
def granian(root: Path) -> Iterator[Granian]:
    """granian with `stream_app.py`, HTTP/1.1 and HTTP/2 by ALPN."""
    (port,) = _free_ports(1)
    command = [
        sys.executable, "-m", "granian", "tests.benchmarks.stream_app:application",
        "--interface", "asgi", "--port", str(port), "--no-ws", "--http", "auto", "--loop", "uvloop",
        "--backlog", "16384", "--backpressure", "65536", "--no-log",
        "--ssl-certificate", str(root / "cert.pem"), "--ssl-keyfile", str(root / "key.pem"),
    ]  # fmt: skip
    with _running(command, root / "granian.out", port):
        yield Granian(port, root)


@contextmanager
def _running(command: list[str], output: Path, port: int) -> Iterator[None]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=file, stderr=file, start_new_session=True, preexec_fn=die_with_parent
        )
    try:
        deadline = time.monotonic() + 15
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {output.read_text(errors='replace')[-500:]}")
            time.sleep(0.02)
        yield
    finally:
        # Its whole session: granian has a worker process, which must not be left behind.
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        except ProcessLookupError:
            process.wait()


def die_with_parent() -> None:
    """In a child before it starts: let it end when the one who started it does, however that happens."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: Linux only
    except (AttributeError, OSError):
        pass


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
