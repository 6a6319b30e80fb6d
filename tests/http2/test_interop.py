"""Servers that nobody here wrote: nginx and nghttpd. Skipped where they are not installed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netkit.http2 import Http1Only
from tests.http2.scripted import request_to

pytestmark = pytest.mark.interop

NGINX = """
daemon off; master_process off; worker_processes 1; error_log {root}/error.log; pid {root}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests {recycle}; client_max_body_size 100m;
  client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
  uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
  server {{
    listen 127.0.0.1:{port} ssl{http2}; ssl_certificate {cert}; ssl_certificate_key {key};
    location /return {{ return 200 'fine'; }}
    location /read {{ proxy_pass http://127.0.0.1:{plain}/; }}
    location / {{ root {root}/www; }}
  }}
  server {{ listen 127.0.0.1:{plain}; location / {{ return 200 $content_length; }} }}
}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("the server did not start")


@pytest.fixture
def nginx(tmp_path: Path, certificates: Any) -> Iterator[Any]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    running = []

    def start(http2: bool = True, recycle: int = 1000) -> int:
        port = free_port()
        root = tmp_path / str(port)
        (root / "www").mkdir(parents=True)
        (root / "www" / "big").write_bytes(bytes(range(256)) * 40_000)
        config = root / "nginx.conf"
        config.write_text(
            NGINX.format(
                root=root,
                port=port,
                plain=free_port(),
                http2=" http2" if http2 else "",
                recycle=recycle,
                cert=certificates.cert_file,
                key=certificates.key_file,
            )
        )
        running.append(subprocess.Popen(["nginx", "-c", str(config)], stderr=subprocess.DEVNULL))
        wait_for(port)
        return port

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


async def get(engine: Any, port: int, path: str, context: Any, **extra: Any) -> tuple[int, bytes]:
    exchange = await engine.send(request_to(port, path, context=context, **extra))
    return exchange.status, await exchange.read()


async def test_nginx(nginx: Any, engine_for: Any, certificates: Any) -> None:
    port, engine, context = nginx(), engine_for(max_connections=2), certificates.client()
    assert await get(engine, port, "/return", context) == (200, b"fine")
    big = await get(engine, port, "/big", context)
    assert hashlib.sha256(big[1]).digest() == hashlib.sha256(bytes(range(256)) * 40_000).digest()
    # nginx answers without reading the body and resets with NO_ERROR.
    for size in (2, 3_000_000):
        body = os.urandom(size)
        assert await get(engine, port, "/return", context, method="POST", body=body) == (200, b"fine")
        assert await get(engine, port, "/read", context, method="POST", body=body) == (200, b"%d" % size)
    answers = await asyncio.gather(*(get(engine, port, "/return", context) for _ in range(500)))
    assert set(answers) == {(200, b"fine")}
    assert engine.stats().connections <= 2


async def test_nginx_recycles_its_connections(nginx: Any, engine_for: Any, certificates: Any) -> None:
    port, engine, context = nginx(recycle=20), engine_for(max_connections=2), certificates.client()
    for _ in range(10):
        answers = await asyncio.gather(
            *(get(engine, port, "/read", context, method="POST", body=b"x" * 100_000) for _ in range(16))
        )
        assert set(answers) == {(200, b"100000")}
    assert engine.stats().goaways >= 5


async def test_nginx_without_http2(nginx: Any, engine_for: Any, certificates: Any) -> None:
    port, engine, context = nginx(http2=False), engine_for(), certificates.client()
    outcomes = await asyncio.gather(*(engine.send(request_to(port, context=context)) for _ in range(20)))
    assert all(isinstance(outcome, Http1Only) for outcome in outcomes)


async def test_nghttpd(tmp_path: Path, engine_for: Any, certificates: Any) -> None:
    if shutil.which("nghttpd") is None:
        pytest.skip("nghttpd is not installed (Debian: nghttp2-server)")
    port, context = free_port(), certificates.client()
    data = os.urandom(5_000_000)
    (tmp_path / "file").write_bytes(data)
    command = ["nghttpd", "--echo-upload", "-d", str(tmp_path), "--trailer", "x-last: 1", str(port)]
    process = subprocess.Popen([*command, str(certificates.key_file), str(certificates.cert_file)])
    try:
        wait_for(port)
        engine = engine_for()
        exchange = await engine.send(request_to(port, "/file", context=context))
        assert await exchange.read() == data
        assert exchange.trailers == [(b"x-last", b"1")]
        status, body = await get(engine, port, "/echo", context, method="POST", body=data)
        assert (status, body) == (200, data)
        status, _ = await get(engine, port, "/missing", context)
        assert status == 404
    finally:
        process.terminate()
        process.wait(20)
