"""What a request's body may hold pictures in, and reading it where it is not in memory yet."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from itertools import chain
from typing import Any

from netkit import Body, Headers
from netkit.errors import ImageError
from netkit_plugins.image.json_bodies import find_in_json
from netkit_plugins.image.multipart import boundary_of, find_in_multipart
from netkit_plugins.image.opening import looks_like_picture
from netkit_plugins.image.places import Places
from netkit_plugins.image.spots import RawSpot, Spot

__all__ = ["TooLong", "find", "kind_of", "read_body"]


def kind_of(headers: Headers, *, sniff: bool) -> str | None:
    """ "json", "multipart", "raw", "any" (only its first bytes tell) or None: a body of this request is not ours."""
    if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        return None
    content_type = (headers.get("content-type") or "").partition(";")[0].strip().lower()
    if content_type.startswith("image/"):
        return "raw"
    if content_type.startswith("multipart/"):
        return "multipart"
    if content_type.endswith(("/json", "+json")):
        return "json"
    if not content_type:
        return "any"
    return "any" if sniff and content_type != "application/x-www-form-urlencoded" else None


def find(body: bytes, kind: str, headers: Headers, places: Places, *, sniff: bool) -> list[Spot]:
    """The pictures in a body of this kind."""
    if kind == "multipart":
        boundary = boundary_of(headers.get("content-type") or "")
        return [] if boundary is None else list(find_in_multipart(body, boundary))
    if kind == "raw" or (kind == "any" and sniff and looks_like_picture(body[:16])):
        return [RawSpot(body)]
    if kind == "json" or body[:64].lstrip()[:1] in (b"{", b"["):
        return list(find_in_json(body, places))
    return []


class TooLong(ImageError):
    """A streamed body is longer than may be read. `body` is all of it, to be sent once more."""

    def __init__(self, body: Body, limit: int) -> None:
        super().__init__(
            f"a streamed body is larger than max_body, {limit} bytes, and cannot be searched for pictures"
        )
        self.body = body


async def read_body(body: Body, limit: int, *, blocking: bool) -> bytes:
    """All of a body, at most `limit` bytes. `blocking`: this caller's thread may wait. Raises TooLong."""
    if body.content is not None:
        return body.content
    opened = body.open()
    if isinstance(opened, (bytes, bytearray, memoryview)):
        return bytes(opened)
    asynchronous = isinstance(opened, AsyncIterable) and not (blocking and isinstance(opened, Iterable))
    source: Any = opened.__aiter__() if isinstance(opened, AsyncIterable) and asynchronous else iter(opened)  # type: ignore[arg-type]
    chunks: list[bytes] = []
    size = 0
    while size <= limit:
        try:
            chunk = await source.__anext__() if asynchronous else next(source)
        except (StopIteration, StopAsyncIteration):
            return b"".join(chunks)
        chunks.append(bytes(chunk))
        size += len(chunk)
    raise TooLong(_whole(body, chunks, source), limit)


def _whole(body: Body, chunks: list[bytes], rest: Any) -> Body:
    """The body again, of which `chunks` were taken."""
    if body.replayable:
        return body
    if isinstance(rest, Iterator):
        return Body.one_shot(chain(chunks, rest), body.size)
    return Body.one_shot(_after(chunks, rest), body.size)


async def _after(chunks: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    async for chunk in rest:
        yield chunk
