"""Measures what docs/http2.md shows, and writes docs/http2/measured.json: `python -m docs.http2.measure`.

The server is the mock, with round trips of its own making: 20 ms for calls, 50 ms for the download. Each contender
meets a fresh server and has no connection when its clock starts.
"""

from __future__ import annotations

import asyncio
import json
import platform
import ssl
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import httpx2

import netkit
from netkit.testing import MockGPU

DATA: Final = Path(__file__).parent / "measured.json"
CALLS: Final = 150
STREAMS: Final = 50
"""What the server of the cold burst lets a client open on one connection."""
WINDOWS: Final = (64, 256, 1024, 8192)
"""KiB."""


async def burst(make: Any, **server: Any) -> dict[str, Any]:
    """`CALLS` calls of 100 ms at once: seconds after which each had ended, and the connections that it took."""
    async with MockGPU(gpus=CALLS, launch_ms=100, rtt_ms=20, **server) as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        async with make(trust) as client:
            ended: list[float] = []
            begin = time.perf_counter()

            async def call(number: int) -> None:
                body = {"model": "mock-embed", "input": f"text {number}"}
                answer = await client.post(f"{gpu.url}/v1/embeddings", json=body, timeout=60)
                answer.raise_for_status()
                ended.append(round(time.perf_counter() - begin, 4))

            await asyncio.gather(*map(call, range(CALLS)))
        return {"seconds": sorted(ended), "connections": gpu.stats().connections}


async def download(window: int) -> float:
    """Seconds for an answer of 3 MB over a connection that is open, 50 ms away."""
    async with MockGPU(http="2", launch_ms=1, per_item_ms=0, rtt_ms=50, dimensions=10_000, max_batch=32) as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        sizes = {"stream_window": window, "connection_window": max(window, 65536)}
        async with netkit.AsyncClient(verify=trust, plugins={"http2": sizes}, timeout=60) as client:
            url = f"{gpu.url}/v1/embeddings"
            (await client.post(url, json={"model": "mock-embed", "input": "warm"})).raise_for_status()
            begin = time.perf_counter()
            answer = await client.post(url, json={"model": "mock-embed", "input": [str(n) for n in range(32)]})
            assert len(answer.content) > 3_000_000
            return round(time.perf_counter() - begin, 4)


async def main() -> None:
    wide = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    netkits = lambda trust: netkit.httpx2.AsyncClient(verify=trust, plugins={"pool": {"acquire_timeout": 60}})  # noqa: E731
    plain = lambda trust: httpx2.AsyncClient(verify=trust, limits=wide)  # noqa: E731
    plain2 = lambda trust: httpx2.AsyncClient(verify=trust, limits=wide, http2=True)  # noqa: E731
    settings = {3: STREAMS}
    measured = {
        "about": {
            "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            "httpx2": version("httpx2"),
            "calls": CALLS,
            "streams": STREAMS,
        },
        "burst": {
            "httpx2, HTTP/1.1": await burst(plain, http="1.1"),
            "httpx2, its own HTTP/2": await burst(plain2, http="2", settings=settings),
            "netkit": await burst(netkits, http="2", settings=settings),
        },
        "download": {str(window): await download(window << 10) for window in WINDOWS},
    }
    DATA.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
