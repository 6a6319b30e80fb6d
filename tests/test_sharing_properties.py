"""Random mixes of inputs, shapes, orders, failures, cancellations and credentials: nobody ever gets another's answer.

The scripted server's vectors prove the credential, the model and the input that they belong to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netkit import Context, Headers, Request, Response, TransportError, Verdict
from netkit.config import Config
from netkit.errors import BatchError, FailureKind
from netkit.events import Emitter
from netkit.flow import compose
from netkit.messages import Body, Timeout
from netkit.plugins import registry
from netkit.runtime import Scripted
from netkit.stats import Meter
from netkit.testing.mock_gpu import expected_vector

URL = "http://gpu.test/v1/embeddings"


@dataclass(frozen=True)
class Caller:
    start: int
    who: str
    model: str
    given: Any
    spaced: bool
    cancel_at: int | None
    read: float | None


@dataclass(frozen=True)
class Turn:
    """How the server takes its n-th request."""

    delay: int
    outcome: str
    shuffle: bool


texts = st.sampled_from(["a", "b", "c", "ä", "", "a b", '"q"'])
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=3)
inputs = st.one_of(texts, st.lists(texts, min_size=1, max_size=4), tokens, st.lists(tokens, min_size=1, max_size=3))
callers = st.builds(
    Caller,
    start=st.integers(0, 6),
    who=st.sampled_from(["A", "B"]),
    model=st.sampled_from(["m", "n"]),
    given=inputs,
    spaced=st.booleans(),
    cancel_at=st.none() | st.integers(0, 6),
    read=st.none() | st.sampled_from([1.5, 3.0, 50.0]),
)
turns = st.builds(
    Turn,
    delay=st.integers(0, 5),
    outcome=st.sampled_from(["ok"] * 8 + ["reset", "503", "422", "short", "error 200", "timeout"]),
    shuffle=st.booleans(),
)


def items_of(given: Any) -> list[Any]:
    is_one = isinstance(given, str) or all(isinstance(one, int) for one in given)
    return [given] if is_one else list(given)


def proof(who: str, model: str, item: Any) -> list[float]:
    return expected_vector(f"{who}|{model}|{json.dumps(item)}", dimensions=4)


class Server:
    def __init__(self, runtime: Scripted, script: list[Turn]) -> None:
        self.runtime = runtime
        self.script = script
        self.seen = 0
        self.inside = 0

    async def send(self, request: Request) -> Response:
        turn = self.script[self.seen % len(self.script)]
        self.seen += 1
        self.inside += 1
        try:
            await self.runtime.sleep(turn.delay)
            return self.answer(request, turn)
        finally:
            self.inside -= 1

    def answer(self, request: Request, turn: Turn) -> Response:
        kinds = {"reset": FailureKind.RESET, "timeout": FailureKind.READ_TIMEOUT}
        if turn.outcome in kinds:
            raise TransportError(turn.outcome, kind=kinds[turn.outcome], verdict=Verdict.AMBIGUOUS)
        if turn.outcome in ("503", "422"):
            return Response.of(int(turn.outcome), [("content-type", "application/json")], b'{"error": "no"}')
        if turn.outcome == "error 200":
            return Response.of(200, [("content-type", "application/json")], b'{"error": "no"}')
        payload = json.loads(request.body.content or b"")
        who = request.headers["authorization"]
        data = [
            {"object": "embedding", "index": index, "embedding": proof(who, payload["model"], item)}
            for index, item in enumerate(items_of(payload["input"]))
        ]
        if turn.shuffle:
            data.reverse()
        if turn.outcome == "short":
            data.pop()
        content = {
            "object": "list",
            "data": data,
            "model": payload["model"],
            "usage": {"total_tokens": 7 * len(data)},
        }
        return Response.of(200, [("content-type", "application/json")], json.dumps(content).encode())


def layers(names: list[str], runtime: Scripted, options: dict[str, Any]) -> list[Any]:
    made = []
    plugins = {name: options.get(name, True) for name in names}
    plan = Config().with_plugins({**plugins, "retry": False, "pool": False, "http2": False}, source="test")
    for step in plan.plan(registry()).steps:
        context = Context(runtime=runtime, emit=Emitter(), stack="httpx", meter=Meter())
        made.append(step.registration.factory(step.options, context))
    return made


async def call(runtime: Scripted, chain: Any, caller: Caller) -> tuple[int, Any]:
    await runtime.sleep(caller.start)
    separators = (", ", ": ") if caller.spaced else (",", ":")
    content = json.dumps({"model": caller.model, "input": caller.given}, separators=separators).encode()
    headers = Headers([("content-type", "application/json"), ("authorization", caller.who)])
    timeout = Timeout(read=caller.read)
    response = await chain(Request("POST", URL, headers, Body.of(content), timeout, extensions={}))
    body = await response.read()
    response.body.end()
    return response.status, json.loads(body)


def check(names: list[str], everybody: list[Caller], script: list[Turn], options: dict[str, Any]) -> None:
    runtime = Scripted()
    server = Server(runtime, script)
    made = layers(names, runtime, options)
    assert len(made) == len(names)
    chain = compose(made, server.send)
    tasks = [runtime.task(call(runtime, chain, one), cancel_at=one.cancel_at) for one in everybody]
    runtime.run_to_end()
    quiet = all(turn.outcome == "ok" for turn in script)
    for caller, task in zip(everybody, tasks, strict=True):
        if task.cancelled:
            assert caller.cancel_at is not None
            continue
        try:
            status, payload = task.result()
        except (TransportError, BatchError):
            assert not quiet or caller.read is not None
            continue
        if status != 200 or "data" not in payload:
            assert not quiet
            continue
        data = payload["data"]
        expected = [proof(caller.who, caller.model, item) for item in items_of(caller.given)]
        if len(data) < len(expected):
            # What the server itself answered to this very call.
            assert any(turn.outcome == "short" for turn in script)
            assert {json.dumps(one["embedding"]) for one in data} <= {json.dumps(one) for one in expected}
            continue
        ordered = sorted(data, key=lambda one: one["index"])
        assert [one["index"] for one in ordered] == list(range(len(expected)))
        assert [one["embedding"] for one in ordered] == expected, "another one's answer"
    assert server.inside == 0
    for name, layer in zip(names, made, strict=True):
        # What batch holds is a matter of its own tests.
        assert name == "batch" or layer.stats().in_flight == 0, name
    if quiet:
        assert server.seen <= len(everybody) * 5


CHAINS = [["coalesce"], ["cache"], ["cache", "coalesce"], ["batch"], ["cache", "coalesce", "batch"]]


@pytest.mark.parametrize("names", CHAINS, ids="+".join)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(everybody=st.lists(callers, min_size=2, max_size=10), script=st.lists(turns, min_size=1, max_size=6))
def test_nobody_gets_anothers_answer(names: list[str], everybody: list[Caller], script: list[Turn]) -> None:
    check(names, everybody, script, {})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(everybody=st.lists(callers, min_size=2, max_size=10), script=st.lists(turns, min_size=1, max_size=6))
def test_nor_with_a_small_and_forgetful_cache(everybody: list[Caller], script: list[Turn]) -> None:
    check(["cache", "coalesce"], everybody, script, {"cache": {"max_bytes": 1500, "ttl": 2.5, "stale_if_error": 2.0}})
