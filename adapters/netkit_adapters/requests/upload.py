"""Request bodies as the engine takes them: in chunks, remembered while another transport may have to send them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

__all__ = ["Recorded", "chunks_of"]

BLOCK: Final = 65536
"""Bytes that are read from a file at a time."""


class Recorded:
    """A body that remembers what it gave while it is not known yet whether the server speaks HTTP/2, and may have to
    be sent again by another transport. It remembers `LIMIT` bytes at most."""

    LIMIT = 1 << 20

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._given: list[bytes] | None = []
        self._size = 0
        self.started = False

    def __iter__(self) -> Iterator[bytes]:
        self.started = True
        for chunk in self._chunks:
            if self._given is not None and isinstance(chunk, bytes):
                self._given.append(chunk)
                self._size += len(chunk)
                if self._size > self.LIMIT:
                    self._given = None
            yield chunk

    def again(self) -> Iterator[bytes] | None:
        """From its beginning, for the transport that has to send it instead; None when that is not known any more."""
        return None if self._given is None else chain(self._given, self._chunks)


def chunks_of(body: Any) -> Iterator[Any]:
    """The body as urllib3 would send it: files in blocks, iterables item by item, text as UTF-8, nothing for what is
    empty. What is neither bytes nor text is handed on for the engine to refuse."""
    items = iter(lambda: body.read(BLOCK), body.read(0)) if hasattr(body, "read") else iter(body)
    for item in items:
        if isinstance(item, str):
            yield item.encode("utf-8")
        else:
            try:
                yield bytes(memoryview(item))
            except TypeError:
                if item:
                    yield item
