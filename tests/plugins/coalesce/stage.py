"""Identical calls that meet at a server, on every face."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import netkit
from netkit.events import CallShared
from netkit.testing import conformance
from netkit.testing.conformance._bench import Bench, run
from netkit.testing.conformance._cases import _own_environment
from netkit.testing.conformance._servers import Servers
from netkit.testing.conformance._session import Face, Session
from netkit.testing.mock_gpu import Answer, Exchange, Signal

FACES = [face for face in conformance.FACES if conformance.is_installed(face)]
_CASES = [(face, http) for face in FACES for http in ("1.1", "2")]
every_face = pytest.mark.parametrize(("face", "http"), _CASES, ids=str)
every_async_face = pytest.mark.parametrize(("face", "http"), [case for case in _CASES if case[0].is_async], ids=str)
"""Threads are not cancelled from outside."""

BODY = b'{"model":"m","input":"a"}'


class Stage:
    """A pure route whose answers wait for a signal, and sessions whose callers meet there."""

    def __init__(self, bench: Bench, plugins: dict[str, Any]) -> None:
        self.bench = bench
        self.plugins = plugins
        self.path = f"/{bench.servers.number()}/v1/embeddings"
        self.url = bench.gpu.url + self.path
        self.go = Signal()
        self.counter = itertools.count(1)
        self.joined = 0
        self._arrivals: dict[int, Signal] = {}
        self._changed = threading.Condition()
        bench.gpu.route(self.path, self.answer)

    async def answer(self, exchange: Exchange) -> Answer:
        number = next(self.counter)
        self._arrival(number).set()
        await self.go.wait_async()
        return Answer.json({"counter": number, "body": exchange.content.decode()})

    def listener(self, event: Any) -> None:
        if isinstance(event, CallShared):
            with self._changed:
                self.joined += 1
                self._changed.notify_all()

    async def until_joined(self, callers: int) -> None:
        """Until so many wait for another's answer."""
        if not self.bench.face.is_async:
            with self._changed:
                assert self._changed.wait_for(lambda: self.joined >= callers, timeout=10)
            return
        async with asyncio.timeout(10):
            while self.joined < callers:
                await asyncio.sleep(0)

    @property
    def seen(self) -> list[Any]:
        return self.bench.seen(self.url)

    async def until_arrived(self, requests: int) -> None:
        """Until the server has so many, answered or not."""
        if self.bench.face.is_async:
            await self._arrival(requests).wait_async()
        else:
            self._arrival(requests).wait()

    def _arrival(self, number: int) -> Signal:
        # One step, also when the server's thread and a caller's ask at once.
        return self._arrivals.setdefault(number, Signal())

    async def post(self, session: Session, **options: Any) -> Any:
        options.setdefault("headers", {"content-type": "application/json"})
        return await session.request("POST", self.url, content=options.pop("content", BODY), **options)


def play(
    face: Face,
    http: str,
    scene: Callable[[Stage, Session], Coroutine[Any, Any, None]],
    plugins: dict[str, Any] | None = None,
) -> None:
    with _own_environment():
        bench = Bench(conformance.Subject("coalesce", plugins or {}), face, http, Servers.shared())
        bench.gpu.log.clear()

        async def whole() -> None:
            stage = Stage(bench, bench.plugins)
            async with bench.session() as session:
                remove = netkit.listen(session.native, stage.listener)
                try:
                    await scene(stage, session)
                finally:
                    stage.go.set()
                    remove()
                assert netkit.stats(session.native).coalesce.in_flight == 0
                assert bench.held(session) == {}

        run(face, whole())


@contextmanager
def in_background(jobs: list[Callable[[], Any]]) -> Iterator[list[Any]]:
    """Each in a thread of its own; the list holds what they gave or raised, once the block is left."""
    results: list[Any] = [None] * len(jobs)

    def work(number: int, job: Callable[[], Any]) -> None:
        try:
            results[number] = job()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number, job)) for number, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        for thread in threads:
            thread.join(timeout=20)
        assert not any(thread.is_alive() for thread in threads)


async def together(
    stage: Stage,
    jobs: list[Callable[[], Coroutine[Any, Any, Any]]],
    meanwhile: Callable[[], Coroutine[Any, Any, None]],
) -> list[Any]:
    """What `jobs` gave or raised, all at once; `meanwhile` runs beside them."""
    if stage.bench.face.is_async:
        tasks = [asyncio.ensure_future(job()) for job in jobs]
        await meanwhile()
        return await asyncio.gather(*tasks, return_exceptions=True)
    from netkit.flow import run_sync

    with in_background([lambda job=job: run_sync(job()) for job in jobs]) as results:  # type: ignore[misc]
        await meanwhile()
    return results
