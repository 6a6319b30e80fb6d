"""A body that can be read once, kept while it is not known yet whether the server speaks HTTP/2.

Where it does not, the stack's own transport has to send what the engine has taken already.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

__all__ = ["Recorded"]

LIMIT: Final = 1 << 20
"""Bytes: whoever asks for more than so many has long had a connection. A longer chunk is kept whole."""


class Recorded:
    """Iterates `chunks`, and remembers those that it gave. `started`: somebody has begun to read."""

    __slots__ = ("_chunks", "_given", "_size", "started")

    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks = chunks
        self._given: list[Any] | None = []
        self._size = 0
        self.started = False

    def __iter__(self) -> Iterator[Any]:
        self.started = True
        for chunk in self._chunks:
            given = self._given
            if given is not None:
                if self._size >= LIMIT:
                    self._given = None
                else:
                    given.append(chunk)
                    # What is no bytes is the engine's to refuse.
                    self._size += len(chunk) if isinstance(chunk, bytes) else 0
            yield chunk

    def forget(self) -> None:
        """It will not be sent again."""
        self._given = None

    def again(self) -> Iterator[Any] | None:
        """From its beginning, for whoever sends it instead; None when that is not known any more."""
        return None if self._given is None else chain(self._given, self._chunks)
