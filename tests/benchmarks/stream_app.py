"""What granian serves: token streams with a fixed pace, streams that stay open, and its own counters.

GET /stream?events=100&gap=10     one event of about 90 bytes each `gap` milliseconds, by the clock
GET /hold                         one event, then nothing until the client leaves
GET /counters                     what was seen since the last look
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs

EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"tok"}}]}\n\n'
_requests: dict[str, int] = {}
_connections: set[Any] = set()
_open = 0
_most = 0


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    global _most, _open, _requests, _connections
    if scope["type"] != "http":
        return
    path = scope["path"]
    if path == "/counters":
        body = json.dumps(
            {
                "requests": sum(_requests.values()),
                "protocols": {f"HTTP/{version}": count for version, count in _requests.items()},
                "connections": len(_connections),
                "most_open": _most,
            }
        ).encode()
        _requests, _connections, _most = {}, set(), _open
        await _start(send, b"application/json")
        await send({"type": "http.response.body", "body": body})
        return
    version = scope["http_version"]
    _requests[version] = _requests.get(version, 0) + 1
    _connections.add(tuple(scope["client"] or ()))
    _open += 1
    _most = max(_most, _open)
    try:
        await _serve(scope, receive, send)
    finally:
        _open -= 1


async def _serve(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await _start(send, b"text/event-stream")
    await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    if scope["path"] == "/hold":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    query = parse_qs(scope["query_string"].decode())
    events, gap = int(query["events"][0]), float(query["gap"][0]) / 1000
    loop = asyncio.get_running_loop()
    due = loop.time()
    for _ in range(events - 2):
        due += gap
        await asyncio.sleep(max(0.0, due - loop.time()))
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    await asyncio.sleep(max(0.0, due + gap - loop.time()))
    await send({"type": "http.response.body", "body": EVENT})


async def _start(send: Any, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
