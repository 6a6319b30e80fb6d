"""Ctrl-C between any two steps of a call in the main thread: the next caller neither waits for it nor counts it.

Signals are handled between lines, so an exception is raised at one line after another of the code under test. Left
out are `with` statements: there a trace sees a step that signals do not.
"""

from __future__ import annotations

import json
import linecache
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import netkit_plugins.batch.layer
import netkit_plugins.batch.queue
import netkit_plugins.coalesce.layer
import pytest
from netkit_plugins.batch import BatchLayer, BatchOptions
from netkit_plugins.coalesce import CoalesceOptions
from netkit_plugins.coalesce.layer import CoalesceLayer

import netkit.flights
from netkit import Context, Request, Response
from netkit.events import Emitter
from netkit.flow import run_sync
from netkit.messages import Body
from netkit.runtime import Threads
from netkit.stats import Meter

CODE = {
    module.__file__
    for module in (
        netkit.flights,
        netkit_plugins.batch.layer,
        netkit_plugins.batch.queue,
        netkit_plugins.coalesce.layer,
    )
}
REQUEST = Request(
    "POST", "http://gpu.test/v1/embeddings", [("content-type", "application/json")], Body.of(b'{"input":"a"}')
)


async def answer(request: Request) -> Response:
    data = [{"index": 0, "embedding": [0.5]}]
    return Response.of(200, [("content-type", "application/json")], json.dumps({"data": data}).encode())


def interrupted_at(step: int, call: Callable[[], Any]) -> str | None:
    """Where `call` was interrupted; None when it ended before it came to that step."""
    place: str | None = None
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal place, steps
        code = frame.f_code.co_filename
        if code not in CODE:
            return None
        if event == "line" and not linecache.getline(code, frame.f_lineno).lstrip().startswith("with "):
            steps += 1
            if steps == step:
                place = f"{code.rpartition('/')[2]}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return place


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="there a trace is told of the first line of a `with` before its lock is guarded",
)
@pytest.mark.parametrize("name", ["batch", "coalesce"])
def test_an_interrupted_call_holds_nobody_up(name: str) -> None:
    context = Context(runtime=Threads(), emit=Emitter(), stack="requests", meter=Meter())
    step = 0
    while True:
        step += 1
        layer: Any = (
            BatchLayer(BatchOptions(max_wait=0.0), context)
            if name == "batch"
            else CoalesceLayer(CoalesceOptions(), context)
        )
        place = interrupted_at(step, lambda layer=layer: run_sync(layer(REQUEST, answer)))
        if place is None:
            break
        statuses: list[int] = []

        def call(layer: Any = layer, statuses: list[int] = statuses) -> None:
            statuses.append(run_sync(layer(REQUEST, answer)).status)

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        caller.join(20)
        assert (statuses, layer.stats().in_flight) == ([200], 0), place
    assert step > 30


class Hasty(Threads):
    """In the main thread, time passes once others have come: `meanwhile` lets them in."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self._passed = 0.0

    def now(self) -> float:
        return super().now() + self._passed

    def event(self) -> Any:
        event = super().event()
        if threading.current_thread() is threading.main_thread():
            return _HastyEvent(self, event)
        return event

    def pass_time(self, seconds: float) -> None:
        self._meanwhile()
        self._passed += seconds


class _HastyEvent:
    def __init__(self, runtime: Hasty, event: Any) -> None:
        self._runtime = runtime
        self._event = event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)

    async def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and not self._event.is_set():
            self._runtime.pass_time(timeout)
            return False
        done: bool = await self._event.wait(timeout)
        return done


class _Scene:
    """A route that is busy until `go`: the main thread is to come to the front of the queue, two others behind it."""

    def __init__(self) -> None:
        context = Context(runtime=Hasty(self.come), emit=Emitter(), stack="requests", meter=Meter())
        self.layer = BatchLayer(BatchOptions(max_wait=0.05), context)
        self.go = threading.Event()
        self.statuses: list[int] = []
        self.threads: list[threading.Thread] = []
        self._entered = threading.Event()
        self._begun = threading.Semaphore(0)
        self._start()
        assert self._entered.wait(20)

    async def send(self, request: Request) -> Response:
        if not self._entered.is_set():
            self._entered.set()
            assert self.go.wait(20)
        data = [{"index": n, "embedding": [0.5]} for n in range((request.body.content or b"").count(b'"a"'))]
        return Response.of(200, [("content-type", "application/json")], json.dumps({"data": data}).encode())

    def call(self) -> int:
        return run_sync(self.layer(REQUEST, self.send)).status

    def _work(self) -> None:
        self._begun.release()
        self.statuses.append(self.call())

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        self.threads.append(thread)
        assert self._begun.acquire(timeout=20)

    def come(self) -> None:
        """The two others come in, if they have not yet."""
        while len(self.threads) < 3:
            self._start()
        until = time.monotonic() + 20
        while self.layer.stats().waiting < 3 and time.monotonic() < until:
            time.sleep(0)

    def end(self) -> tuple[list[int], int, int]:
        """What the two others got, while the route was busy; then the route's state when all is over."""
        while len(self.threads) < 3:
            self._start()
        for thread in self.threads[1:]:
            thread.join(20)
        got = list(self.statuses)
        self.go.set()
        self.threads[0].join(20)
        stats = self.layer.stats()
        return got, stats.in_flight, stats.waiting


@pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="there a trace is told of the first line of a `with` before its lock is guarded",
)
def test_who_waits_for_a_batch_gets_it_though_the_caller_who_took_it_is_interrupted() -> None:
    places: list[str] = []
    while True:
        scene = _Scene()
        place = interrupted_at(len(places) + 1, scene.call)
        assert scene.end() == ([200, 200], 0, 0), place
        if place is None:
            break
        places.append(place)
    assert len(places) > 60
