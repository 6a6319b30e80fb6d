"""A breaker layer on the Scripted runtime, with a scripted server below it."""

from __future__ import annotations

from typing import Any

import pytest
from netkit_plugins.breaker import BreakerLayer, BreakerOptions

from netkit import Context, Request, Response
from netkit.events import Emitter
from netkit.runtime import Scripted
from netkit.stats import Meter

URL = "http://h/v1/embeddings"


class Rig:
    """One session. Each call takes the next step of the script: a status, an exception, or a response."""

    def __init__(self, *script: Any, runtime: Any = None, **options: Any) -> None:
        self.runtime = runtime or Scripted()
        self.emit = Emitter()
        self.events: list[Any] = []
        self.emit.add(self.events.append)
        context = Context(runtime=self.runtime, emit=self.emit, stack="scripted", meter=Meter())
        self.layer = BreakerLayer(BreakerOptions(**options), context)
        self.script = list(script)
        self.seen = 0

    async def send(self, request: Request) -> Response:
        self.seen += 1
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        await self.runtime.checkpoint("send")
        if isinstance(step, BaseException):
            raise step
        return step if isinstance(step, Response) else Response.of(step)

    def start(self, url: str = URL, cancel_at: int | None = None, **extensions: Any) -> Any:
        request = Request("POST", url, extensions=extensions)
        return self.runtime.task(self.layer(request, self.send), cancel_at=cancel_at)

    def call(self, url: str = URL, **extensions: Any) -> Any:
        """Run one call to the end of its body; its task."""
        task = self.start(url, **extensions)
        self.runtime.run()
        try:
            task.result().body.end()
        except Exception:
            pass
        return task

    def circuit(self, name: str = "http://h") -> Any:
        return self.layer.stats()[name]


@pytest.fixture
def rig() -> type[Rig]:
    return Rig
