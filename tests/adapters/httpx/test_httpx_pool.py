"""The driver of httpcore's pools (CASES C01, C02), and whose limits count."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from httpx_faces import EMBED, PATH, Face, context_of

from netkit.facade import attach, detach, edge_of, stats
from netkit.pooling import SocketSettings
from netkit.testing import MockGPU, faults


@pytest.fixture
def http() -> str:
    return "1.1"


NO_POOL = {"pool": False, "http2": False}


class Policy:
    """Answers as told, and remembers what it was told."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        self.asked: list[tuple[str, float, float, int]] = []
        self.told: list[tuple[Any, ...]] = []

    def discard_reason(self, origin: str, *, idle: float, age: float, requests: int) -> str | None:
        self.asked.append((origin, idle, age, requests))
        return self.reason

    def idle_limit(self, origin: str) -> float:
        return 60.0

    def keep_alive_hint(self, origin: str, timeout: float) -> None:
        self.told.append(("hint", origin, timeout))

    def reused(self, origin: str, idle: float) -> None:
        self.told.append(("reused", origin))

    def died(self, origin: str, idle: float) -> None:
        self.told.append(("died", origin))


def driven(face: Face, gpu: MockGPU, policy: Policy, max_idle: int = 100, **arguments: Any) -> Any:
    client = face.client(gpu, plugins=NO_POOL, **arguments)
    edge_of(client).pool.configure(SocketSettings(None, (), max_idle), policy)
    return client


# C01


def test_a_socket_found_closed_is_not_written_to(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    face.run(client.post(PATH, json=EMBED))
    gpu.close_connections()
    gpu.log.wait(lambda log: log.connections[0].closed is not None)
    assert face.run(client.post(PATH, json=EMBED)).status_code == 200
    assert len(gpu.log.requests) == 2
    found = stats(client)
    assert found.requests.attempts == 2
    assert found.pool.discarded_stale == 1
    assert (found.pool.opened_total, found.pool.open, found.pool.idle) == (2, 1, 1)


# C02


async def test_random_cancellations_leak_no_connection(async_face_in_loop: Face) -> None:
    face = async_face_in_loop
    with MockGPU(http="1.1", launch_ms=0, per_item_ms=0, rtt_ms=4) as gpu:
        client = face.client(gpu, plugins={"pool": {"max_connections": 4, "acquire_timeout": 5}})
        draw = random.Random(7)

        async def one() -> None:
            await client.post(PATH, json=EMBED)

        for _ in range(30):
            tasks = [asyncio.create_task(one()) for _ in range(12)]
            await asyncio.sleep(draw.random() * 0.03)
            for task in draw.sample(tasks, 9):
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in done} <= {type(None), asyncio.CancelledError}
        results = await asyncio.gather(*(client.post(PATH, json=EMBED) for _ in range(20)))
        assert [response.status_code for response in results] == [200] * 20
        found = stats(client)
        assert found.pool.in_use == 0
        assert found.pool.open <= 4
        assert found.requests.in_flight == 0
        await client.aclose()


@pytest.fixture(params=["httpx", "httpx2"])
def async_face_in_loop(request: pytest.FixtureRequest) -> Face:
    face = Face(request.param, False)
    face.asynchronous = True
    return face


def test_the_connection_used_last_is_used_next(sync_face: Face, gpu: MockGPU) -> None:
    face, client = sync_face, sync_face.client(gpu)
    with face.stream(client, "GET", "/v1/models") as first:
        with face.stream(client, "GET", "/v1/models") as second:
            second.read()
            with face.stream(client, "GET", "/v1/models") as third:
                third.read()
        first.read()
    assert [record.connection for record in gpu.log.requests] == [1, 2, 2]
    # 1 came back last.
    client.get("/v1/models")
    assert gpu.log.requests[-1].connection == 1
    client.get("/v1/models")
    assert gpu.log.requests[-1].connection == 1


def test_what_the_policy_is_asked_and_told(face: Face) -> None:
    with MockGPU(http="1.1", keep_alive_timeout=20, announce_keep_alive=True) as gpu:
        policy = Policy()
        client = driven(face, gpu, policy)
        for _ in range(3):
            face.run(client.post(PATH, json=EMBED))
        assert policy.told.count(("hint", gpu.url, 20.0)) == 3
        assert policy.told.count(("reused", gpu.url)) == 2
        assert {ask[0] for ask in policy.asked} == {gpu.url}
        assert max(ask[3] for ask in policy.asked) == 3
        gpu.close_connections()
        gpu.log.wait(lambda log: log.connections[0].closed is not None)
        face.run(client.post(PATH, json=EMBED))
        assert policy.told.count(("died", gpu.url)) == 1


def test_a_reused_connection_that_is_lost_is_told(face: Face, gpu: MockGPU) -> None:
    policy = Policy()
    client = face.client(gpu, plugins={**NO_POOL, "retry": False})
    edge_of(client).pool.configure(SocketSettings(None, (), 10), policy)
    face.run(client.get("/v1/models"))
    gpu.faults.push(faults.CloseBeforeHeaders())
    with pytest.raises((face.native.RemoteProtocolError, face.native.ReadError)):
        face.run(client.get("/v1/models"))
    assert ("died", gpu.url) in policy.told


