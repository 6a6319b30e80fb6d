"""Events that come byte by byte, with every line ending, and characters that some take for one (CASES C62)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer

from .conftest import Seen

TEXT = '{"t":"é\u2028中\u0085😀"}'
PAYLOAD = f"data: {TEXT}\r\n\r\n: ping\n\ndata: {TEXT}\n\n:\r\rdata: [DONE]\r\n\r\n".encode()
EVENTS = [TEXT, TEXT, "[DONE]"]
HTTPX: Any = pytest.mark.parametrize("stack", [httpx, httpx2], ids=["httpx", "httpx2"])


@pytest.fixture(params=["1.1", "2"])
def http(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def gpu(http: str) -> Iterator[MockGPU]:
    async def bytewise() -> AsyncIterator[bytes]:
        for byte in PAYLOAD:
            yield bytes([byte])
            await asyncio.sleep(0.002)  # so that they leave one by one

    with MockGPU(launch_ms=0, per_item_ms=0, http=http) as server:
        server.route("/events", lambda _: Answer(200, [("content-type", "text/event-stream")], bytewise()))
        yield server


def _events(chunks: list[bytes]) -> list[str]:
    """The events of a whole stream, by the standard: lines end with CRLF, LF or CR, blank lines end events."""
    text = b"".join(chunks).decode("utf-8")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [line[6:] for line in lines if line.startswith("data: ")]


def _check(chunks: list[bytes], seen: Seen, http: str) -> None:
    assert b"".join(chunks) == PAYLOAD
    assert len(chunks) > 1, "handed on as it came"
    assert all(chunks)
    assert _events(chunks) == EVENTS
    seen.check(1, protocol=f"HTTP/{http}")


def test_requests(gpu: MockGPU, seen: Seen, http: str) -> None:
    with requests.Session() as session, session.get(f"{gpu.url}/events", stream=True) as answer:
        _check(list(answer.iter_content(None)), seen, http)


def test_requests_by_line(gpu: MockGPU, http: str) -> None:
    with requests.Session() as session, session.get(f"{gpu.url}/events", stream=True) as answer:
        lines = [line.decode() for line in answer.iter_lines() if line.startswith(b"data: ")]
    assert [line[6:] for line in lines] == EVENTS


@HTTPX
def test_httpx(gpu: MockGPU, seen: Seen, http: str, stack: Any) -> None:
    with stack.Client() as client, client.stream("GET", f"{gpu.url}/events") as answer:
        _check(list(answer.iter_raw()), seen, http)


@HTTPX
async def test_httpx_in_tasks(gpu: MockGPU, seen: Seen, http: str, stack: Any) -> None:
    async with stack.AsyncClient() as client, client.stream("GET", f"{gpu.url}/events") as answer:
        _check([chunk async for chunk in answer.aiter_raw()], seen, http)


async def test_aiohttp(gpu: MockGPU, seen: Seen, http: str, trust: ssl.SSLContext) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{gpu.url}/events", ssl=trust) as answer:
        _check([chunk async for chunk in answer.content.iter_any()], seen, http)
