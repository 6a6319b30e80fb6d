"""A batch layer on the Scripted runtime, above a scripted server whose vectors prove their input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from netkit_plugins.batch import BatchLayer, BatchOptions

from netkit import Context, Request, Response
from netkit.events import Emitter
from netkit.messages import Body, Timeout
from netkit.runtime import Scripted
from netkit.stats import Meter

URL = "http://gpu.test/v1/embeddings"


def request(given: Any, url: str = URL, timeout: Timeout | None = None, headers: Any = (), **fields: Any) -> Request:
    body = json.dumps({"model": "m", "input": given, **fields}).encode()
    pairs = [("content-type", "application/json"), ("authorization", "Bearer k"), *headers]
    return Request("POST", url, pairs, Body.of(body), timeout or Timeout())


def inputs_of(body: bytes | None) -> list[Any]:
    given = json.loads(body or b"null")["input"]
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given


def vectors(given: list[Any]) -> bytes:
    """Each part says of which input it is."""
    data = [{"index": number, "embedding": ["of", item]} for number, item in enumerate(given)]
    return json.dumps(
        {"object": "list", "data": data[::-1], "model": "m", "usage": {"total_tokens": len(given)}}
    ).encode()


class Rig:
    """One session; `answer(inputs)` is the server: bytes, a Response, or an exception, after one wait."""

    def __init__(self, answer: Callable[[list[Any]], Any] = vectors, **options: Any) -> None:
        self.runtime = Scripted()
        self.emit = Emitter()
        self.events: list[Any] = []
        self.emit.add(self.events.append)
        self.layer = BatchLayer(
            BatchOptions(**options), Context(runtime=self.runtime, emit=self.emit, stack="scripted", meter=Meter())
        )
        self.answer = answer
        self.seen: list[Request] = []
        self.inside = 0
        self.seconds = 1.0
        """How long the server takes."""

    async def send(self, sent: Request) -> Response:
        self.seen.append(sent)
        self.inside += 1
        try:
            await self.runtime.sleep(self.seconds)
            outcome = self.answer(inputs_of(sent.body.content))
            if isinstance(outcome, BaseException):
                raise outcome
            if isinstance(outcome, Response):
                return outcome
            return Response.of(200, [("content-type", "application/json"), ("x-limit", "7")], outcome)
        finally:
            self.inside -= 1

    def start(self, given: Any, cancel_at: int | None = None, **how: Any) -> Any:
        made = given if isinstance(given, Request) else request(given, **how)
        return self.runtime.task(self.layer(made, self.send), cancel_at=cancel_at)

    def run(self, *calls: Any, **how: Any) -> list[Any]:
        """Start `calls` at once and run them to their end."""
        tasks = [self.start(call, **how) for call in calls]
        self.runtime.run_to_end()
        return tasks

    @property
    def sizes(self) -> list[int]:
        """Inputs in each request that the server saw."""
        return [len(inputs_of(sent.body.content)) for sent in self.seen]

    def busy(self) -> Any:
        """Make the route busy: one call under way."""
        task = self.start("busy")
        self.runtime.run()
        assert self.inside == 1
        return task


def embedded(task: Any) -> list[Any]:
    """The inputs that a finished call's vectors are of."""
    answer = task.result()
    assert answer.status == 200, answer
    parsed = json.loads(answer.body.content)
    assert [part["index"] for part in parsed["data"]] == list(range(len(parsed["data"])))
    if "content-length" in answer.headers:
        assert answer.headers["content-length"] == str(len(answer.body.content))
    return [part["embedding"][1] for part in parsed["data"]]
