"""The stacks on the ladder: how each makes the same calls, plain and with netkit.

Rules of this file:

- A stack is imported when its turn comes; one that is not installed is left out, and said so.
- Every answer is checked against the vector of its input: a fast wrong answer counts as an error.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Final

from netkit.cli.demo.ladder import Advance, Step, Workload
from netkit.testing import expected_vector

__all__ = ["STACKS", "AsyncPost", "Calls", "Run", "SyncPost", "in_tasks", "in_threads"]


class Calls:
    """What came of one run: latencies in seconds of the calls that gave the right vector, and how many did not.

    Example::

        for _ in calls.phases():               # the warm-up, if there is one, then what is measured
            for text, due in calls.take():     # in each of the callers
                started = due or time.perf_counter()

    `begins`, if given, is called between the two phases.
    """

    def __init__(self, workload: Workload, advance: Advance, begins: Callable[[], None] | None = None) -> None:
        self._workload = workload
        self._advance = advance
        self._begins = begins
        self._lock = threading.Lock()
        self._left: Iterator[tuple[str, float | None]] = iter(())
        self._counts = False
        self._ends = math.inf
        self.latencies: list[float] = []
        self.errors = 0
        self.seconds = 0.0
        """How long the measured phase took."""
        self.error: str | None = None
        """The first error, as its type and message."""

    def phases(self) -> Iterator[None]:
        """One turn for each phase; within a turn every caller takes until nothing is left."""
        workload = self._workload
        if workload.warm_up:
            self._left = iter([(text, None) for text in workload.warm_up])
            yield
        if self._begins is not None:
            self._begins()
        self._counts = True
        started = time.perf_counter()
        self._ends = started + workload.limit
        due = None if workload.starts is None else [started + start for start in workload.starts]
        self._left = zip(workload.inputs, due or itertools.repeat(None), strict=False)
        yield
        self.seconds = time.perf_counter() - started

    def take(self) -> Iterator[tuple[str, float | None]]:
        """Inputs not yet sent, and when they are due (`time.perf_counter()`); None: now. Every caller draws from the
        same ones."""
        while True:
            with self._lock:
                text, due = next(self._left, (None, None))
            now = time.perf_counter()
            if text is None or (due or now) >= self._ends:
                return
            if now >= self._ends + self._workload.timeout:
                self._count(None, "nobody was free to begin it in time")
                continue
            yield text, due

    def payload(self, text: str) -> dict[str, Any]:
        payload = {"model": self._workload.model, "input": text}
        return payload if self._workload.dimensions is None else {**payload, "dimensions": self._workload.dimensions}

    def done(self, text: str, answer: Any, started: float) -> None:
        vector = answer["data"][0]["embedding"]
        right = bool(vector)
        if self._workload.checked:
            wanted = expected_vector(text, dimensions=self._workload.dimensions or 8)
            right = len(vector) == len(wanted) and all(
                abs(have - want) < 1e-6 for have, want in zip(vector, wanted, strict=True)
            )
        self._count(time.perf_counter() - started if right else None, "a wrong vector")

    def failed(self, error: BaseException) -> None:
        self._count(None, f"{type(error).__name__}: {error}"[:200])

    def _count(self, latency: float | None, error: str) -> None:
        with self._lock:
            if latency is None:
                self.error = self.error or error
            if not self._counts:
                return
            if latency is None:
                self.errors += 1
            else:
                self.latencies.append(latency)
            self._advance()


SyncPost = Callable[[dict[str, Any]], Any]
AsyncPost = Callable[[dict[str, Any]], Awaitable[Any]]
Run = Callable[[Step, Workload, Calls], None]
"""Makes every call of a workload, in threads or in tasks as the stack's users do."""


