"""Which event loop is running: asyncio's or trio's."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

__all__ = ["current_loop"]


def current_loop() -> Any:
    """What tells one running loop from another: asyncio's loop or trio's token; None outside of both."""
    loop = asyncio._get_running_loop()
    if loop is not None:
        return loop
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None
