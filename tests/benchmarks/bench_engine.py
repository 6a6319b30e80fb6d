"""The bare engine against h2load: the same nginx, connections and streams, turn by turn.

    python tests/benchmarks/bench_engine.py [--requests 20000] [--rounds 3] [--machine ngh2|h2]

Prints requests per second, client CPU per request and the ratio to h2load (target: at least 0.5), for asyncio and
for threads behind the portal. Needs nginx and h2load (Debian: nginx-light, nghttp2-client).
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme

from netkit.http2 import ConnectSpec, Engine, H2Request, Http1Only, Http2Options, SyncEngine

CONFIG = """
daemon off; master_process off; worker_processes 1; error_log {root}/error.log; pid {root}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; http2_max_concurrent_streams 1024;
  client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
  uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
  server {{
    listen 127.0.0.1:{port} ssl http2; ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem;
    location / {{ return 200 '{{"object":"list","data":[{{"index":0,"embedding":[0.1,0.2]}}]}}'; }}
  }}
}}
"""
HEADERS = [
    (b"accept", b"*/*"),
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer 0123456789abcdef0123456789abcdef"),
    (b"user-agent", b"netkit-benchmark"),
]


@contextmanager
def nginx() -> Any:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        authority = trustme.CA()
        leaf = authority.issue_cert("localhost", "127.0.0.1")
        (root / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(root / "key.pem"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (root / "nginx.conf").write_text(CONFIG.format(root=root, port=port))
        process = subprocess.Popen(["nginx", "-c", str(root / "nginx.conf")], stderr=subprocess.DEVNULL)
        try:
            for _ in range(200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            authority.configure_trust(context)
            context.set_alpn_protocols(["h2", "http/1.1"])
            yield port, context
        finally:
            process.terminate()
            process.wait()


def h2load(port: int, connections: int, streams: int, requests: int) -> tuple[float, float]:
    """(requests per second, CPU seconds per request)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    headers = [flag for name, value in HEADERS for flag in ("-H", f"{name.decode()}: {value.decode()}")]
    command = ["h2load", "-n", str(requests), "-c", str(connections), "-m", str(streams), *headers]
    output = subprocess.run(
        [*command, f"https://127.0.0.1:{port}/v1/embeddings"], capture_output=True, text=True, check=True
    ).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = re.search(r"([\d.]+) req/s", output)
    assert found is not None, output
    return float(found.group(1)), cpu / requests


def make_request(port: int, context: ssl.SSLContext) -> Callable[[], H2Request]:
    spec = ConnectSpec("127.0.0.1", port, ssl=context)
    authority = f"127.0.0.1:{port}".encode()

    def make() -> H2Request:
        return H2Request("bench", spec, b"GET", authority, b"/v1/embeddings", HEADERS, read_timeout=30.0)

    return make


def options(connections: int, streams: int, machine: str | None) -> Http2Options:
    return Http2Options(max_connections=connections, max_streams=streams, machine=machine, acquire_timeout=None)


def with_tasks(
    make: Callable[[], H2Request], connections: int, streams: int, requests: int, machine: str | None
) -> tuple[float, float]:
    async def measure() -> tuple[float, float]:
        engine = Engine(options(connections, streams, machine))

        async def caller(count: int) -> None:
            for _ in range(count):
                exchange = await engine.send(make())
                assert not isinstance(exchange, Http1Only)
                await exchange.read()

        tasks = connections * streams
        await asyncio.gather(*(caller(5) for _ in range(tasks)))
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(caller(requests // tasks) for _ in range(tasks)))
        done = requests // tasks * tasks
        result = done / (time.perf_counter() - wall), (time.process_time() - cpu) / done
        await engine.aclose()
        return result

    return asyncio.run(measure())


def with_threads(
    make: Callable[[], H2Request], threads: int, requests: int, machine: str | None, latencies: list[float]
) -> tuple[float, float]:
    engine = SyncEngine(options(1, max(threads, 1), machine))

    def caller(count: int) -> None:
        for _ in range(count):
            started = time.perf_counter()
            exchange = engine.send(make())
            assert not isinstance(exchange, Http1Only)
            exchange.read()
            latencies.append(time.perf_counter() - started)

    caller(20)
    latencies.clear()
    workers = [threading.Thread(target=caller, args=(requests // threads,)) for _ in range(threads)]
    wall, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done = requests // threads * threads
    result = done / (time.perf_counter() - wall), (time.process_time() - cpu) / done
    engine.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--machine")
    arguments = parser.parse_args()
    missing = [tool for tool in ("nginx", "h2load") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"skipped: {' and '.join(missing)} not found (Debian: nginx-light, nghttp2-client)")
    machine, count = arguments.machine, arguments.requests
    with nginx() as (port, context):
        make = make_request(port, context)
        print(f"{'':24}{'req/s':>10}{'CPU µs':>9}   h2load: {'req/s':>8}{'CPU µs':>9}   ratio req/s, CPU")
        for connections, streams in ((1, 100), (4, 25), (1, 1)):
            size = count if streams > 1 else count // 5
            pairs = []
            for _ in range(arguments.rounds):
                peer = h2load(port, connections, streams, size)
                pairs.append((with_tasks(make, connections, streams, size, machine), peer))
            show(f"asyncio {connections}x{streams}", pairs)
        for threads in (1, 32):
            size = count // 5 if threads == 1 else count // 2
            pairs = []
            latencies: list[float] = []
            for _ in range(arguments.rounds):
                peer = h2load(port, 1, threads, size)
                pairs.append((with_threads(make, threads, size, machine, latencies), peer))
            show(f"threads {threads}", pairs)
            print(f"{'':24}P50 {statistics.median(latencies) * 1000:.3f} ms")


def show(name: str, pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    rate = statistics.median(own[0] for own, _ in pairs)
    cpu = statistics.median(own[1] for own, _ in pairs)
    peer_rate = statistics.median(peer[0] for _, peer in pairs)
    peer_cpu = statistics.median(peer[1] for _, peer in pairs)
    ratio = statistics.median(own[0] / peer[0] for own, peer in pairs)
    print(
        f"{name:24}{rate:10.0f}{cpu * 1e6:9.1f}           {peer_rate:8.0f}{peer_cpu * 1e6:9.1f}"
        f"   {ratio:.2f}, {cpu / peer_cpu:.1f}x"
    )


if __name__ == "__main__":
    main()
