"""One session over several event loops, and over a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from typing import Any

import aiohttp
import pytest

import netkit
from netkit.testing import MockGPU

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


async def echo(session: aiohttp.ClientSession, gpu: MockGPU, text: str) -> None:
    async with session.post(f"{gpu.url}/echo", data=text) as answer:
        assert (await answer.json())["body"] == text


def test_five_runs_of_one_session_made_outside_of_any_loop(gpu: MockGPU) -> None:
    session = netkit.ClientSession(headers={"X-Kept": "1"})
    for number in range(5):

        async def run(number: int = number) -> None:
            await echo(session, gpu, f"{number}a")
            await echo(session, gpu, f"{number}b")
            assert not session.closed

        asyncio.run(run())
        gc.collect()
    assert len(gpu.log.connections) == 5
    assert {each.header("x-kept") for each in gpu.log.requests} == {"1"}
    assert netkit.stats(session).requests.total == 10
    asyncio.run(session.close())
    gpu.log.wait(lambda log: all(each.closed for each in log.connections))
    assert session.closed


def test_a_session_made_in_one_loop_moves_on_to_the_next(gpu: MockGPU, tls_gpu: MockGPU) -> None:
    made: list[netkit.ClientSession] = []

    async def first() -> None:
        made.append(netkit.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)))
        await echo(made[0], gpu, "first")
        async with made[0].get(f"{gpu.url}/cookies/set?a=b") as answer:
            await answer.read()
        async with made[0].get(f"{tls_gpu.url}/echo", ssl=False) as answer:
            await answer.read()

    async def second() -> None:
        (session,) = made
        async with session.get(f"{gpu.url}/cookies") as answer:
            assert (await answer.json())["cookies"] == {"a": "b"}
        async with session.get(f"{tls_gpu.url}/echo", ssl=False) as answer:
            await answer.read()
        await session.close()

    asyncio.run(first())
    asyncio.run(second())
    gc.collect()
    gpu.log.wait(lambda log: all(each.closed for each in log.connections))
    tls_gpu.log.wait(lambda log: all(each.closed for each in log.connections))


def test_four_loops_at_once(gpu: MockGPU) -> None:
    session = netkit.ClientSession(plugins={"pool": {"max_connections": 100, "acquire_timeout": 30.0}})
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    async def run(number: int) -> None:
        together.wait(30)
        await asyncio.gather(*(echo(session, gpu, f"{number}-{each}") for each in range(50)))

    def thread(number: int) -> None:
        try:
            asyncio.run(run(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert failures == []
    stats = netkit.stats(session)
    assert (stats.requests.total, stats.requests.errors, stats.pool.in_use) == (200, 0, 0)
    assert len({each.body_sha256 for each in gpu.log.requests}) == 200
    asyncio.run(session.close())
    gc.collect()
    gpu.log.wait(lambda log: all(each.closed for each in log.connections))


def test_a_loop_beside_a_running_one_gets_its_own_connector(gpu: MockGPU) -> None:
    async def main() -> None:
        async with netkit.ClientSession() as session:
            home = session.connector
            await echo(session, gpu, "home")
            await asyncio.to_thread(lambda: asyncio.run(echo(session, gpu, "away")))
            assert session.connector is home
            await echo(session, gpu, "home again")
            gc.collect()

    asyncio.run(main())
    home, away, again = (each.connection for each in gpu.log.requests)
    assert home == again != away


def test_the_session_of_an_ended_loop_warns_once_when_nobody_closes_it(gpu: MockGPU) -> None:
    session = netkit.ClientSession()
    asyncio.run(echo(session, gpu, "x"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del session
        gc.collect()
    assert [str(each.message)[:23] for each in caught] == ["Unclosed client session"]
    gpu.log.wait(lambda log: log.connections[0].closed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_start_afresh(gpu: MockGPU, tls_gpu: MockGPU) -> None:
    session = netkit.ClientSession(plugins={"retry": False, "pool": True})
    asyncio.run(calls(session, gpu, tls_gpu, "parent before", 1))
    stop = threading.Event()
    failures: list[BaseException] = []

    def busy() -> None:
        try:
            while not stop.is_set():
                asyncio.run(calls(session, gpu, tls_gpu, "parent thread", 5))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=busy)
    thread.start()
    children = [_child(session, gpu, tls_gpu, number) for number in range(4)]
    asyncio.run(calls(session, gpu, tls_gpu, "parent after", 50))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    stop.set()
    thread.join(60)
    assert codes == [0, 0, 0, 0]
    assert failures == []
    owners: dict[int, set[Any]] = {}
    for record in gpu.log.requests:
        owners.setdefault(record.connection, set()).add(record.header("x-process"))
    assert all(len(processes) == 1 for processes in owners.values())
    asyncio.run(session.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_leaves_a_connector_that_its_parent_was_given_alone(gpu: MockGPU) -> None:
    def child(session: aiohttp.ClientSession) -> int:
        forked = os.fork()
        if forked:
            return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
        code = 1
        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(echo(session, gpu, "child"))
        except RuntimeError as error:
            code = 0 if str(error) == "Session is closed" else 2
        finally:
            os._exit(code)

    async def main() -> None:
        async with netkit.ClientSession(connector=aiohttp.TCPConnector()) as session:
            await echo(session, gpu, "before")
            assert await asyncio.to_thread(child, session) == 0
            await echo(session, gpu, "after")

    asyncio.run(main())
    assert [record.body for record in gpu.log.requests] == [b"before", b"after"]
    assert len(gpu.log.connections) == 1


async def calls(session: netkit.ClientSession, gpu: MockGPU, tls_gpu: MockGPU, name: str, count: int) -> None:
    headers = {"X-Process": str(os.getpid())}
    for number in range(count):
        async with session.post(f"{gpu.url}/echo", data=f"{name} {number}", headers=headers) as answer:
            assert (await answer.json())["body"] == f"{name} {number}"
    async with session.post(f"{tls_gpu.url}/echo", data=name, ssl=False) as answer:
        assert (await answer.json())["body"] == name


def _child(session: netkit.ClientSession, gpu: MockGPU, tls_gpu: MockGPU, number: int) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(calls(session, gpu, tls_gpu, f"child {number}", 50))
            asyncio.run(session.close())
            code = 0
        finally:
            os._exit(code)
    return child
