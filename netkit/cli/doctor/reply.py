"""An answer, and what became of an upload that was only announced; the same for HTTP/1.1 and HTTP/2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ANNOUNCED", "MAX_BODY", "PIECE", "Reply", "Upload"]

MAX_BODY: Final = 16 << 20
"""Bytes of an answer that are read; the rest is left alone."""

ANNOUNCED: Final = 1 << 30
"""Bytes that the broken-off upload announces: more than any server takes that has a limit."""

PIECE: Final = 16 << 10
"""Bytes of it that are sent."""


@dataclass(frozen=True)
class Reply:
    """`headers` with lower-case names; `seconds` from the request to the end of the answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    seconds: float

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True)
class Upload:
    """`status` None: the server waits for the whole body before it says anything. `ends` says what it does to the
    connection or the stream after an early answer: "closes", "resets" or "stays"."""

    status: int | None
    ends: str = "stays"
