"""The layer under many threads, many tasks, and several loops at once on one session."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from netkit_plugins.pool import PoolLayer, PoolOptions

from netkit import Context, PoolTimeout, Request, Response
from netkit.events import Emitter
from netkit.flow import run_sync
from netkit.runtime import Asyncio, Threads
from netkit.stats import Meter

REQUEST = Request("GET", "http://h/")


class Server:
    """Counts exchanges; its responses are open until the caller ends them."""

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._wait = wait
        # Entered again where the collector ends a forgotten response inside of it.
        self._lock = threading.RLock()
        self.now = self.most = self.total = 0

    async def send(self, request: Request) -> Response:
        with self._lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)
        try:
            await self._wait()
        except BaseException:
            self.leave()
            raise
        response = Response.of(200)
        response.body.on_release(self.leave)
        return response

    def leave(self) -> None:
        with self._lock:
            self.now -= 1


def layer_on(runtime: Any, **options: Any) -> PoolLayer:
    context = Context(runtime=runtime, emit=Emitter(), stack="test", meter=Meter())
    return PoolLayer(PoolOptions(**options), context)


def in_threads(count: int, work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def test_64_threads() -> None:
    runtime = Threads()

    async def wait() -> None:
        await runtime.sleep(0)

    server = Server(wait)
    layer = layer_on(runtime, max_connections=4, acquire_timeout=30.0)

    def work() -> None:
        for _ in range(10):
            run_sync(layer(REQUEST, server.send)).body.end()

    in_threads(64, work)
    assert server.total == 640
    assert server.most <= 4
    assert (layer._queue.in_use, layer._queue.queued) == (0, 0)


def test_threads_that_time_out_lose_no_slot() -> None:
    runtime = Threads()

    async def wait() -> None:
        await runtime.sleep(random.random() / 500)

    server, refused = Server(wait), []
    layer = layer_on(runtime, max_connections=2, acquire_timeout=0.002)

    def work() -> None:
        for _ in range(10):
            try:
                run_sync(layer(REQUEST, server.send)).body.end()
            except PoolTimeout:
                refused.append(1)

    in_threads(32, work)
    assert server.total + len(refused) == 320
    assert layer.stats().timeouts == len(refused)
    assert server.most <= 2
    assert (layer._queue.in_use, layer._queue.queued) == (0, 0)


def test_forgotten_responses_are_released_by_the_collector_in_any_thread() -> None:
    # A response in a reference cycle ends whenever the collector runs: also inside the queue's own locked sections.
    runtime = Threads()

    class Forgotten:
        def __init__(self, response: Response) -> None:
            self.me = self
            self.body = response.body

        def __del__(self) -> None:
            self.body.end()

    async def wait() -> None:
        pass

    server = Server(wait)
    layer = layer_on(runtime, max_connections=200, acquire_timeout=30.0, max_connections_total=200)
    threshold = gc.get_threshold()
    gc.set_threshold(7, 2, 2)
    try:

        def work() -> None:
            for _ in range(100):
                Forgotten(run_sync(layer(REQUEST, server.send)))

        in_threads(8, work)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert server.total == 800
    assert (layer._queue.in_use, layer._queue.queued) == (0, 0)


@pytest.mark.parametrize("leave", ["cancel", "wait_for"])
async def test_c02_tasks_cancelled_at_random_leave_a_whole_pool(leave: str) -> None:
    async def wait() -> None:
        await asyncio.sleep(0.005)

    server = Server(wait)
    layer = layer_on(Asyncio(), max_connections=4, acquire_timeout=2.0)

    async def call() -> None:
        response = await layer(REQUEST, server.send)
        response.body.end()

    async def impatient() -> None:
        for _ in range(10):
            moment = random.random() * 0.01
            if leave == "wait_for":
                try:
                    await asyncio.wait_for(call(), moment)
                except TimeoutError:
                    pass
            else:
                task = asyncio.create_task(call())
                await asyncio.sleep(moment)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(impatient() for _ in range(20)))
    assert (layer._queue.in_use, layer._queue.queued, server.now) == (0, 0, 0)
    assert server.most <= 4
    before = server.total
    await asyncio.gather(*(call() for _ in range(20)))
    assert server.total == before + 20
    assert (layer._queue.in_use, layer._queue.queued) == (0, 0)


async def test_tasks_are_served_in_order() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)

    server, order = Server(wait), []
    layer = layer_on(Asyncio(), max_connections=3, acquire_timeout=30.0)

    async def call(number: int) -> None:
        response = await layer(REQUEST, server.send)
        order.append(number)
        response.body.end()

    await asyncio.gather(*(call(number) for number in range(200)))
    assert order == sorted(order)


def test_several_loops_in_threads_and_threads_share_one_session() -> None:
    """Two loops and eight plain threads wait in one queue; each is woken in its own way."""
    waiting, server = {"Asyncio": Asyncio(), "Threads": Threads()}, Server(lambda: _short())
    layer = layer_on(_Both(waiting), max_connections=3, acquire_timeout=30.0)

    async def tasks() -> None:
        async def call() -> None:
            for _ in range(5):
                (await layer(REQUEST, server.send)).body.end()

        await asyncio.gather(*(call() for _ in range(20)))

    def in_loop() -> None:
        asyncio.run(tasks())

    def in_thread() -> None:
        for _ in range(10):
            run_sync(layer(REQUEST, server.send)).body.end()

    kinds = iter([in_loop, in_loop, *[in_thread] * 8])
    lock = threading.Lock()

    def work() -> None:
        with lock:
            mine = next(kinds)
        mine()

    in_threads(10, work)
    assert server.total == 2 * 100 + 8 * 10
    assert server.most <= 3
    assert (layer._queue.in_use, layer._queue.queued) == (0, 0)


def test_one_loop_after_another() -> None:
    server = Server(_short)
    layer = layer_on(Asyncio(), max_connections=2, acquire_timeout=30.0)

    async def tasks() -> None:
        async def call() -> None:
            (await layer(REQUEST, server.send)).body.end()

        await asyncio.gather(*(call() for _ in range(10)))

    for _ in range(3):
        asyncio.run(tasks())
    assert server.total == 30
    assert layer._queue.in_use == 0


def test_a_loop_that_was_stopped_in_mid_wait_gives_its_place_up() -> None:
    server = Server(_short)
    layer = layer_on(Asyncio(), max_connections=1, acquire_timeout=30.0)

    async def hold() -> Response:
        return await layer(REQUEST, server.send)

    async def abandoned() -> None:
        waiter = asyncio.ensure_future(layer(REQUEST, server.send))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert layer._queue.queued == 1
        waiter.cancel()

    held = asyncio.run(hold())
    asyncio.run(abandoned())
    assert layer._queue.queued == 0
    held.body.end()
    asyncio.run(hold()).body.end()
    assert layer._queue.in_use == 0


async def _short() -> None:
    if asyncio._get_running_loop() is not None:
        await asyncio.sleep(0)


class _Both:
    """Threads or asyncio, by where the caller is."""

    name = "both"

    def __init__(self, runtimes: dict[str, Any]) -> None:
        self._runtimes = runtimes

    def event(self) -> Any:
        inside = asyncio._get_running_loop() is not None
        return self._runtimes["Asyncio" if inside else "Threads"].event()

    def now(self) -> float:
        return time.monotonic()
