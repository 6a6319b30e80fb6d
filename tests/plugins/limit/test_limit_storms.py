"""The layer under many threads, many tasks, several loops at once, cancel storms and the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from netkit_plugins.limit import LimitLayer, LimitOptions

from netkit import Body, Context, PoolTimeout, Request, Response
from netkit.events import Emitter
from netkit.flow import run_sync
from netkit.runtime import Asyncio, Threads
from netkit.stats import Meter

REQUEST = Request("POST", "http://h/v1/embeddings", body=Body.of(b'{"model": "m"}'))


class Server:
    """Notes who comes in which order, and how many are inside; each is inside until its body ends."""

    def __init__(self, runtime: Any, seconds: float = 0.0) -> None:
        self._runtime = runtime
        self._seconds = seconds
        # Entered again where the collector ends a forgotten response inside of it.
        self._lock = threading.RLock()
        self.order: list[Any] = []
        self.now = self.most = 0

    async def send(self, request: Request) -> Response:
        with self._lock:
            self.order.append(request.extensions.get("n"))
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            await self._runtime.sleep(self._seconds)
        except BaseException:
            self.leave()
            raise
        response = Response.of(200)
        response.observe(on_end=lambda _: self.leave())
        return response

    def leave(self) -> None:
        with self._lock:
            self.now -= 1


def layer_on(runtime: Any, **options: Any) -> LimitLayer:
    return LimitLayer(LimitOptions(**options), Context(runtime=runtime, emit=Emitter(), stack="test", meter=Meter()))


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []
    gate = threading.Barrier(count)

    def guarded(number: int) -> None:
        try:
            gate.wait(60)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def assert_fair(order: list[int], callers: int, rounds: int) -> None:
    """From the moment when everybody was served once, nobody gets far ahead: who was served goes to the end."""
    begin = max(order.index(number) for number in range(callers))
    served = Counter(order[begin : begin + callers * rounds])
    assert max(served.values()) - min(served[number] for number in range(callers)) <= 3, (begin, served)


def quiet(layer: LimitLayer) -> None:
    stats = layer.stats()
    assert (stats.in_use, stats.queued) == (0, 0)
    for lane in layer._lanes.values():
        assert (lane.unanswered, lane._later, lane._line) == (0, type(lane._later)(), [])


def test_64_threads_are_served_in_turn() -> None:
    runtime = Threads()
    server, layer = Server(runtime, 0.0005), layer_on(runtime, concurrency=4)
    calls = 16

    def work(number: int) -> None:
        for _ in range(calls):
            run_sync(layer(REQUEST.extend(n=number), server.send)).body.end()

    in_threads(64, work)
    assert len(server.order) == 64 * calls
    assert server.most <= 4
    assert_fair(server.order, 64, rounds=4)
    quiet(layer)


def test_64_threads_share_a_rate() -> None:
    runtime = Threads()
    server, layer = Server(runtime), layer_on(runtime, requests_per_second=400.0, burst=1)
    started = runtime.now()

    def work(number: int) -> None:
        for _ in range(8):
            run_sync(layer(REQUEST.extend(n=number), server.send)).body.end()

    in_threads(64, work)
    assert runtime.now() - started >= (64 * 8 - 1) / 400.0
    assert_fair(server.order, 64, rounds=2)
    quiet(layer)


def test_sessions_of_one_process_share_a_rate() -> None:
    runtime = Threads()
    server = Server(runtime)
    layers = [layer_on(runtime, requests_per_second=200.0, burst=1) for _ in range(4)]
    started = runtime.now()

    def work(number: int) -> None:
        for _ in range(10):
            run_sync(layers[number](REQUEST, server.send)).body.end()

    in_threads(4, work)
    assert runtime.now() - started >= 39 / 200.0
    for layer in layers:
        quiet(layer)


async def test_200_tasks_are_served_in_the_order_of_asking() -> None:
    runtime = Asyncio()
    server, layer = Server(runtime, 0.0002), layer_on(runtime, concurrency=7)

    async def call(number: int) -> None:
        (await layer(REQUEST.extend(n=number), server.send)).body.end()

    await asyncio.gather(*(call(number) for number in range(200)))
    assert server.order == list(range(200))
    assert server.most <= 7
    quiet(layer)


@pytest.mark.parametrize(
    "options", [{"concurrency": 3}, {"requests_per_second": 2000.0, "burst": 1}, {"concurrency": "adaptive"}]
)
async def test_a_storm_of_cancellations_loses_no_turn(options: dict[str, Any]) -> None:
    runtime = Asyncio()
    server, layer = Server(runtime, 0.0005), layer_on(runtime, **options)
    chance = random.Random(7)

    async def call() -> None:
        (await layer(REQUEST, server.send)).body.end()

    for _ in range(20):
        tasks = [asyncio.create_task(call()) for _ in range(40)]
        await asyncio.sleep(chance.random() / 100)
        for task in chance.sample(tasks, 25):
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in done)
    assert server.now == 0
    quiet(layer)
    async with asyncio.timeout(10):
        await asyncio.gather(*(call() for _ in range(50)))


def test_threads_whose_time_is_up_lose_no_turn() -> None:
    runtime = Threads()
    server, layer = Server(runtime, 0.001), layer_on(runtime, concurrency=2, acquire_timeout=0.004)
    refused: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            try:
                run_sync(layer(REQUEST, server.send)).body.end()
            except PoolTimeout:
                refused.append(number)

    in_threads(32, work)
    assert len(server.order) + len(refused) == 320
    assert layer.stats().timeouts == len(refused) > 0
    assert server.most <= 2
    quiet(layer)
    run_sync(layer(REQUEST, server.send)).body.end()


def test_two_loops_and_threads_share_one_layer() -> None:
    runtime = Asyncio()
    server, layer = Server(runtime, 0.0002), layer_on(runtime, concurrency=2)

    async def many() -> None:
        async def call() -> None:
            (await layer(REQUEST, server.send)).body.end()

        await asyncio.gather(*(call() for _ in range(40)))

    in_threads(4, lambda _: asyncio.run(many()))
    assert len(server.order) == 160
    assert server.most <= 2
    quiet(layer)


def test_a_pause_holds_64_threads_and_lets_them_back_one_by_one() -> None:
    runtime = Threads()
    layer, times, lock = layer_on(runtime), [], threading.Lock()

    async def send(request: Request) -> Response:
        with lock:
            times.append(runtime.now())
            number = len(times)
        return Response.of(429, [("retry-after-ms", "150")]) if number == 1 else Response.of(200)

    run_sync(layer(REQUEST, send)).body.end()

    def work(_: int) -> None:
        for _ in range(2):
            run_sync(layer(REQUEST, send)).body.end()

    in_threads(64, work)
    assert len(times) == 129
    assert times[1] - times[0] >= 0.149
    assert sum(moment - times[1] < 0.05 for moment in times[1:]) <= 10
    assert layer.stats().pauses == 1
    quiet(layer)


def test_forgotten_answers_are_released_by_the_collector_in_any_thread() -> None:
    # An answer in a reference cycle ends whenever the collector runs: also inside of the lane's own locked sections.
    runtime = Threads()
    server = Server(runtime)
    layer = layer_on(runtime, concurrency=3, tokens_per_minute=1e9, acquire_timeout=30.0)

    class Forgotten:
        def __init__(self, response: Response) -> None:
            self.response = response
            self.me = self

        def __del__(self) -> None:
            self.response.body.end()

    def work(number: int) -> None:
        for turn in range(30):
            response = run_sync(layer(REQUEST, server.send))
            if turn % 2:
                Forgotten(response)
            else:
                response.body.end()

    before = gc.get_threshold()
    gc.set_threshold(20, 5, 5)
    try:
        stop = threading.Event()

        def sweep() -> None:
            while not stop.wait(0.005):
                gc.collect()

        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        in_threads(12, work)
        stop.set()
        sweeper.join()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(server.order) == 360
    quiet(layer)


async def test_waiters_that_are_collected_leave_the_line() -> None:
    runtime = Asyncio()
    server, layer = Server(runtime), layer_on(runtime, concurrency=1)
    holder = await layer(REQUEST, server.send)
    abandoned = [layer(REQUEST, server.send) for _ in range(3)]
    for coroutine in abandoned:
        coroutine.send(None)
    assert layer.stats().queued == 3
    last = asyncio.create_task(layer(REQUEST, server.send))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    for coroutine in abandoned:
        coroutine.close()
    del abandoned, coroutine
    gc.collect()
    assert layer.stats().queued == 1
    holder.body.end()
    async with asyncio.timeout(10):
        (await last).body.end()
    quiet(layer)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_under_load_starts_afresh() -> None:
    import os

    runtime = Threads()
    server, layer = Server(runtime, 0.0002), layer_on(runtime, concurrency=2, requests_per_second=20_000.0)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            run_sync(layer(REQUEST, server.send)).body.end()

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                here = Server(runtime)
                for _ in range(5):
                    run_sync(layer(REQUEST, here.send)).body.end()
                os._exit(0 if layer.stats().in_use == 0 and len(here.order) == 5 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    quiet(layer)


def test_copies_of_one_call_in_threads_give_back_what_each_took() -> None:
    runtime = Threads()
    layer = layer_on(runtime, concurrency=64)
    seen: list[Request] = []

    async def send(request: Request) -> Response:
        seen.append(request)
        return Response.of(200)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            response = run_sync(layer(REQUEST, send))
            admission = seen.pop().extensions["admission"]

            def copies(number: int, admission: Any = admission, response: Response = response) -> None:
                for _ in range(30):
                    run_sync(admission.again())
                    run_sync(admission.failed(None, None))
                if number == 0:
                    response.body.end()  # the caller is done while others still send

            in_threads(6, copies)
            (lane,) = layer._lanes.values()
            assert (lane.in_use, lane.unanswered, lane.queued) == (0, 0, 0)
    finally:
        sys.setswitchinterval(interval)
