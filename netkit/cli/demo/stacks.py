"""The stacks on the ladder: how each makes the same calls, plain and with netkit.

Rules of this file:

- A stack is imported when its turn comes; one that is not installed is left out, and said so.
- Every answer is checked against the vector of its input: a fast wrong answer counts as an error.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Final

from netkit.cli.demo.ladder import Advance, Step, Workload
from netkit.testing import expected_vector

__all__ = ["STACKS", "Calls"]


class Calls:
    """What came of one run: latencies in seconds of the calls that gave the right vector, and how many did not."""

    def __init__(self, workload: Workload, advance: Advance) -> None:
        self._workload = workload
        self._advance = advance
        self._lock = threading.Lock()
        self._left = iter(workload.inputs)
        self.latencies: list[float] = []
        self.errors = 0

    def take(self) -> Iterator[str]:
        """Inputs not yet sent; every worker draws from the same ones."""
        while True:
            with self._lock:
                text = next(self._left, None)
            if text is None:
                return
            yield text

    def payload(self, text: str) -> dict[str, Any]:
        return {"model": "mock-embed", "input": text, "dimensions": self._workload.dimensions}

    def done(self, text: str, answer: Any, started: float) -> None:
        vector = answer["data"][0]["embedding"]
        wanted = expected_vector(text, dimensions=self._workload.dimensions)
        right = len(vector) == len(wanted) and all(
            abs(have - want) < 1e-6 for have, want in zip(vector, wanted, strict=True)
        )
        self._count(time.perf_counter() - started if right else None)

    def failed(self) -> None:
        self._count(None)

    def _count(self, latency: float | None) -> None:
        with self._lock:
            if latency is None:
                self.errors += 1
            else:
                self.latencies.append(latency)
            self._advance()


SyncPost = Callable[[dict[str, Any]], Any]
AsyncPost = Callable[[dict[str, Any]], Awaitable[Any]]


def _in_threads(open_post: Callable[[Step, Workload], AbstractContextManager[SyncPost]]) -> Any:
    def run(step: Step, workload: Workload, calls: Calls) -> None:
        with open_post(step, workload) as post, ThreadPoolExecutor(workload.concurrency) as pool:

            def work() -> None:
                for text in calls.take():
                    started = time.perf_counter()
                    try:
                        calls.done(text, post(calls.payload(text)), started)
                    except Exception:  # noqa: BLE001 - a failed call is a result here
                        calls.failed()

            for worker in [pool.submit(work) for _ in range(workload.concurrency)]:
                worker.result()

    return run


def _in_tasks(open_post: Callable[[Step, Workload], AbstractAsyncContextManager[AsyncPost]]) -> Any:
    async def main(step: Step, workload: Workload, calls: Calls) -> None:
        async with open_post(step, workload) as post:

            async def work() -> None:
                for text in calls.take():
                    started = time.perf_counter()
                    try:
                        calls.done(text, await post(calls.payload(text)), started)
                    except Exception:  # noqa: BLE001 - a failed call is a result here
                        calls.failed()

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

    if step.plugins is None:
        yield lambda payload: requests.post(workload.url, json=payload, verify=workload.ca_file, timeout=30).json()
        return
    with netkit.Session(plugins=step.plugins) as session:
        yield lambda payload: session.post(workload.url, json=payload, verify=workload.ca_file, timeout=30).json()


@asynccontextmanager
async def _httpx(step: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
    import httpx

    import netkit

    trust = ssl.create_default_context(cafile=workload.ca_file)
    if step.plugins is None:

        async def post(payload: dict[str, Any]) -> Any:
            async with httpx.AsyncClient(verify=trust, timeout=30) as client:
                return (await client.post(workload.url, json=payload)).json()

        yield post
        return
    async with netkit.AsyncClient(verify=trust, timeout=30, plugins=step.plugins) as client:

        async def pooled(payload: dict[str, Any]) -> Any:
            return (await client.post(workload.url, json=payload)).json()

        yield pooled


@asynccontextmanager
async def _aiohttp(step: Step, workload: Workload) -> AsyncIterator[AsyncPost]:
    import aiohttp

    import netkit

    trust = ssl.create_default_context(cafile=workload.ca_file)
    if step.plugins is None:

        async def post(payload: dict[str, Any]) -> Any:
            async with (
                aiohttp.ClientSession() as session,
                session.post(workload.url, json=payload, ssl=trust) as answer,
            ):
                return await answer.json()

        yield post
        return
    async with netkit.ClientSession(plugins=step.plugins) as shared:

        async def pooled(payload: dict[str, Any]) -> Any:
            async with shared.post(workload.url, json=payload, ssl=trust) as answer:
                return await answer.json()

        yield pooled


STACKS: Final[dict[str, Callable[[Step, Workload, Calls], None]]] = {
    "requests": _in_threads(_requests),
    "httpx": _in_tasks(_httpx),
    "aiohttp": _in_tasks(_aiohttp),
}
"""Name → a function that makes every call of a workload, in threads or in tasks as the stack's users do."""
