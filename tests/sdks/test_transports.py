"""Adapters, transports and connectors of the user's, under `install`: called, one chain around each (CASES C67)."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
from requests.adapters import HTTPAdapter

import netkit
from netkit.testing import MockGPU

from .conftest import PASS, Seen

HTTPX: Any = pytest.mark.parametrize("stack", [httpx, httpx2], ids=["httpx", "httpx2"])


class Adapter(HTTPAdapter):
    """Counts its calls."""

    calls = 0

    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        type(self).calls += 1
        return super().send(*args, **kwargs)


class Legacy(requests.Session):
    """Made when `install` was not in force, or was: the module is imported once."""


@pytest.mark.parametrize("kind", ["session", "subclass"])
def test_requests_adapters_mounted_before_and_after_a_call(gpu: MockGPU, seen: Seen, kind: str) -> None:
    Adapter.calls = 0
    with requests.Session() if kind == "session" else Legacy() as session:
        session.mount(f"{gpu.url}/health", Adapter())
        assert session.get(f"{gpu.url}/health").raw.version == 11
        assert session.get(f"{gpu.url}/headers").raw.version == 20
        session.mount("https://", Adapter())
        assert session.get(f"{gpu.url}/headers").raw.version == 11
        assert netkit.stats(session).requests.total == 3
    assert Adapter.calls == 2
    assert [sum(name.lower() == PASS for name, _ in request.headers) for request in seen.requests] == [1, 1, 1]


@HTTPX
def test_httpx_transports_and_mounts(gpu: MockGPU, seen: Seen, stack: Any, trust: ssl.SSLContext) -> None:
    class Transport(stack.HTTPTransport):  # type: ignore[misc]
        calls = 0

        def handle_request(self, request: Any) -> Any:
            Transport.calls += 1
            return super().handle_request(request)

    found: list[Any] = []
    fake = stack.MockTransport(lambda request: found.append(request.headers.get_list(PASS)) or stack.Response(204))
    mounts = {"all://mounted.test": fake}
    with stack.Client(transport=Transport(verify=trust), mounts=mounts) as client:
        assert client.get(f"{gpu.url}/health").status_code == 200
        assert client.get("https://mounted.test/").status_code == 204
        assert netkit.stats(client).requests.total == 2
    assert (Transport.calls, found) == (1, [["1"]])
    seen.check(1, protocol="HTTP/1.1")


@HTTPX
async def test_httpx_transports_in_tasks(gpu: MockGPU, seen: Seen, stack: Any, trust: ssl.SSLContext) -> None:
    class Transport(stack.AsyncHTTPTransport):  # type: ignore[misc]
        calls = 0

        async def handle_async_request(self, request: Any) -> Any:
            Transport.calls += 1
            return await super().handle_async_request(request)

    async with stack.AsyncClient(transport=Transport(verify=trust)) as client:
        assert (await client.get(f"{gpu.url}/health")).status_code == 200
        assert netkit.stats(client).requests.total == 1
    assert Transport.calls == 1
    seen.check(1, protocol="HTTP/1.1")


async def test_aiohttp_connector_and_traces(gpu: MockGPU, seen: Seen, trust: ssl.SSLContext) -> None:
    class Connector(aiohttp.TCPConnector):
        calls = 0

        async def connect(self, *args: Any, **kwargs: Any) -> Any:
            Connector.calls += 1
            return await super().connect(*args, **kwargs)

    traced: list[str] = []
    trace = aiohttp.TraceConfig()

    async def started(session: Any, context: Any, params: Any) -> None:
        traced.append(params.method)

    trace.on_request_start.append(started)
    async with aiohttp.ClientSession(connector=Connector(ssl=trust), trace_configs=[trace]) as session:
        async with session.get(f"{gpu.url}/health") as answer:
            assert answer.status == 200
        assert netkit.stats(session).requests.total == 1
    assert (Connector.calls, traced) == (1, ["GET"])
    seen.check(1, protocol="HTTP/1.1")
