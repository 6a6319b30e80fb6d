"""gql: one query by each of its HTTP transports."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer

from .conftest import Seen

gql = pytest.importorskip("gql")

ANSWER = {"data": {"name": "é\u2028中"}}


@pytest.fixture
def url(gpu: MockGPU) -> str:
    gpu.route("/graphql", lambda _: Answer.json(ANSWER))
    return f"{gpu.url}/graphql"


def test_requests(url: str, seen: Seen) -> None:
    from gql.transport.requests import RequestsHTTPTransport

    transport = RequestsHTTPTransport(url)
    assert gql.Client(transport=transport).execute(gql.gql("{ name }")) == ANSWER["data"]
    transport.close()
    seen.check(1)


def test_httpx(url: str, seen: Seen) -> None:
    from gql.transport.httpx import HTTPXTransport

    assert gql.Client(transport=HTTPXTransport(url)).execute(gql.gql("{ name }")) == ANSWER["data"]
    seen.check(1)


@pytest.mark.parametrize("name", ["httpx", "aiohttp"])
async def test_tasks(url: str, seen: Seen, trust: ssl.SSLContext, name: str) -> None:
    transport: Any
    if name == "httpx":
        from gql.transport.httpx import HTTPXAsyncTransport

        transport = HTTPXAsyncTransport(url)
    else:
        from gql.transport.aiohttp import AIOHTTPTransport

        transport = AIOHTTPTransport(url, ssl=trust)
    async with gql.Client(transport=transport) as session:
        assert await session.execute(gql.gql("{ name }")) == ANSWER["data"]
    seen.check(1)
