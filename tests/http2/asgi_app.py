"""What granian and hypercorn serve in the interop tests: a word, what an upload was, and a streamed answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

PIECE = bytes(range(256)) * 64


async def application(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/big":
        for _ in range(64):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({"type": "http.response.body", "body": b"%d" % size if size else b"fine"})
