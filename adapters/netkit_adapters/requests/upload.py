"""Request bodies as the engine takes them: in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["chunks_of"]

BLOCK: Final = 65536
"""Bytes that are read from a file at a time."""


def _blocks(body: Any) -> Iterator[Any]:
    # Nothing is asked of a reader but what urllib3 asks: programs' own may know no size, or give what they have.
    while block := body.read(BLOCK):
        yield block


def chunks_of(body: Any) -> Iterator[Any]:
    """The body as urllib3 would send it: files in blocks, iterables item by item, text as UTF-8, nothing for what is
    empty. What is neither bytes nor text is handed on for the engine to refuse."""
    for item in _blocks(body) if hasattr(body, "read") else body:
        if isinstance(item, str):
            yield item.encode("utf-8")
        else:
            try:
                yield bytes(memoryview(item))
            except TypeError:
                if item:
                    yield item
