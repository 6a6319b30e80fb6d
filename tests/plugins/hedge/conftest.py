"""A hedge layer on the Scripted runtime, with scripted replicas below it."""

from __future__ import annotations

from typing import Any

import pytest
from netkit_plugins.hedge import HedgeLayer, HedgeOptions

from netkit import Body, Context, Request, Response
from netkit.events import Emitter
from netkit.runtime import Scripted
from netkit.stats import Meter

URL = "http://h/v1/embeddings"


class Rig:
    """One session. Each sending takes the next step of the script: (seconds, status, exception or response)."""

    def __init__(self, *script: Any, **options: Any) -> None:
        self.runtime = Scripted()
        self.emit = Emitter()
        self.events: list[Any] = []
        self.emit.add(self.events.append)
        context = Context(runtime=self.runtime, emit=self.emit, stack="scripted", meter=Meter())
        self.layer = HedgeLayer(HedgeOptions(**{"delay": 1.0, "max_extra_load": 1.0, **options}), context)
        self.script = list(script)
        self.sent: list[Request] = []
        self.answers: list[Response] = []
        self.cancelled: list[int] = []

    async def send(self, request: Request) -> Response:
        number = len(self.sent)
        self.sent.append(request)
        seconds, step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if (told := request.extensions.get("on_endpoint")) is not None:
            told(f"replica-{number}")
        try:
            await self.runtime.sleep(seconds)
        except BaseException:
            self.cancelled.append(number)
            raise
        if isinstance(step, BaseException):
            raise step
        answer = step if isinstance(step, Response) else Response.of(step, number=number)
        self.answers.append(answer)
        return answer

    def start(
        self,
        url: str = URL,
        method: str = "POST",
        body: Body | None = None,
        cancel_at: int | None = None,
        **more: Any,
    ) -> Any:
        request = Request(method, url, body=body or Body.of(b"{}"), extensions=more)
        return self.runtime.task(self.layer(request, self.send), name="call", cancel_at=cancel_at)

    def call(self, **more: Any) -> Any:
        """What one call comes to."""
        task = self.start(**more)
        self.runtime.run_to_end()
        return task.result()

    @property
    def stats(self) -> tuple[int, int, int, int]:
        """calls, sent, won, denied."""
        stats = self.layer.stats()
        return stats.calls, stats.sent, stats.won, stats.denied


@pytest.fixture
def rig() -> type[Rig]:
    return Rig
