"""On every stack against real servers: cases C47 and C49, credentials, streams, cancelled calls."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import netkit
from netkit.facade import edge_of
from netkit.flow import run_sync
from netkit.testing import MockGPU, conformance, faults
from netkit.testing.conformance._bench import in_threads, run
from netkit.testing.mock_gpu import Answer, Exchange, Signal

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
every_face = pytest.mark.parametrize("face", FACES, ids=str)
every_async_face = pytest.mark.parametrize("face", [face for face in FACES if face.is_async], ids=str)
RETRY = {"attempts": 2, "backoff_initial": 0.001, "backoff_max": 0.002, "budget_min_per_second": 1000.0}


@pytest.fixture(scope="module")
def three() -> Iterator[list[MockGPU]]:
    with MockGPU(tls=False, http="1.1", launch_ms=0) as a, MockGPU(tls=False, http="1.1", launch_ms=0) as b:
        with MockGPU(tls=False, http="1.1", launch_ms=0) as c:
            yield [a, b, c]


@pytest.fixture(autouse=True)
def _clear(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "three" in request.fixturenames:
        for gpu in request.getfixturevalue("three"):
            gpu.faults.clear()
            gpu.log.clear()


def opened(face: Any, gpus: list[MockGPU], *, retry: Any = RETRY, **options: Any) -> Any:
    balance = {"endpoints": [gpu.url for gpu in gpus], "url": "http://service.test", "eject_time": 60.0, **options}
    plugins = {"balance": balance, "retry": retry, "pool": True, "http2": False}
    return face.open(plugins, {})


async def many(face: Any, session: Any, calls: int, *, method: str = "POST", at_once: int = 10) -> list[Any]:
    """Statuses, or errors, of that many calls."""

    async def call() -> Any:
        try:
            path = "/v1/embeddings" if method == "POST" else "/v1/models"
            body = {"json": {"model": "m", "input": "x"}} if method == "POST" else {}
            return (await session.request(method, "http://service.test" + path, **body)).status
        except Exception as error:
            return error

    async def some(count: int) -> list[Any]:
        return [await call() for _ in range(count)]

    share = calls // at_once
    if face.is_async:
        found = await asyncio.gather(*(some(share) for _ in range(at_once)))
    else:
        found = in_threads([lambda: run_sync(some(share))] * at_once)
    return [each for part in found for each in part]


def counts(gpus: list[MockGPU]) -> list[int]:
    return [len(gpu.log.requests) for gpu in gpus]


def stats(session: Any) -> Any:
    return netkit.stats(session.native).balance


@every_face
@pytest.mark.parametrize(
    ("fault", "method"),
    [
        (faults.Status(503, times=None), "POST"),
        (faults.Status(429, headers={"retry-after": "60"}, times=None), "POST"),
        (faults.ResetBeforeHeaders(times=None), "GET"),
    ],
    ids=["503", "429", "reset"],
)
def test_a_bad_replica_costs_nobody_his_call(
    face: Any, three: list[MockGPU], fault: faults.Fault, method: str
) -> None:
    three[0].faults.push(fault)

    async def scenario() -> None:
        session = opened(face, three)
        try:
            assert await many(face, session, 300, method=method) == [200] * 300
            # fail_max, and the ten that were under way.
            assert 1 <= counts(three)[0] <= 15
            assert stats(session).endpoints[three[0].url].is_out
            assert sum(counts(three)) == 300 + counts(three)[0]
        finally:
            await session.close()

    run(face, scenario())


@every_face
def test_a_refused_connection_goes_elsewhere(face: Any, three: list[MockGPU]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}"

        async def scenario() -> None:
            session = opened(face, three[1:], endpoints=[closed, three[1].url, three[2].url])
            try:
                assert await many(face, session, 100) == [200] * 100
                assert stats(session).endpoints[closed].ejections == 1
                assert stats(session).endpoints[closed].calls <= 15
            finally:
                await session.close()

        run(face, scenario())


@every_face
def test_a_post_that_was_reset_is_not_sent_elsewhere(face: Any, three: list[MockGPU]) -> None:
    three[0].faults.push(faults.ResetBeforeHeaders())

    async def scenario() -> None:
        session = opened(face, three, policy="round-robin", retry={**RETRY, "pure": []})
        try:
            found = await many(face, session, 3, at_once=1)
            assert [each for each in found if each == 200] == [200, 200]
            assert counts(three) == [1, 1, 1]
        finally:
            await session.close()

    run(face, scenario())


@every_face
def test_it_is_back_after_its_time(face: Any, three: list[MockGPU]) -> None:
    three[0].faults.push(faults.Status(503, times=None))

    async def scenario() -> None:
        session = opened(face, three, eject_time=0.2, policy="least-pending")
        try:
            while not stats(session).ejections:
                assert set(await many(face, session, 30)) == {200}
            three[0].faults.clear()
            while stats(session).endpoints[three[0].url].is_out:
                assert set(await many(face, session, 10)) == {200}
            before = counts(three)
            assert await many(face, session, 300) == [200] * 300
            share = (counts(three)[0] - before[0]) / 300
            assert 0.2 < share < 0.5
        finally:
            await session.close()

    run(face, scenario())


@every_face
def test_the_last_one_is_never_ejected(face: Any, three: list[MockGPU]) -> None:
    for gpu in three[:2]:
        gpu.faults.push(faults.Status(500, times=None))

    async def scenario() -> None:
        session = opened(face, three[:2], retry=False)
        try:
            assert await many(face, session, 40) == [500] * 40
            assert stats(session).ejections == 1
            assert sorted(each.is_out for each in stats(session).endpoints.values()) == [False, True]
        finally:
            await session.close()

    run(face, scenario())


@every_face
def test_credentials_of_one_never_reach_another(face: Any, three: list[MockGPU]) -> None:
    three[0].faults.push(faults.Status(503, times=None))
    endpoints = [
        {"url": three[0].url, "auth": "key-0"},
        {"url": three[1].url, "headers": {"X-Api-Key": "key-1"}},
        three[2].url,
    ]

    async def scenario() -> None:
        session = opened(face, three, endpoints=endpoints)
        try:
            for _ in range(30):
                answer = await session.request(
                    "POST",
                    "http://service.test/v1/embeddings",
                    json={"model": "m", "input": "x"},
                    headers={"Authorization": "Bearer caller"},
                )
                assert answer.status == 200
        finally:
            await session.close()

    run(face, scenario())
    seen = [
        {(request.header("authorization"), request.header("x-api-key")) for request in gpu.log.requests}
        for gpu in three
    ]
    assert seen == [{("Bearer key-0", None)}, {(None, "key-1")}, {("Bearer caller", None)}]
    hosts = [{request.header("host") for request in gpu.log.requests} for gpu in three]
    assert hosts == [{gpu.url.removeprefix("http://")} for gpu in three]


@every_face
def test_other_hosts_are_left_alone(face: Any, three: list[MockGPU]) -> None:
    async def scenario() -> None:
        session = opened(face, three[1:])
        try:
            assert (await session.request("GET", three[0].url + "/v1/models")).status == 200
            assert counts(three) == [1, 0, 0]
        finally:
            await session.close()

    run(face, scenario())


@every_face
def test_a_stream_is_under_way_until_it_ends(face: Any, three: list[MockGPU]) -> None:
    gate = faults.Hold(at="head")
    three[0].faults.push(gate)

    async def scenario() -> None:
        session = opened(face, three[:1])
        try:
            async with session.stream("GET", "http://service.test/v1/models") as stream:
                assert stats(session).endpoints[three[0].url].pending == 1
                gate.release()
                while await stream.chunk():
                    pass
            replica = stats(session).endpoints[three[0].url]
            assert replica.pending == 0
            assert replica.seconds > 0
        finally:
            await session.close()

    run(face, scenario())


@every_async_face
def test_a_cancelled_call_is_no_failure_and_is_not_under_way(face: Any, three: list[MockGPU]) -> None:
    async def never(_: Exchange) -> Answer:
        await Signal().wait_async(30)
        return Answer.text("")

    three[0].route("/never", never)

    async def scenario() -> None:
        session = opened(face, three[:1])
        try:
            task = asyncio.create_task(session.request("GET", "http://service.test/never"))
            await three[0].log.wait_async(lambda log: log.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            replica = stats(session).endpoints[three[0].url]
            assert (replica.pending, replica.failures) == (0, 0)
        finally:
            await session.close()

    run(face, scenario())


@every_face
def test_affinity(face: Any, three: list[MockGPU]) -> None:
    async def scenario() -> None:
        session = opened(face, three, policy="affinity", affinity_key="body.user")
        try:
            for user in [str(number % 20) for number in range(60)]:
                body = {"model": "m", "input": "x", "user": user}
                await session.request("POST", "http://service.test/v1/embeddings", json=body)
        finally:
            await session.close()

    run(face, scenario())
    places: dict[str, set[int]] = {}
    for index, gpu in enumerate(three):
        for request in gpu.log.requests:
            places.setdefault(request.json()["user"], set()).add(index)
    assert len(places) == 20
    assert all(len(where) == 1 for where in places.values())
    assert len({index for where in places.values() for index in where}) == 3


class _Names:
    """A resolver: `service.test` has these addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        real = socket.getaddrinfo

        def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            if host not in ("service.test", b"service.test"):
                return real(host, port, *args, **kwargs)
            self.asked += 1
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        yield


