"""A pool layer on the Scripted runtime, with a scripted transport below it."""

from __future__ import annotations

from typing import Any

import pytest
from netkit_plugins.pool import PoolLayer, PoolOptions

from netkit import Context, Request, Response
from netkit.events import Emitter
from netkit.pooling import ConnectionPolicy, PoolCounts, SocketSettings
from netkit.runtime import Scripted
from netkit.stats import Meter


class NativePool:
    """What an adapter's driver looks like to the layer."""

    supports = frozenset({"max_idle", "idle_timeout", "max_lifetime"})

    def __init__(self) -> None:
        self.settings: list[SocketSettings] = []
        self.policies: list[ConnectionPolicy] = []
        self.sweeps = 0
        self.current = PoolCounts()

    def configure(self, settings: SocketSettings, policy: ConnectionPolicy) -> None:
        self.settings.append(settings)
        self.policies.append(policy)

    def counts(self) -> PoolCounts:
        return self.current

    def sweep(self) -> int:
        self.sweeps += 1
        return 0

    def describe(self) -> dict[str, Any]:
        return {"happy_eyeballs": "does not apply"}


class Rig:
    """One session whose transport keeps each response open until the test ends it."""

    def __init__(
        self,
        options: PoolOptions | None = None,
        *,
        runtime: Any = None,
        native: NativePool | None = None,
        meter: Meter | None = None,
        stack: str = "scripted",
    ) -> None:
        self.runtime = runtime or Scripted()
        self.native = native
        self.context = Context(runtime=self.runtime, emit=Emitter(), stack=stack, meter=meter or Meter(), pool=native)
        self.layer = PoolLayer(options or PoolOptions(), self.context)
        self.queue = self.layer._queue
        self.open: list[Response] = []

    async def send(self, request: Request) -> Response:
        await self.runtime.checkpoint("send")
        if request.extensions.get("fail"):
            raise ValueError("no connection")
        response = Response.of(200)
        self.open.append(response)
        return response

    def start(self, url: str = "http://h/", cancel_at: int | None = None, **details: Any) -> Any:
        return self.runtime.task(self.layer(Request("GET", url, **details), self.send), cancel_at=cancel_at)


@pytest.fixture(scope="session")
def rig() -> type[Rig]:
    return Rig


@pytest.fixture
def native() -> NativePool:
    return NativePool()
