"""Request bodies: aiohttp's payload objects and netkit's `Body`, both ways.

Rules of this file:

- A payload is sent by aiohttp itself, as often as needed: it rewinds files to where they stood. netkit only says
  whether that works.
- Looking into a body leaves the payload fit to be sent.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final

from aiohttp import MultipartWriter
from aiohttp.payload import AsyncIterablePayload, BytesIOPayload, BytesPayload, IOBasePayload, Payload

from netkit.messages import NO_BODY, Body

__all__ = ["body_of", "data_of"]

LARGE: Final = 2**20
"""aiohttp warns of plain bytes above this size and wants a BytesIO, which it writes in pieces."""


def body_of(payload: Payload | None) -> Body:
    """The neutral form of a request's payload, before content encoding by `compress=`."""
    if payload is None:
        return NO_BODY
    if isinstance(payload, BytesPayload):
        value = payload._value
        content = value if type(value) is bytes else bytes(value)
        return Body(content, None, len(content), True)
    if _replayable(payload):
        return Body.reopenable(lambda: _chunks(payload), payload.size)
    return Body(None, lambda: _chunks(payload), payload.size, False)


def data_of(body: Body) -> Any:
    """What aiohttp's `data=` takes for a body that a layer made; None when it is empty."""
    content = body.open()
    if isinstance(content, (bytes, bytearray, memoryview)):
        if not content:
            return None
        return content if len(content) <= LARGE else BytesIOPayload(io.BytesIO(content))
    return AsyncIterablePayload(_asynchronous(content))


def _replayable(payload: Payload) -> bool:
    if isinstance(payload, BytesPayload):
        return True
    if isinstance(payload, IOBasePayload):
        try:
            return bool(payload._value.seekable())
        except (AttributeError, OSError, ValueError):
            # A file-like object without it, or one that is closed.
            return False
    if isinstance(payload, MultipartWriter):
        return all(_replayable(part) for part, _, _ in payload._parts)
    return False


async def _chunks(payload: Payload) -> AsyncIterator[bytes]:
    content = await payload.as_bytes()
    if content:
        yield content


async def _asynchronous(chunks: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
    else:
        for chunk in chunks:
            yield chunk
