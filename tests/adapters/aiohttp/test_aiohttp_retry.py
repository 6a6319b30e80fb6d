"""Retries on aiohttp: what may be sent again is, and the server sees exactly the attempts that are reported."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

import netkit
from netkit.testing import MockGPU, faults

OpenSession = Callable[..., netkit.ClientSession]
TRACKED = pytest.mark.skipif(not hasattr(aiohttp, "UploadTracker"), reason="aiohttp 3.14.4 brought it")
FAST: dict[str, Any] = {"attempts": 3, "backoff_initial": 0.001, "backoff_max": 0.002}


async def warm_up(session: aiohttp.ClientSession, gpu: MockGPU) -> None:
    async with session.get(f"{gpu.url}/echo") as answer:
        await answer.read()
    gpu.log.clear()


@pytest.mark.parametrize(
    ("how", "expected"), [("fin", aiohttp.ServerDisconnectedError), ("reset", aiohttp.ClientOSError)]
)
async def test_a_reset_after_the_whole_request(
    gpu: MockGPU, http: str, open_session: OpenSession, how: Any, expected: Any
) -> None:
    if http == "2":
        # A server that closes while frames of ours are on their way to it answers those with a reset.
        expected = (expected, aiohttp.ClientOSError)
    for method, extra, plugins, sent in (
        ("GET", {}, {}, 2),
        ("POST", {}, {}, 1),
        ("POST", {"headers": {"Idempotency-Key": "k"}}, {}, 2),
        ("POST", {}, {"pure": ["/echo"]}, 2),
        ("POST", {}, {"idempotency_key": True}, 2),
    ):
        session = open_session(plugins={"retry": {**FAST, **plugins}})
        gpu.script()
        await warm_up(session, gpu)
        gpu.script(faults.CloseBeforeHeaders(how=how))
        if sent == 1:
            with pytest.raises(expected):
                await session.request(method, f"{gpu.url}/echo", data=b"once", **extra)
        else:
            async with session.request(method, f"{gpu.url}/echo", data=b"twice", **extra) as answer:
                assert answer.status == 200
        assert len(gpu.log.requests) == sent
        assert len({(each.body_sha256, each.header("idempotency-key")) for each in gpu.log.requests}) == 1
        assert netkit.stats(session).requests.attempts == 1 + sent


async def test_a_refused_connect_is_tried_again_for_any_method(open_session: OpenSession) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    session = open_session(plugins={"retry": FAST})
    with pytest.raises(aiohttp.ClientConnectorError):
        await session.post(f"http://127.0.0.1:{port}/", data=b"x")
    assert netkit.stats(session).requests.attempts == 3


@pytest.mark.parametrize(("plugins", "sent"), [({"retry": False}, 1), ({"retry": FAST}, 3)])
async def test_the_server_sees_exactly_the_attempts(
    gpu: MockGPU, open_session: OpenSession, plugins: dict[str, Any], sent: int
) -> None:
    session = open_session(plugins=plugins)
    await warm_up(session, gpu)
    gpu.script(faults.CloseBeforeHeaders(times=None))
    with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        await session.get(f"{gpu.url}/echo")
    assert len(gpu.log.requests) == sent
    assert netkit.stats(session).requests.attempts == 1 + sent


async def test_the_users_own_switch_forbids_every_replay(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"retry": FAST})
    session._retry_connection = False
    gpu.script(faults.CloseBeforeHeaders(times=None))
    with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        await session.get(f"{gpu.url}/echo")
    assert len(gpu.log.requests) == 1


async def test_a_status_is_retried_with_the_same_bytes_and_the_last_answer_is_given(
    gpu: MockGPU, open_session: OpenSession
) -> None:
    session = open_session(plugins={"retry": {**FAST, "statuses": [503]}})
    gpu.script(*faults.statuses(503, 503, 503, 503))
    async with session.post(f"{gpu.url}/echo", json={"a": 1}) as answer:
        assert answer.status == 503
        assert b"scripted" in await answer.read()
    assert len(gpu.log.requests) == 3
    assert len({each.body_sha256 for each in gpu.log.requests}) == 1
    stats = netkit.stats(session)
    assert (stats.requests.total, stats.requests.attempts, stats.pool.in_use) == (1, 3, 0)
    assert len(gpu.log.connections) == 1


async def test_a_form_with_a_file_survives_a_retry_and_a_redirect(gpu: MockGPU, open_session: OpenSession) -> None:
    upload = io.BytesIO(b"-" * 100 + b"payload" * 5000)
    upload.seek(100)
    form = aiohttp.FormData()
    form.add_field("file", upload, filename="a")
    form.add_field("name", "value")
    session = open_session(plugins={"retry": {**FAST, "statuses": [503]}})
    gpu.script(*faults.statuses(503))
    async with session.post(f"{gpu.url}/redirect-to?url=/echo&status=307", data=form) as answer:
        assert answer.status == 200
    assert [each.path for each in gpu.log.requests] == ["/redirect-to", "/redirect-to", "/echo"]
    assert len({(each.body_sha256, each.body_size) for each in gpu.log.requests}) == 1
    assert gpu.log.requests[0].body is not None
    assert gpu.log.requests[0].body.count(b"Content-Disposition") == 2
    assert b"--payload" not in gpu.log.requests[0].body


async def test_a_generator_is_not_retried(gpu: MockGPU, open_session: OpenSession) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"once"

    session = open_session(plugins={"retry": {**FAST, "statuses": [503]}})
    gpu.script(*faults.statuses(503))
    async with session.put(f"{gpu.url}/echo", data=chunks()) as answer:
        assert answer.status == 503
    assert len(gpu.log.requests) == 1


async def test_nothing_is_sent_once_the_total_is_spent(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"retry": FAST})
    gpu.script(faults.BlackHole(times=None))
    with pytest.raises(TimeoutError):
        await session.get(f"{gpu.url}/echo", timeout=aiohttp.ClientTimeout(total=0.1))
    assert len(gpu.log.requests) == 1


async def test_raise_for_status_sees_only_the_last_answer(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"retry": {**FAST, "statuses": [503]}}, raise_for_status=True)
    gpu.script(*faults.statuses(503, 503))
    async with session.get(f"{gpu.url}/echo") as answer:
        assert answer.status == 200
    gpu.script(*faults.statuses(503, 503, 503))
    with pytest.raises(aiohttp.ClientResponseError, match="503"):
        await session.get(f"{gpu.url}/echo")


async def test_a_generator_that_was_not_started_is_sent_after_a_refused_connect(open_session: OpenSession) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"still whole"

    with MockGPU(tls=False, http="1.1") as gpu:
        session = open_session(plugins={"retry": {**FAST, "attempts": 50}})
        gpu.pause_listening()
        call = asyncio.ensure_future(session._request("POST", f"{gpu.url}/echo", data=chunks()))
        while netkit.stats(session).requests.attempts < 2:
            await asyncio.sleep(0)
        gpu.resume_listening()
        async with await call as answer:
            assert (await answer.json())["body"] == "still whole"
        assert len(gpu.log.requests) == 1


@TRACKED
async def test_a_tracked_upload_is_never_sent_again(gpu: MockGPU, open_session: OpenSession) -> None:
    # Its caller counts the attempts.
    session = open_session(plugins={"retry": {**FAST, "pure": ["*"]}})
    for fault in (faults.Status(status=503, times=None), faults.CloseBeforeHeaders(times=None)):
        gpu.script(fault)
        gpu.log.clear()
        tracker = aiohttp.UploadTracker()
        try:
            async with session.put(f"{gpu.url}/echo", data=b"watched", upload_tracker=tracker) as answer:
                assert answer.status == 503
        except aiohttp.ClientConnectionError:
            pass
        assert (tracker.attempts, len(gpu.log.requests)) == (1, 1)


@TRACKED
async def test_a_tracked_upload_that_was_not_sent_is_not_tried_again(open_session: OpenSession) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    tracker = aiohttp.UploadTracker()
    with pytest.raises(aiohttp.ClientConnectorError):
        await open_session(plugins={"retry": FAST}).put(f"http://127.0.0.1:{port}/", upload_tracker=tracker)
    assert tracker.attempts == 1


@pytest.mark.parametrize(
    "error", [aiohttp.ServerDisconnectedError(), aiohttp.ClientOSError(), aiohttp.ConnectionTimeoutError()], ids=repr
)
async def test_a_stand_in_for_connect_is_called_once(
    gpu: MockGPU, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls: list[Any] = []

    async def connect(*arguments: Any, **_: Any) -> None:
        calls.append(arguments)
        raise error

    session = open_session(plugins={"retry": FAST})
    monkeypatch.setattr(session.connector, "connect", connect)
    with pytest.raises(type(error)):
        await session.get(f"{gpu.url}/echo")
    assert len(calls) == 1
    assert gpu.log.connections == []


@pytest.mark.parametrize(("status", "attempts"), [(403, 1), (407, 1), (503, 3)])
async def test_a_proxy_that_refuses_the_tunnel_counts_as_an_answer(
    open_session: OpenSession, status: int, attempts: int
) -> None:
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    session = open_session(plugins={"retry": FAST})
    with pytest.raises(aiohttp.ClientHttpProxyError) as raised:
        await session.get("https://origin.invalid/", proxy=proxy)
    server.close()
    assert raised.value.status == status
    assert len(heads) == attempts == netkit.stats(session).requests.attempts
