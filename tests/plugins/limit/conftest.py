"""A limit layer on the Scripted runtime with a scripted server below it, and calls on every face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from netkit_plugins.limit import LimitLayer, LimitOptions
from netkit_plugins.limit.store import forget_limits

from netkit import Body, Context, Request, Response
from netkit.events import Emitter
from netkit.flow import run_sync
from netkit.runtime import Scripted
from netkit.stats import Meter
from netkit.testing.conformance import FACES, Face


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


class Faced:
    """Calls through one face: in threads where it is synchronous, in tasks where it is not."""

    def __init__(self, face: Face) -> None:
        self.face = face

    def run(self, plugins: dict[str, Any], work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Open a session and run `work(session)` in it; sync faces never suspend."""

        async def inside() -> Any:
            session = self.face.open({"pool": True, **plugins}, {})
            try:
                return await work(session)
            finally:
                await session.close()

        return asyncio.run(inside())

    async def gather(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """All `calls` at once; what each returned or raised."""
        if self.face.is_async:
            return await asyncio.gather(*(call() for call in calls), return_exceptions=True)
        results: list[Any] = [None] * len(calls)

        def work(number: int) -> None:
            try:
                results[number] = run_sync(calls[number]())
            except BaseException as error:
                results[number] = error

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        return results

    async def many(self, count: int, width: int, call: Callable[[int], Any]) -> list[Any]:
        """`count` calls, `width` at a time."""
        numbers = iter(range(count))

        async def worker() -> list[Any]:
            return [await call(number) for number in numbers]

        return [result for results in await self.gather([worker] * width) for result in results]


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
