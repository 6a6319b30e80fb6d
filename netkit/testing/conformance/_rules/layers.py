"""The layer by itself, on the Scripted runtime: cancelled at every wait, in two loops, with every kind of answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.flow import Send
from netkit.messages import Body, Request, Response
from netkit.runtime import Asyncio, Scripted, Threads
from netkit.testing.conformance._bench import in_threads
from netkit.testing.conformance._layer_bench import LayerBench, in_use
from netkit.testing.conformance._rule import layer_rule

__all__ = ["RULES"]

_STEPS = 200
"""More waits than a call has: a layer that waits for ever fails instead of looping."""

_CALLERS = 4


def _request(number: int = 0) -> Request:
    body = Body.of(b'{"input": "%d"}' % number)
    headers = [("content-type", "application/json"), ("x-call", str(number))]
    return Request("POST", "http://gpu.test/v1/embeddings", headers, body, extensions={})


def _answer(status: int = 200, content: bytes = b"{}") -> Response:
    return Response.of(status, [("content-type", "application/json")], content)


def _not_sent() -> TransportError:
    return TransportError("refused", kind=FailureKind.CONNECT, verdict=Verdict.NOT_SENT)


def _lost() -> TransportError:
    return TransportError("reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS)


class _Wire:
    """A scripted `send`: gives `outcomes` in turn, the last for ever, each after a wait; counts who is inside."""

    def __init__(self, runtime: Scripted, *outcomes: Callable[[], Response | TransportError]) -> None:
        self._runtime = runtime
        self._outcomes = list(outcomes)
        self.inside = 0

    async def send(self, request: Request) -> Response:
        self.inside += 1
        try:
            await self._runtime.checkpoint("wire")
            outcome = (self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0])()
            if isinstance(outcome, TransportError):
                raise outcome
            return outcome
        finally:
            self.inside -= 1


_SCRIPTS: dict[str, tuple[Callable[[], Response | TransportError], ...]] = {
    "an answer": (_answer,),
    "a refused connection, then an answer": (_not_sent, _answer),
    "a lost connection, then an answer": (_lost, _answer),
    "an overload, then an answer": (lambda: _answer(503), _answer),
}


async def _call(send: Send, number: int = 0) -> int:
    """One call as an adapter makes it: the body is read, and its end told."""
    response = await send(_request(number))
    try:
        await response.read()
    finally:
        response.body.end()
    return response.status


@layer_rule
def cancelling_at_every_await_leaks_nothing(bench: LayerBench) -> None:
    """A call cancelled at its first wait, its second, and so on: the next call through the same layer succeeds, and
    nothing that the layer reports stays in use."""
    for name, outcomes in _SCRIPTS.items():
        runtime = Scripted()
        layer = bench.layer(runtime)
        for step in range(_STEPS):
            wire = _Wire(runtime, *outcomes)
            task = runtime.task(_call(bench.chain(layer, wire.send)), name=name, cancel_at=step)
            runtime.run_to_end()
            where = f"{name}, cancelled at wait {step}"
            assert wire.inside == 0, f"{where}: a request is still under way"
            assert in_use(layer) == {}, f"{where}: still held"
            _succeeds(bench, runtime, layer, where)
            if not task.cancelled:
                break
        else:
            raise AssertionError(f"{name}: the cancellation was swallowed, or a call waits more than {_STEPS} times")


@layer_rule
def cancelling_one_of_many_harms_no_other(bench: LayerBench) -> None:
    """Of several calls at once one is cancelled at each of its waits: the others succeed, nothing stays in use."""
    for victim in range(_CALLERS):
        for step in range(_STEPS):
            runtime = Scripted()
            layer = bench.layer(runtime)
            wire = _Wire(runtime, _answer)
            chain = bench.chain(layer, wire.send)
            tasks = [
                runtime.task(_call(chain, number), name=str(number), cancel_at=step if number == victim else None)
                for number in range(_CALLERS)
            ]
            runtime.run_to_end()
            where = f"call {victim} of {_CALLERS} cancelled at wait {step}"
            others = [task.result() for number, task in enumerate(tasks) if number != victim]
            assert others == [200] * (_CALLERS - 1), where
            assert wire.inside == 0, where
            assert in_use(layer) == {}, where
            _succeeds(bench, runtime, layer, where)
            if not tasks[victim].cancelled:
                break
        else:
            raise AssertionError(f"call {victim}: the cancellation was swallowed")


@layer_rule
def an_unread_answer_is_held_until_its_end(bench: LayerBench) -> None:
    """What a layer holds for a call it lets go when the body ends, is left, or fails; once."""
    from netkit.errors import BodyClosed

    for error in (None, BodyClosed("left"), _lost()):
        runtime = Scripted()
        layer = bench.layer(runtime)
        task = runtime.task(bench.chain(layer, _Wire(runtime, _answer).send)(_request()))
        runtime.run_to_end()
        response: Response = task.result()
        response.body.end(error)
        response.body.end(error)
        runtime.run()
        assert in_use(layer) == {}, f"still held after a body that ended with {error!r}"
        _succeeds(bench, runtime, layer, f"after a body that ended with {error!r}")


def _succeeds(bench: LayerBench, runtime: Scripted, layer: Any, where: str) -> None:
    task = runtime.task(_call(bench.chain(layer, _Wire(runtime, _answer).send)))
    runtime.run_to_end()
    assert task.result() == 200, f"{where}: the next call does not succeed"


@layer_rule
def one_layer_serves_several_loops(bench: LayerBench) -> None:
    """One layer instance in one event loop after another, and in several at once."""
    layer = bench.layer(Asyncio())

    async def terminal(request: Request) -> Response:
        await asyncio.sleep(0)
        return _answer(content=request.body.content or b"")

    chain = bench.chain(layer, terminal)

    async def work() -> None:
        async def one(number: int) -> bytes:
            response = await chain(_request(number))
            content = await response.read()
            response.body.end()
            return content

        got = await asyncio.gather(*(one(number) for number in range(12)))
        assert got == [b'{"input": "%d"}' % number for number in range(12)]

    def loop() -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(work())

    loop()
    loop()
    in_threads([loop] * 3)
    assert in_use(layer) == {}


@layer_rule
def one_layer_serves_several_threads(bench: LayerBench) -> None:
    """One layer instance in the threads runtime: the coroutine never suspends, answers never cross."""
    from netkit.flow import run_sync

    layer = bench.layer(Threads(), stack="requests")

    async def terminal(request: Request) -> Response:
        return _answer(content=request.body.content or b"")

    chain = bench.chain(layer, terminal)

    def work(number: int) -> None:
        for call in range(number * 20, number * 20 + 20):
            response = run_sync(chain(_request(call)))
            assert run_sync(response.read()) == b'{"input": "%d"}' % call
            response.body.end()

    in_threads([lambda number=number: work(number) for number in range(6)])  # type: ignore[misc]
    assert in_use(layer) == {}


RULES = (
    cancelling_at_every_await_leaks_nothing,
    cancelling_one_of_many_harms_no_other,
    an_unread_answer_is_held_until_its_end,
    one_layer_serves_several_loops,
    one_layer_serves_several_threads,
)
