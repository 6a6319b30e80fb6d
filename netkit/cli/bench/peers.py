"""Who stands beside the ladder with `--peers`: the stacks as careful users have them, and other clients.

Rules of this file:

- Each keeps one client for all calls, as its documentation advises; a pool never is what limits it.
- One that is not installed is left out, and said so.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from netkit.cli.demo.ladder import Step, Workload
from netkit.cli.demo.stacks import AsyncPost, Run, SyncPost, in_tasks, in_threads

__all__ = ["PEERS", "Peer", "installed"]


class Peer(NamedTuple):
    """`needs` are the modules without which it cannot run."""

    name: str
    needs: tuple[str, ...]
    run: Run


def installed(peer: Peer) -> bool:
    """Whether all that it needs is there."""
    return all(importlib.util.find_spec(module) is not None for module in peer.needs)


def _trust(workload: Workload) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=workload.ca_file)


def _certificates(workload: Workload) -> bytes | None:
    return None if workload.ca_file is None else Path(workload.ca_file).read_bytes()


@contextmanager
def _requests(_: Step, workload: Workload) -> Iterator[SyncPost]:
    import requests
    from requests.adapters import HTTPAdapter

    with requests.Session() as session:
        session.mount("https://", HTTPAdapter(pool_maxsize=workload.concurrency))
        session.mount("http://", HTTPAdapter(pool_maxsize=workload.concurrency))
        options: dict[str, Any] = {"verify": workload.ca_file or True, "timeout": workload.timeout}
        session.headers.update(workload.headers)
        yield lambda payload: _answered(session.post(workload.url, json=payload, **options))


def _answered(response: Any) -> Any:
    response.raise_for_status()
    return response.json()


def _httpx(module: str, *, http2: bool) -> Callable[[Step, Workload], AbstractAsyncContextManager[AsyncPost]]:
    @asynccontextmanager
    async def opened(_: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
        httpx = importlib.import_module(module)
        limits = httpx.Limits(max_connections=workload.concurrency, max_keepalive_connections=workload.concurrency)
        options = {"verify": _trust(workload), "timeout": workload.timeout, "headers": workload.headers}
        async with httpx.AsyncClient(http2=http2, limits=limits, **options) as client:

            async def post(payload: dict[str, Any]) -> Any:
                return _answered(await client.post(workload.url, json=payload))

            yield post

    return opened


@asynccontextmanager
async def _aiohttp(_: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
    import aiohttp

    trust = _trust(workload)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=workload.concurrency),
        headers=workload.headers,
        timeout=aiohttp.ClientTimeout(total=workload.timeout),
        raise_for_status=True,
    ) as session:

        async def post(payload: dict[str, Any]) -> Any:
            async with session.post(workload.url, json=payload, ssl=trust) as answer:
                return await answer.json()

        yield post


@asynccontextmanager
async def _pyreqwest(_: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
    from datetime import timedelta

    builder = importlib.import_module("pyreqwest.client").ClientBuilder().timeout(timedelta(seconds=workload.timeout))
    if (certificates := _certificates(workload)) is not None:
        builder = builder.add_root_certificate_pem(certificates)
    async with builder.http2(True).build() as client:

        async def post(payload: dict[str, Any]) -> Any:
            request = client.post(workload.url).body_json(payload)
            for name, value in workload.headers.items():
                request = request.header(name, value)
            response = await request.build().send()
            if response.status >= 400:
                raise RuntimeError(f"status {response.status}")
            return json.loads(bytes(await response.bytes()))

        yield post


@asynccontextmanager
async def _pyqwest(_: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
    pyqwest = importlib.import_module("pyqwest")
    headers = {"content-type": "application/json", **workload.headers}
    async with pyqwest.HTTPTransport(tls_ca_cert=_certificates(workload)) as transport:
        client = pyqwest.Client(transport)

        async def post(payload: dict[str, Any]) -> Any:
            async with asyncio.timeout(workload.timeout):
                response = await client.post(workload.url, headers=headers, content=json.dumps(payload).encode())
            if response.status >= 400:
                raise RuntimeError(f"status {response.status}")
            return json.loads(bytes(response.content))

        yield post


PEERS: Final = (
    Peer("requests.Session", ("requests",), in_threads(_requests)),
    Peer("httpx.AsyncClient", ("httpx",), in_tasks(_httpx("httpx", http2=False))),
    Peer("httpx.AsyncClient, http2", ("httpx", "h2"), in_tasks(_httpx("httpx", http2=True))),
    Peer("httpx2.AsyncClient, http2", ("httpx2", "h2"), in_tasks(_httpx("httpx2", http2=True))),
    Peer("aiohttp.ClientSession", ("aiohttp",), in_tasks(_aiohttp)),
    Peer("pyreqwest", ("pyreqwest",), in_tasks(_pyreqwest)),
    Peer("pyqwest", ("pyqwest",), in_tasks(_pyqwest)),
)
"""In this order they stand in the table."""
