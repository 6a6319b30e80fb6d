"""The connector under netkit's pool options: what is reused, what is dropped, and that no slot is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from netkit_adapters.aiohttp import attach, edge_of
from netkit_adapters.aiohttp.pool import AiohttpPool, DrivenConnector

import netkit
from netkit import Request, Response, Send
from netkit.flow import compose
from netkit.testing import MockGPU, faults

OpenSession = Callable[..., netkit.ClientSession]


@pytest.fixture
def http() -> str:
    """Connectors serve HTTP/1.1; HTTP/2 has connections of its own."""
    return "1.1"


def connections(gpu: MockGPU) -> list[int]:
    """For each request the place of its connection among all, from 1."""
    places: dict[int, int] = {}
    return [places.setdefault(record.connection, len(places) + 1) for record in gpu.log.requests]


async def get(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as answer:
        assert answer.status < 300
        await answer.read()


@pytest.mark.parametrize("path", ["/echo", "/status/204"])
@pytest.mark.parametrize("blocked", [False, True], ids=["seen by the loop", "not seen by the loop"])
async def test_a_socket_closed_at_idle_is_dropped_before_anything_is_written(
    gpu: MockGPU, open_session: OpenSession, path: str, blocked: bool
) -> None:
    session = open_session(plugins={"retry": False, "pool": True})
    gpu.script(faults.CloseIdle())
    await get(session, f"{gpu.url}{path}")
    if blocked:
        # The end arrives while the loop is busy with something else.
        gpu.log.wait(lambda log: log.connections[0].closed)
        time.sleep(0.02)
    else:
        await gpu.log.wait_async(lambda log: log.connections[0].closed)
        await asyncio.sleep(0.02)
    async with session.post(f"{gpu.url}/echo", data=b"once") as answer:
        assert answer.status == 200
    assert [each.method for each in gpu.log.requests] == ["GET", "POST"]
    assert connections(gpu) == [1, 2]
    stats = netkit.stats(session)
    assert (stats.pool.discarded_stale, stats.requests.attempts, stats.pool.opened_total) == (1, 2, 2)


async def test_no_slot_is_lost_to_cancellation(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"pool": {"max_connections": 4, "acquire_timeout": 30.0}, "retry": False})
    chance = random.Random(7)
    peak = 0

    async def one() -> None:
        nonlocal peak
        async with asyncio.timeout(chance.uniform(0, 0.03)):
            await get(session, f"{gpu.url}/delay/10")
        peak = max(peak, netkit.stats(session).pool.in_use)

    for _ in range(15):
        await asyncio.gather(*(one() for _ in range(20)), return_exceptions=True)
    stats = netkit.stats(session)
    assert (stats.pool.in_use, stats.pool.queued, stats.requests.in_flight) == (0, 0, 0)
    await asyncio.gather(*(get(session, f"{gpu.url}/delay/1") for _ in range(20)))
    stats = netkit.stats(session)
    assert (stats.pool.in_use, stats.pool.queued) == (0, 0)
    assert stats.pool.open <= 4
    assert peak <= 4


async def test_a_full_pool_is_a_native_timeout(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"pool": {"max_connections": 1, "acquire_timeout": 0.01, "max_queue": 1}})
    answer = await session.get(f"{gpu.url}/stream/inf?interval_ms=10")
    with pytest.raises(aiohttp.ConnectionTimeoutError) as caught:
        await session.get(f"{gpu.url}/echo")
    assert isinstance(caught.value, netkit.PoolTimeout)
    answer.close()
    await get(session, f"{gpu.url}/echo")


async def test_the_default_connector_does_not_queue_behind_netkits_queue(
    gpu: MockGPU, open_session: OpenSession
) -> None:
    session = open_session(plugins={"pool": {"max_connections": 150}})
    assert session.connector is not None
    assert session.connector.limit == 0
    answers = await asyncio.gather(
        *(session._request("GET", f"{gpu.url}/stream/inf?interval_ms=50") for _ in range(120))
    )
    assert netkit.stats(session).pool.in_use == 120
    for answer in answers:
        answer.close()
    plain = open_session(plugins={"pool": False})
    assert plain.connector is not None
    assert (type(plain.connector), plain.connector.limit) == (aiohttp.TCPConnector, 100)


async def test_the_latest_idle_connection_is_used_first_and_the_surplus_closed(
    gpu: MockGPU, open_session: OpenSession
) -> None:
    session = open_session(plugins={"pool": {"max_connections": 10, "max_idle": 2}})
    await asyncio.gather(*(get(session, f"{gpu.url}/delay/30") for _ in range(3)))
    assert (netkit.stats(session).pool.idle, netkit.stats(session).pool.opened_total) == (2, 3)
    gpu.log.clear()
    for path in ("/delay/5", "/delay/20"):
        await asyncio.gather(get(session, f"{gpu.url}/delay/1"), get(session, f"{gpu.url}{path}"))
    last = gpu.log.requests[-1].connection
    for _ in range(3):
        await get(session, f"{gpu.url}/echo")
    assert {each.connection for each in gpu.log.requests[-3:]} == {last}


@pytest.mark.parametrize(
    ("option", "requests"), [({"max_requests": 2}, 2), ({"max_lifetime": 0.0001}, 1), ({"idle_timeout": 0}, 1)]
)
async def test_limits_of_a_connection(
    gpu: MockGPU, open_session: OpenSession, option: dict[str, Any], requests: int
) -> None:
    session = open_session(plugins={"pool": option})
    for _ in range(4):
        await get(session, f"{gpu.url}/echo")
        await asyncio.sleep(0.001)
    assert connections(gpu) == [1 + number // requests for number in range(4)]
    assert netkit.stats(session).pool.discarded_stale == 0


async def test_idle_connections_are_swept(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"pool": {"idle_timeout": 0.01}})
    await get(session, f"{gpu.url}/echo")
    await gpu.log.wait_async(lambda log: log.connections[0].closed)
    assert netkit.stats(session).pool.open == 0


async def test_the_server_teaches_the_idle_limit(open_session: OpenSession) -> None:
    with MockGPU(tls=False, http="1.1", keep_alive_timeout=9, announce_keep_alive=True) as gpu:
        session = open_session(plugins={"pool": True})
        await get(session, f"{gpu.url}/echo")
        pool = edge_of(session).pool
        assert isinstance(pool, AiohttpPool)
        assert pool._policy is not None
        assert pool._policy.idle_limit(gpu.url) == pytest.approx(8.1)


async def test_socket_options_are_set(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"pool": {"tcp_keepalive": [33, 5, 2]}})
    await get(session, f"{gpu.url}/echo")
    assert isinstance(session.connector, DrivenConnector)
    ((protocol, _),) = next(iter(session.connector._conns.values()))
    assert protocol.transport is not None
    sock = protocol.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 33


async def test_connect_timeout_is_netkits_where_the_caller_gave_none(
    gpu: MockGPU, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float | None] = []
    original = aiohttp.TCPConnector._create_connection

    async def watched(self: Any, req: Any, traces: Any, timeout: aiohttp.ClientTimeout) -> Any:
        seen.append(timeout.sock_connect)
        return await original(self, req, traces, timeout)

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", watched)
    session = open_session(plugins={"pool": {"connect_timeout": 2.5}})
    await get(session, f"{gpu.url}/echo")
    own = open_session(plugins={"pool": {"connect_timeout": 2.5}}, timeout=aiohttp.ClientTimeout(sock_connect=7))
    await get(own, f"{gpu.url}/echo")
    assert seen == [2.5, 7]


async def test_a_callers_connector_is_described_as_left_alone(gpu: MockGPU) -> None:
    connector = aiohttp.TCPConnector()
    async with netkit.ClientSession(connector=connector) as session:
        pool = edge_of(session).pool
        assert pool is not None
        assert pool.supports == frozenset()
        assert all("made by the caller" in why for why in pool.describe().values())
    async with netkit.ClientSession() as session:
        pool = edge_of(session).pool
        assert pool is not None
        assert pool.supports <= set(pool.describe())


async def test_a_layer_can_ask_for_a_new_connection(gpu: MockGPU, open_session: OpenSession) -> None:
    async def twice(request: Request, send: Send) -> Response:
        await (await send(request)).discard()
        return await send(request.extend(new_connection=True))

    session = open_session(plugins={"retry": False, "pool": True})
    edge = edge_of(session)
    edge._default = compose([twice], edge._default)
    await get(session, f"{gpu.url}/echo")
    await get(session, f"{gpu.url}/echo")
    assert connections(gpu) == [1, 2, 2, 3]


async def test_a_failure_says_whether_its_connection_had_served_before(
    gpu: MockGPU, open_session: OpenSession
) -> None:
    seen: list[Any] = []

    async def noting(request: Request, send: Send) -> Response:
        try:
            return await send(request)
        except netkit.TransportError as failure:
            seen.append(failure.details)
            raise

    session = open_session(plugins={"retry": False, "pool": True})
    edge = edge_of(session)
    edge._default = compose([noting], edge._default)
    gpu.script(faults.CloseBeforeHeaders(), faults.Pass(), faults.CloseBeforeHeaders())
    for _ in range(3):
        with contextlib.suppress(aiohttp.ServerDisconnectedError):
            await get(session, f"{gpu.url}/echo")
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(session, "http://127.0.0.1:1/")
    assert seen == [{"reused": False}, {"reused": True}, {"body_started": False}]


async def test_replaced_settings_take_the_connector_over(gpu: MockGPU, open_session: OpenSession) -> None:
    session = open_session(plugins={"pool": {"max_requests": 1}})
    for plugins, expected in (({"pool": {"max_requests": 3}}, [1, 1, 1, 2]), ({"pool": False}, [1, 1, 1, 1])):
        connector = session.connector
        attach(session, plugins={"retry": False, **plugins})
        gpu.log.clear()
        for _ in range(4):
            await get(session, f"{gpu.url}/echo")
        assert connections(gpu) == expected
        assert session.connector is connector
    assert type(connector) is aiohttp.TCPConnector
    assert (connector.limit, connector._keepalive_timeout) == (100, 15.0)
    assert netkit.stats(session).pool.opened_total == 2