def test_what_the_policy_refuses_is_closed(face: Face, gpu: MockGPU) -> None:
    policy = Policy()
    client = driven(face, gpu, policy)
    face.run(client.get("/v1/models"))
    policy.reason = "lifetime"
    face.run(client.get("/v1/models"))
    assert [record.connection for record in gpu.log.requests] == [1, 2]
    counts = edge_of(client).pool.counts()
    assert (counts.opened_total, counts.discarded_stale) == (2, 0)
    assert counts.discarded_other >= 1


def test_a_sweep_closes_idle_connections(face: Face, gpu: MockGPU) -> None:
    policy = Policy()
    client = driven(face, gpu, policy)
    face.run(client.get("/v1/models"))
    pool = edge_of(client).pool

    async def sweep() -> int:
        return pool.sweep()  # type: ignore[no-any-return]

    assert (face.run(sweep()) if face.asynchronous else pool.sweep()) == 0
    policy.reason = "idle"
    assert (face.run(sweep()) if face.asynchronous else pool.sweep()) == 1
    face.wait(gpu, lambda log: log.connections[0].closed is not None)
    assert pool.counts().open == 0


def test_more_idle_connections_than_wanted_are_closed(sync_face: Face, gpu: MockGPU) -> None:
    face, policy = sync_face, Policy()
    client = driven(face, gpu, policy, max_idle=1)
    with face.stream(client, "GET", "/v1/models") as first, face.stream(client, "GET", "/v1/models") as second:
        with face.stream(client, "GET", "/v1/models") as third:
            for response in (first, second, third):
                response.read()
    client.get("/v1/models")
    assert edge_of(client).pool.counts().open == 1


def test_limits_of_the_user_stay(face: Face, gpu: MockGPU) -> None:
    limits = face.native.Limits(max_connections=7, max_keepalive_connections=3, keepalive_expiry=33)
    policy = Policy()
    client = driven(face, gpu, policy, limits=limits)
    face.run(client.get("/v1/models"))
    pool = client._transport._pool
    assert (pool._max_connections, pool._max_keepalive_connections, pool._keepalive_expiry) == (7, 3, 33)
    assert {ask[1] for ask in policy.asked} == {0.0}
    described = edge_of(client).pool.describe()
    assert "wins" in described["idle_timeout"]
    assert "wins" in described["max_idle"]
    policy.reason = "lifetime"
    face.run(client.get("/v1/models"))
    assert len(gpu.log.connections) == 2


def test_without_limits_of_the_user_the_plugin_rules(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    face.run(client.get("/v1/models"))
    assert client._transport._pool._max_connections > 10**6
    assert client._transport._pool._keepalive_expiry is None


def test_transports_that_were_passed_in_are_only_counted(face: Face, gpu: MockGPU) -> None:

    transport = face.HTTPTransport(verify=context_of(gpu))
    client = face.client(transport=transport, base_url=gpu.url)
    face.run(client.get("/v1/models"))
    assert transport._pool._keepalive_expiry == 5.0
    assert "create_connection" not in transport._pool.__dict__
    assert stats(client).pool.idle == 1
    assert "passed in" in edge_of(client).pool.describe()["max_lifetime"]


def test_other_transports_are_left_alone_and_said_so(face: Face) -> None:
    client = face.client(transport=face.transport(lambda request: face.native.Response(200)))
    face.run(client.get("http://host/"))
    assert "not httpx" in edge_of(client).pool.describe()["max_lifetime"]


def test_detach_gives_the_pool_back(face: Face, gpu: MockGPU) -> None:

    context = context_of(gpu)
    client = face.keep(face.NativeClient(verify=context, base_url=gpu.url))
    pool = client._transport._pool
    before = dict(pool.__dict__)
    attach(client)
    face.run(client.get("/v1/models"))
    assert stats(client).pool.opened_total == 1
    detach(client)
    face.run(client.get("/v1/models"))
    after = dict(pool.__dict__)
    for name in ("_connections", "_requests"):
        before.pop(name), after.pop(name)
    assert after == before
    # An AsyncClient asked for HTTP/2 first.
    assert len(gpu.log.connections) == (2 if face.asynchronous else 1)


def test_connections_show_as_httpcores_own(face: Face, gpu: MockGPU) -> None:
    client = face.client(gpu)
    face.run(client.get("/v1/models"))
    (connection,) = client._transport._pool.connections
    name = "AsyncHTTPConnection" if face.asynchronous else "HTTPConnection"
    assert repr(connection).startswith(f"<{name} ['{gpu.url}', HTTP/1.1, IDLE")
    assert connection.is_idle()


def test_socket_options_reach_the_socket(sync_face: Face, gpu: MockGPU) -> None:
    import socket

    client = sync_face.client(gpu)
    with sync_face.stream(client, "GET", "/v1/models") as response:
        sock = response.extensions["network_stream"].get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
