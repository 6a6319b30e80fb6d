"""A measurement that ends in time, whatever its servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_within"]

T = TypeVar("T")


def run_within(work: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """`asyncio.run(work)`, given up after so many seconds (None: never). Raises TimeoutError."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())