@every_face
@pytest.mark.parametrize("http", ["1.1", "2"])
def test_a_new_address_gets_its_share_and_no_stream_is_cut(
    face: Any, http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _Names("127.0.0.1")
    go = Signal()

    async def two_pieces(_: Exchange) -> Answer:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await go.wait_async()
            yield b"second"

        return Answer(body=pieces())

    with MockGPU(http=http if http == "1.1" else "auto", launch_ms=0, hostnames=("service.test",)) as first:
        port = int(first.url.rpartition(":")[2])
        with MockGPU(
            http=first.options.http, launch_ms=0, host="127.0.0.2", port=port, hostnames=("service.test",)
        ) as second:
            assert first.ca_file is not None
            assert second.ca_file is not None
            url = f"https://service.test:{port}"

            async def scenario() -> None:
                plugins = {
                    "balance": {"endpoints": [url], "max_connection_age": 0.2},
                    "retry": RETRY,
                    "pool": True,
                    "http2": http == "2",
                }
                session = face.open(plugins, {"verify": _both(first.ca_file, second.ca_file)})
                try:
                    assert (await session.request("GET", url + "/v1/models")).status == 200
                    first.route("/pieces", two_pieces)
                    async with session.stream("GET", url + "/pieces") as stream:
                        names.addresses = ("127.0.0.1", "127.0.0.2")
                        while not second.log.requests:
                            assert (await session.request("GET", url + "/v1/models")).status == 200
                        go.set()
                        body = b""
                        while piece := await stream.chunk():
                            body += piece
                        assert body == b"firstsecond"
                    for _ in range(20):  # windows: on a busy machine what was measured takes a while to level out
                        before = len(second.log.requests)
                        for _ in range(100):
                            assert (await session.request("GET", url + "/v1/models")).status == 200
                        share = (len(second.log.requests) - before) / 100
                        if 0.3 <= share <= 0.7:
                            break
                    assert 0.3 <= share <= 0.7
                    assert {request.authority for request in second.log.requests} == {f"service.test:{port}"}
                    assert {each.server_name for each in second.log.connections if each.handshake_done} == {
                        "service.test"
                    }
                    names.addresses = ("127.0.0.2",)
                    while len(stats(session).endpoints) > 1:
                        assert (await session.request("GET", url + "/v1/models")).status == 200
                    gone = len(first.log.requests)
                    for _ in range(10):
                        await session.request("GET", url + "/v1/models")
                    assert len(first.log.requests) == gone
                finally:
                    await session.close()

            with names.installed(monkeypatch):
                run(face, scenario())


def _both(*files: str) -> str:
    import tempfile
    from pathlib import Path

    made = Path(tempfile.mkdtemp()) / "both.pem"
    made.write_text("".join(Path(file).read_text() for file in files))
    return str(made)


def test_threads_never_lose_count(three: list[MockGPU]) -> None:
    face = next(face for face in FACES if face.name == "requests")

    async def scenario() -> None:
        session = opened(face, three)
        try:
            assert await many(face, session, 640, at_once=64) == [200] * 640
            assert all(each.pending == 0 for each in stats(session).endpoints.values())
            assert sum(counts(three)) == 640
            assert threading.active_count() < 80
        finally:
            await session.close()

    run(face, scenario())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_ends_in_a_forked_child_began_in_its_parent(three: list[MockGPU]) -> None:
    """A body that is left there counts for nobody: neither replica has less than nothing to do."""
    import netkit.requests

    plugins: Any = {"balance": {"endpoints": [three[0].url]}, "pool": True}
    with netkit.requests.Session(plugins=plugins) as session:
        response = session.get(three[0].url + "/bytes/1000000", stream=True)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                response.close()
                held = netkit.stats(session)
                (replica,) = held.balance.endpoints.values()
                status = 0 if (replica.pending, held.requests.in_flight) == (0, 0) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        held = netkit.stats(session)
        (replica,) = held.balance.endpoints.values()
        assert (replica.pending, held.requests.in_flight) == (1, 1)
        response.close()
        assert [each.pending for each in netkit.stats(session).balance.endpoints.values()] == [0]


@pytest.mark.parametrize("face", [face for face in FACES if face.stack != "aiohttp"], ids=str)
def test_a_dropped_response_that_is_collected_while_a_replica_is_chosen(face: Any, three: list[MockGPU]) -> None:
    """The collector may run inside of the choice: it ends the response there, which tells the balancer. (aiohttp's
    own stream holds a response for as long as the server sends.)"""

    async def scenario() -> int:
        session = opened(face, three)
        dropped = [await session.open_stream("GET", "http://service.test/stream/inf?interval_ms=1")]
        layers = edge_of(session.native)._instances
        (balancer,) = (layer for (name, _), layer in layers.items() if name == "balance")
        pick = balancer._pick

        def collecting(*arguments: Any) -> Any:
            dropped.clear()
            gc.collect()
            return pick(*arguments)

        balancer._pick = collecting
        status: int = (await session.request("GET", "http://service.test/v1/models")).status
        assert not dropped
        assert [each.pending for each in netkit.stats(session.native).balance.endpoints.values()] == [0, 0, 0]
        await session.close()
        return status

    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(run(face, scenario())), daemon=True)
    thread.start()
    thread.join(60)
    assert seen == [200]
