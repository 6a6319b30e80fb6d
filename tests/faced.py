"""Calls through one face: in threads where it is synchronous, in tasks where it is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from netkit.config import Config
from netkit.flow import run_sync
from netkit.testing.conformance import Face

__all__ = ["Faced"]


class Faced:
    """One of `netkit.testing.conformance.FACES`."""

    def __init__(self, face: Face) -> None:
        self.face = face

    def run(
        self, plugins: dict[str, Any], work: Callable[[Any], Awaitable[Any]], config: Config | None = None
    ) -> Any:
        """Open a session and run `work(session)` in it; sync faces never suspend."""

        async def inside() -> Any:
            arguments = {"plugins": {"pool": True, **plugins}, "config": config or Config()}
            session = self.face.opener(self.face.netkit_class(), arguments, {})
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
