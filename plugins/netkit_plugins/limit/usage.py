"""What an answer says that it cost: the `usage` of JSON answers, and of the last events of a stream.

Rules of this file:

- Nothing is held up and nothing is buffered but the last `TAIL` bytes: `usage` comes at the end of an answer, or in
  the last event but one.
- Chunks pass unchanged. A compressed answer is unpacked on the side, piece by piece.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

__all__ = ["UsageReader"]

TAIL: Final = 4096
_FIELD: Final = re.compile(rb'"((?:total|prompt|completion|input|output)_tokens)"\s*:\s*(\d{1,15})', re.ASCII)


class UsageReader:
    """An `on_chunk` observer; `tokens()` after the end."""

    __slots__ = ("_begun", "_inflate", "_start", "_tail")

    def __init__(self) -> None:
        self._tail = b""
        self._start = b""
        self._begun = False
        self._inflate: zlib._Decompress | None = None

    def chunk(self, data: bytes) -> bytes:
        if self._begun:
            self._take(data)
        else:
            # Told by its first two bytes: some stacks unpack before this observer, and leave the header.
            self._start += data
            if len(self._start) >= 2:
                self._begun = True
                if self._start[:2] == b"\x1f\x8b":
                    self._inflate = zlib.decompressobj(wbits=31)
                self._take(self._start)
                self._start = b""
        return data

    def tokens(self) -> float | None:
        """Tokens in all; None when the answer does not say."""
        found = {name: int(count) for name, count in _FIELD.findall(self._tail)}
        if b"total_tokens" in found:
            return float(found[b"total_tokens"])
        parts = [found[name] for name in (b"prompt_tokens", b"input_tokens") if name in found][:1]
        parts += [found[name] for name in (b"completion_tokens", b"output_tokens") if name in found][:1]
        return float(sum(parts)) if parts else None

    def _take(self, data: bytes) -> None:
        if self._inflate is None:
            self._keep(data)
        else:
            self._unpack(data)

    def _keep(self, data: bytes) -> None:
        self._tail = data[-TAIL:] if len(data) >= TAIL else (self._tail + data)[-TAIL:]

    def _unpack(self, data: bytes) -> None:
        assert self._inflate is not None
        try:
            while data:
                # In pieces: a bomb must not grow here while the caller's own reader would refuse it.
                self._keep(self._inflate.decompress(data, 1 << 16))
                data = self._inflate.unconsumed_tail
        except zlib.error:
            self._tail = b""
