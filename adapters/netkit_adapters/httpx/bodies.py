"""Request bodies: httpx's streams as netkit bodies that know whether they can be sent again, and back.

Rules of this file:

- A body counts as replayable only when its second reading surely gives the same bytes: memory, lists, seekable
  files. A file starts again where it stood when the request was sent, not at its beginning.
- What cannot be recognised is one-shot.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

from netkit.messages import NO_BODY, Body
from netkit_adapters.httpx.stack import Stack

__all__ = ["body_of", "stream_of"]


def body_of(stack: Stack, request: Any) -> Body:
    """The neutral form of a native request's stream."""
    stream: Any = request.stream
    kind: Any = type(stream)
    if kind is stack.byte_stream:
        content = stream._stream if type(getattr(stream, "_stream", None)) is bytes else b"".join(stream)
        return Body.of(content) if content else NO_BODY
    length = request.headers.get("content-length", "")
    size = int(length) if length.isdigit() else None
    if stack.multipart_stream is not None and kind is stack.multipart_stream:
        # Its file fields seek to 0 by themselves before each reading.
        files = [getattr(field, "file", None) for field in stream.fields]
        if all(file is None or isinstance(file, (str, bytes)) or _seekable(file) for file in files):
            return Body.reopenable(lambda: stream, size)
    elif stack.iterator_stream is not None and kind is stack.iterator_stream:
        source: Any = getattr(stream, "_stream", None)
        if isinstance(source, (list, tuple)):
            return Body.reopenable(lambda: stream, size)
        if hasattr(source, "read") and _seekable(source):
            start = source.tell()

            def rewind() -> Any:
                source.seek(start)
                return stream

            return Body.reopenable(rewind, size)
    return Body.one_shot(stream, size)


def _seekable(file: Any) -> bool:
    try:
        return bool(file.seekable()) if hasattr(file, "seekable") else file.seek(file.tell()) is not None
    except (AttributeError, OSError, ValueError):
        return False


def stream_of(stack: Stack, body: Body, *, asynchronous: bool) -> Any:
    """A native stream for a body that a layer put in."""
    opened = body.open()
    if isinstance(opened, bytes):
        return stack.native.ByteStream(opened)
    native = stack.native.AsyncByteStream if asynchronous else stack.native.SyncByteStream
    if isinstance(opened, native):
        return opened
    if asynchronous and not isinstance(opened, AsyncIterable):
        opened = _over(opened)
    return stack.native.Request("POST", "http://localhost", content=opened).stream


async def _over(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
