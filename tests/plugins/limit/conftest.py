"""A limit layer on the Scripted runtime with a scripted server below it, and calls on every face."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from netkit_plugins.limit import LimitLayer, LimitOptions
from netkit_plugins.limit.store import forget_limits

from netkit import Body, Context, Request, Response
from netkit.events import Emitter
from netkit.runtime import Scripted
from netkit.stats import Meter
from netkit.testing.conformance import FACES
from tests.faced import Faced


class Rig:
    """One session. `send` answers 200 and keeps the body open, or does what `script` says next."""

    def __init__(self, options: LimitOptions | None = None, *script: Any, runtime: Any = None) -> None:
        self.runtime = runtime or Scripted()
        self.emit = Emitter()
        self.events: list[Any] = []
        self.emit.add(self.events.append)
        context = Context(runtime=self.runtime, emit=self.emit, stack="scripted", meter=Meter())
        self.layer = LimitLayer(options or LimitOptions(), context)
        self.script = list(script)
        self.seen: list[Request] = []
        self.times: list[float] = []
        self.open: list[Response] = []

    async def send(self, request: Request) -> Response:
        self.seen.append(request)
        self.times.append(round(self.runtime.now() - 1000.0, 6))
        await self.runtime.checkpoint("send")
        step = self.script.pop(0) if self.script else 200
        if isinstance(step, BaseException):
            raise step
        response = step() if callable(step) else Response.of(step)
        self.open.append(response)
        return response

    def start(self, model: str = "m", cancel_at: int | None = None, **details: Any) -> Any:
        request = Request("POST", "http://h/v1/chat/completions", body=Body.of(b'{"model": "%s"}' % model.encode()))
        return self.runtime.task(self.layer(request.replace(**details), self.send), cancel_at=cancel_at)

    @property
    def stats(self) -> Any:
        return self.layer.stats()

    def lane(self) -> Any:
        return next(iter(self.layer._lanes.values()))


@pytest.fixture(autouse=True)
def _fresh_limits() -> Iterator[None]:
    forget_limits()
    yield
    forget_limits()


@pytest.fixture
def rig() -> type[Rig]:
    return Rig


@pytest.fixture(params=FACES, ids=str)
def faced(request: pytest.FixtureRequest) -> Faced:
    return Faced(request.param)
