"""Waiting until a moment: one place, so that events keep their rhythm whatever the work between them costs."""

from __future__ import annotations

import asyncio
import time

__all__ = ["until"]


async def until(moment: float) -> None:
    """Wait until `time.monotonic()` reaches `moment`; lets other tasks run even when it has passed."""
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
