"""A retry layer on the Scripted runtime, with a scripted server below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from netkit_plugins.retry import RetryLayer, RetryOptions
from netkit_plugins.retry.budget import forget_budgets

from netkit import Context, Request, Response
from netkit.events import Emitter
from netkit.runtime import Scripted
from netkit.stats import Meter


class Rig:
    """One session: `rig.call(request)` runs a call to its end and returns the task."""

    def __init__(self, options: RetryOptions, *script: Any) -> None:
        self.runtime = Scripted()
        self.emit = Emitter()
        self.events: list[Any] = []
        self.emit.add(self.events.append)
        self.meter = Meter()
        context = Context(runtime=self.runtime, emit=self.emit, stack="scripted", meter=self.meter)
        self.layer = RetryLayer(options, context)
        self.script = list(script)
        self.seen: list[Request] = []
        self.times: list[float] = []
        self.made: list[Response] = []

    async def send(self, request: Request) -> Response:
        self.seen.append(request)
        self.times.append(self.runtime.now())
        await self.runtime.checkpoint("send")
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, BaseException):
            raise step
        response = step() if callable(step) else Response.of(step)
        self.made.append(response)
        return response

    def start(self, request: Request, **how: Any) -> Any:
        return self.runtime.task(self.layer(request, self.send), **how)

    def call(self, request: Request) -> Any:
        task = self.start(request)
        self.runtime.run_to_end()
        return task

    @property
    def delays(self) -> list[float]:
        return [round(after - before, 6) for before, after in zip(self.times, self.times[1:], strict=False)]

    def budget(self) -> Any:
        return next(iter(self.layer._targets.values())).budget


@pytest.fixture(autouse=True)
def _fresh_budgets() -> Iterator[None]:
    forget_budgets()
    yield
    forget_budgets()


@pytest.fixture
def rig() -> type[Rig]:
    return Rig
