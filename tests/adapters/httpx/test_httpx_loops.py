"""One client over several loops, threads and processes (CASES C75, C76), and on trio."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import threading
from typing import Any

import pytest
from httpx_faces import PATH, Face, context_of

from netkit.facade import attach, edge_of, stats
from netkit.flow import compose
from netkit.testing import MockGPU


@pytest.fixture(params=["httpx", "httpx2"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param, False)


async def echo(client: Any, text: str) -> None:
    import json

    from netkit.testing import expected_vector

    response = await client.post(PATH, json={"model": "mock-embed", "input": text})
    vector = json.loads(response.content)["data"][0]["embedding"]
    assert vector == pytest.approx(expected_vector(text))


def opened(client: Any, http: str) -> int:
    """The client's open connections of a protocol."""
    found = stats(client)
    return int(found.pool.open if http == "1.1" else found.http2.connections)


def test_loops_in_turn(face: Face, gpu: MockGPU, http: str) -> None:
    client = face.adapter.AsyncClient(verify=context_of(gpu), base_url=gpu.url)

    async def main(number: int) -> None:
        await echo(client, f"{number}a")
        await echo(client, f"{number}b")
        assert opened(client, http) == 1

    for number in range(5):
        asyncio.run(main(number))
        # A loop takes its connections with it.
        assert opened(client, http) == 0
    # The first of all asked for HTTP/2.
    assert len(gpu.log.connections) == (6 if http == "1.1" else 5)
    asyncio.run(client.aclose())
    gc.collect()


def test_loops_at_once(face: Face, gpu: MockGPU) -> None:
    client = face.adapter.AsyncClient(verify=context_of(gpu), base_url=gpu.url)
    failed: list[BaseException] = []
    together = threading.Barrier(4, timeout=30)

    async def main(number: int) -> None:
        await echo(client, f"{number} first")
        together.wait()
        await asyncio.gather(*(echo(client, f"{number} {turn}") for turn in range(20)))

    def thread(number: int) -> None:
        try:
            asyncio.run(main(number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(4)]
    for started in threads:
        started.start()
    for started in threads:
        started.join()
    assert failed == []
    assert stats(client).requests.total == 84
    assert stats(client).pool.open == 0
    asyncio.run(client.aclose())
    gc.collect()


def test_closing_reaches_the_connections_of_every_loop(face: Face, gpu: MockGPU, http: str) -> None:
    client = face.adapter.AsyncClient(verify=context_of(gpu), base_url=gpu.url)
    first, second = asyncio.Runner(), asyncio.Runner()
    first.run(echo(client, "a"))
    ready, closed = threading.Event(), threading.Event()

    async def other() -> None:
        await echo(client, "b")
        ready.set()
        await asyncio.to_thread(closed.wait, 30)
        for _ in range(2000):
            if opened(client, http) == 0:
                return
            await asyncio.sleep(0.005)
        raise TimeoutError

    thread = threading.Thread(target=lambda: second.run(other()))
    thread.start()
    assert ready.wait(30)
    assert opened(client, http) == 2
    first.run(client.aclose())
    closed.set()
    thread.join()
    assert opened(client, http) == 0
    gpu.log.wait(lambda log: all(record.closed for record in log.connections))
    first.close()
    second.close()


def test_an_attached_client_in_several_loops(face: Face, gpu: MockGPU) -> None:
    client = attach(face.native.AsyncClient(verify=context_of(gpu), base_url=gpu.url))
    for number in range(3):
        asyncio.run(echo(client, str(number)))
    asyncio.run(client.aclose())
    gc.collect()


@pytest.mark.skipif(importlib.util.find_spec("trio") is None, reason="trio is not installed")
def test_trio(face: Face, gpu: MockGPU) -> None:
    import trio

    slept: list[float] = []

    async def main() -> None:
        async with face.adapter.AsyncClient(verify=context_of(gpu), base_url=gpu.url) as client:

            async def pause(request: Any, send: Any) -> Any:
                runtime = edge_of(client)._context.runtime
                started = runtime.now()
                await runtime.sleep(0.01)
                slept.append(runtime.now() - started)
                event = runtime.event()
                event.set()
                assert await event.wait(1)
                return await send(request)

            edge = edge_of(client)
            edge._default = compose([pause], edge._default)
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(echo, client, str(number))
            with trio.move_on_after(0.0):
                await echo(client, "cancelled")
            await echo(client, "after")
            assert stats(client).requests.in_flight == 0
            assert stats(client).pool.in_use == 0

    trio.run(main)
    assert min(slept) >= 0.009


def test_forked_children_share_no_connection(face: Face, gpu: MockGPU) -> None:
    client = face.adapter.Client(verify=context_of(gpu), base_url=gpu.url)

    def work(tag: str) -> None:
        from netkit.testing import expected_vector

        for turn in range(25):
            text = f"{tag} {turn}"
            response = client.post(PATH, json={"model": "mock-embed", "input": text})
            assert response.json()["data"][0]["embedding"] == pytest.approx(expected_vector(text))

    work("before")
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(f"child {child}")
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    work("parent")
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert len(gpu.log.requests) == 25 * 6
    # 4 children opened one each, the parent kept its own.
    assert len(gpu.log.connections) == 5
    client.close()


def test_a_fork_with_the_pools_lock_held(face: Face, gpu: MockGPU) -> None:
    client = face.adapter.Client(verify=context_of(gpu), base_url=gpu.url)
    client.get("/v1/models")
    with client._transport._pool._optional_thread_lock:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                done: list[int] = []
                thread = threading.Thread(
                    target=lambda: done.append(client.get("/v1/models").status_code), daemon=True
                )
                thread.start()
                thread.join(20)
                status = 0 if done == [200] else 2
            finally:
                os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    client.close()


def test_many_threads_get_their_own_answers(face: Face, gpu: MockGPU) -> None:
    client = face.adapter.Client(
        verify=context_of(gpu), base_url=gpu.url, plugins={"pool": {"max_connections": 4}}, timeout=30
    )
    failed: list[BaseException] = []

    def work(tag: int) -> None:
        from netkit.testing import expected_vector

        try:
            for turn in range(10):
                text = f"{tag} {turn}"
                response = client.post(PATH, json={"model": "mock-embed", "input": text})
                found = response.json()["data"][0]["embedding"]
                assert found == pytest.approx(expected_vector(text))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(gpu.log.connections) <= 4
    assert stats(client).pool.in_use == 0
    client.close()
