"""Ctrl-C between any two steps of a call in the main thread: the next caller neither waits for it nor counts it.

Signals are handled between lines, so an exception is raised at one line after another of the code under test. Left
out are `with` statements: there a trace sees a step that signals do not.
"""

from __future__ import annotations

import json
import linecache
import sys
import threading
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
    sys.version_info >= (3, 13),
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
