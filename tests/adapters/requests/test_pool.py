"""Taking over urllib3's pools, handing them on, and letting go of them; counting from many threads."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import requests
from netkit_adapters.requests.pool import RequestsPool, _DrivenPool
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.poolmanager import pool_classes_by_scheme

import netkit
from netkit.errors import FailureKind, TransportError, Verdict
from netkit.testing import MockGPU, faults

PLAIN = {"retry": False, "http2": False}


@pytest.fixture
def server(plain_server: MockGPU) -> MockGPU:
    plain_server.script()
    plain_server.log.clear()
    return plain_server


def _native(session: requests.Session) -> dict[str, Any]:
    """What netkit could leave behind on the adapter for http://."""
    adapter: Any = session.adapters["http://"]
    return {
        "attributes": sorted(adapter.__dict__),
        "classes": adapter.poolmanager.pool_classes_by_scheme is pool_classes_by_scheme,
        "keywords": {
            name: adapter.poolmanager.connection_pool_kw.get(name) for name in ("maxsize", "socket_options")
        },
        "sizes": (adapter._pool_maxsize, adapter.poolmanager.pools._maxsize),
        "proxies": type(adapter.proxy_manager),
        "pools": _classes(adapter),
    }


def _classes(adapter: Any) -> set[type]:
    pools = adapter.poolmanager.pools
    return {type(pools[key]) for key in pools.keys()}  # noqa: SIM118 - it cannot be iterated


def test_detaching_leaves_urllib3_as_it_was(server: MockGPU) -> None:
    with requests.Session() as plain, requests.Session() as session:
        plain.get(f"{server.url}/echo")
        netkit.attach(session, plugins=PLAIN)
        session.get(f"{server.url}/echo")
        assert _native(session)["pools"] == {_DrivenPool}
        netkit.detach(session)
        assert _native(session) == _native(plain)
        assert _native(session)["pools"] == {HTTPConnectionPool}
        # The connection that netkit opened is still used.
        assert session.get(f"{server.url}/echo").ok
    assert len({request.connection for request in server.log.requests}) == 2


def test_an_answer_outlives_the_detaching(server: MockGPU) -> None:
    with netkit.attach(requests.Session(), plugins=PLAIN) as session:
        answer = session.get(f"{server.url}/stream/20?interval_ms=1", stream=True)
        netkit.detach(session)
        assert sum(line.startswith(b"data:") for line in answer.iter_lines()) >= 20
        assert session.get(f"{server.url}/echo").ok
    assert len({request.connection for request in server.log.requests}) == 1


@pytest.mark.parametrize("make", [requests.Session, netkit.Session])
def test_other_settings_go_on_with_the_same_connections_and_counts(server: MockGPU, make: Any) -> None:
    with make() as session:
        netkit.attach(session, plugins={**PLAIN, "pool": {"max_requests": 100}})
        session.get(f"{server.url}/echo")
        netkit.attach(session, plugins={**PLAIN, "pool": {"max_requests": 2}})
        for _ in range(3):
            session.get(f"{server.url}/echo")
        pool = netkit.stats(session).pool
        assert (pool.open, pool.idle, pool.opened_total) == (1, 1, 2)
    # The second policy judged the connection that the first one opened: two requests on it, then a new one.
    assert [request.connection for request in server.log.requests].count(server.log.requests[0].connection) == 2


def test_the_layers_of_the_old_settings_are_closed(server: MockGPU) -> None:
    closed: list[str] = []

    class Layer:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __call__(self, request: Any, send: Any) -> Any:
            return await send(request)

        def close(self) -> None:
            closed.append(self.name)

    for make in (requests.Session, netkit.Session):
        closed.clear()
        with make() as session:
            netkit.attach(session, plugins={**PLAIN})
            edge = netkit_edge(session)
            edge._instances["test", None] = Layer("old")  # type: ignore[assignment]
            netkit.attach(session, plugins={**PLAIN, "pool": False})
            assert closed == ["old"]
            assert netkit_edge(session) is not edge
            assert session.get(f"{server.url}/echo").ok


def netkit_edge(session: requests.Session) -> Any:
    from netkit_adapters.requests import edge_of

    return edge_of(session)


@pytest.mark.parametrize("make", [requests.Session, netkit.Session])
def test_wrong_settings_change_nothing(server: MockGPU, make: Any) -> None:
    with netkit.attach(make(), plugins=PLAIN) as session:
        session.get(f"{server.url}/echo")
        with pytest.raises(netkit.errors.ConfigError):
            netkit.attach(session, plugins={"no such plugin": True})
        assert session.get(f"{server.url}/echo").ok
        assert netkit.stats(session).requests.total == 2


def test_sizes_of_mounted_adapters_are_the_users_own(server: MockGPU) -> None:
    mine = HTTPAdapter(pool_maxsize=3)
    with netkit.Session(plugins=PLAIN) as session:
        session.mount("http://", mine)
        session.get(f"{server.url}/echo")
        netkit.attach(session, plugins={**PLAIN, "pool": {"max_connections": 50}})
        session.get(f"{server.url}/echo")
        assert mine.poolmanager.connection_pool_kw["maxsize"] == 3  # type: ignore[attr-defined]
        own: Any = session.adapters["https://"]
        assert own.poolmanager.connection_pool_kw["maxsize"] == 50


def test_counting_while_connections_come_and_go(server: MockGPU) -> None:
    driver, stop = RequestsPool(), threading.Event()
    failures: list[BaseException] = []

    class Connection:
        sock = None

    def count() -> None:
        try:
            while not stop.is_set():
                driver.counts()
        except BaseException as error:
            failures.append(error)

    def connect() -> None:
        try:
            for _ in range(2000):
                connection = Connection()
                driver.checked_out("http://h", connection)
                driver._stale.add()
        except BaseException as error:
            failures.append(error)

    counting = threading.Thread(target=count)
    counting.start()
    connecting = [threading.Thread(target=connect) for _ in range(8)]
    for thread in connecting:
        thread.start()
    for thread in connecting:
        thread.join()
    stop.set()
    counting.join()
    assert not failures
    assert driver.counts().discarded_stale == 16000
    gc.collect()
    assert not driver.connections


def test_a_failure_says_whether_its_connection_had_served_before(server: MockGPU) -> None:
    seen: list[TransportError] = []

    async def watch(request: Any, send: Any) -> Any:
        try:
            return await send(request)
        except TransportError as error:
            seen.append(error)
            raise

    with netkit.Session(plugins={**PLAIN, "pool": False}) as session:
        edge = netkit_edge(session)
        edge._default = lambda request, inner=edge._terminal: watch(request, inner)
        edge._bare = False
        server.script(faults.ResetBeforeHeaders(), faults.ResetBeforeHeaders(nth=2))
        with pytest.raises(requests.ConnectionError):
            session.post(f"{server.url}/echo")
        session.post(f"{server.url}/echo")
        with pytest.raises(requests.ConnectionError):
            session.post(f"{server.url}/echo")
        server.script()
        with pytest.raises(requests.ConnectionError):
            session.post("http://127.0.0.1:9/", data=iter([b"x"]))
    assert [error.details.get("reused") for error in seen] == [False, True, False]
    assert (seen[2].verdict, seen[2].kind) == (Verdict.NOT_SENT, FailureKind.CONNECT)
    assert seen[2].details["body_started"] is False