def in_threads(open_post: Callable[[Step, Workload], AbstractContextManager[SyncPost]]) -> Run:
    """A run of threads that share what `open_post` opens."""

    def run(step: Step, workload: Workload, calls: Calls) -> None:
        with open_post(step, workload) as post, ThreadPoolExecutor(workload.concurrency) as pool:

            def work() -> None:
                for text, due in calls.take():
                    started = time.perf_counter()
                    if due is not None:
                        time.sleep(max(0.0, due - started))
                        started = due
                    try:
                        calls.done(text, post(calls.payload(text)), started)
                    except Exception as error:  # noqa: BLE001 - a failed call is a result here
                        calls.failed(error)

            for _ in calls.phases():
                for worker in [pool.submit(work) for _ in range(workload.concurrency)]:
                    worker.result()

    return run


def in_tasks(open_post: Callable[[Step, Workload], AbstractAsyncContextManager[AsyncPost]]) -> Run:
    """A run of tasks that share what `open_post` opens."""

    async def main(step: Step, workload: Workload, calls: Calls) -> None:
        async with open_post(step, workload) as post:

            async def work() -> None:
                for text, due in calls.take():
                    started = time.perf_counter()
                    if due is not None:
                        await asyncio.sleep(max(0.0, due - started))
                        started = due
                    try:
                        calls.done(text, await post(calls.payload(text)), started)
                    except Exception as error:  # noqa: BLE001 - a failed call is a result here
                        calls.failed(error)

            for _ in calls.phases():
                async with asyncio.TaskGroup() as group:
                    for _ in range(workload.concurrency):
                        group.create_task(work())

    def run(step: Step, workload: Workload, calls: Calls) -> None:
        asyncio.run(main(step, workload, calls))

    return run


@contextmanager
def _requests(step: Step, workload: Workload) -> Iterator[SyncPost]:
    import requests

    import netkit

    options: dict[str, Any] = {
        "verify": workload.ca_file or True,
        "timeout": workload.timeout,
        "headers": dict(workload.headers),
    }
    if step.plugins is None:
        yield lambda payload: requests.post(workload.url, json=payload, **options).json()
        return
    with netkit.Session(plugins=step.plugins) as session:
        yield lambda payload: session.post(workload.url, json=payload, **options).json()


@asynccontextmanager
async def _httpx(step: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
    import httpx

    import netkit

    trust = ssl.create_default_context(cafile=workload.ca_file)
    if step.plugins is None:

        async def post(payload: dict[str, Any]) -> Any:
            async with httpx.AsyncClient(verify=trust, timeout=workload.timeout, headers=workload.headers) as client:
                return (await client.post(workload.url, json=payload)).json()

        yield post
        return
    async with netkit.AsyncClient(
        verify=trust, timeout=workload.timeout, headers=workload.headers, plugins=step.plugins
    ) as client:

        async def pooled(payload: dict[str, Any]) -> Any:
            return (await client.post(workload.url, json=payload)).json()

        yield pooled


@asynccontextmanager
async def _aiohttp(step: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
    import aiohttp

    import netkit

    timeout = aiohttp.ClientTimeout(total=workload.timeout)
    trust = ssl.create_default_context(cafile=workload.ca_file)
    if step.plugins is None:

        async def post(payload: dict[str, Any]) -> Any:
            async with (
                aiohttp.ClientSession(headers=workload.headers, timeout=timeout) as session,
                session.post(workload.url, json=payload, ssl=trust) as answer,
            ):
                return await answer.json()

        yield post
        return
    async with netkit.ClientSession(headers=workload.headers, timeout=timeout, plugins=step.plugins) as shared:

        async def pooled(payload: dict[str, Any]) -> Any:
            async with shared.post(workload.url, json=payload, ssl=trust) as answer:
                return await answer.json()

        yield pooled


STACKS: Final[dict[str, Run]] = {
    "requests": in_threads(_requests),
    "httpx": in_tasks(_httpx),
    "aiohttp": in_tasks(_aiohttp),
}
"""Name → how its users call."""
