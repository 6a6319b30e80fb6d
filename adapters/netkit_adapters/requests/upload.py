"""Request bodies as the engine takes them: in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["chunks_of"]

BLOCK: Final = 65536
"""Bytes that are read from a file at a time."""


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
