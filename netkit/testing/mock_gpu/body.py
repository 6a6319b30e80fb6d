"""A request body: fed by the protocol, read once by a route, remembered by its hash.

Rules of this file: bytes that nobody has read hold the client back; what the log keeps of them is bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

__all__ = ["Body", "Gone"]


class Gone(ConnectionError):
    """The exchange is over before its request or its answer was whole: the client left, or a fault cut it."""


class Body:
    """A request body: fed by the protocol, read once by a route."""

    __slots__ = (
        "_chunks",
        "_error",
        "_hash",
        "_keep",
        "_kept",
        "_returned",
        "_want_more",
        "complete",
        "consumed",
        "size",
        "start",
    )

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._chunks: deque[bytes] = deque()
        self._kept: list[bytes] | None = []
        self._hash: Any = None
        self._error: BaseException | None = None
        self._want_more: asyncio.Future[None] | None = None
        self._returned = 0
        self.complete = False
        self.size = 0
        self.consumed: Callable[[int], None] | None = None
        """Called with the bytes that a route took (flow control)."""
        self.start: Callable[[], None] | None = None
        """Called before the first wait for bytes (100 Continue)."""

    def __repr__(self) -> str:
        return f"<Body {self.size} bytes, {'complete' if self.complete else 'incomplete'}>"

    @property
    def waiting(self) -> int:
        """Bytes received and not yet read."""
        return sum(map(len, self._chunks))

    @property
    def uncredited(self) -> int:
        """Of those `waiting`, the bytes for which the client has had no credit: not those that were put back."""
        return max(0, self.waiting - self._returned)

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        self._chunks.append(data)
        if self._kept is not None:
            self._kept.append(data)
            if self.size > self._keep:
                self._hash = hashlib.sha256(b"".join(self._kept))
                self._kept = None
        else:
            self._hash.update(data)
        self._wake()

    def finish(self) -> None:
        self.complete = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Let whoever reads or will read get `error`."""
        if not self.complete:
            self._error = error
            self._wake()

    def take(self) -> bytes:
        """Everything that has arrived and was not read."""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        # Bytes that were put back have had their credit.
        fresh = len(data) - self._returned
        self._returned = max(0, -fresh)
        if fresh > 0 and self.consumed is not None:
            self.consumed(fresh)
        return data

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, each piece once.

        Raises:
            Gone: the exchange was cut in the middle.
        """
        while True:
            if self._chunks:
                yield self.take()
            elif self.complete:
                return
            elif self._error is not None:
                raise self._error
            else:
                if self.start is not None:
                    self.start()
                    self.start = None
                self._want_more = asyncio.get_running_loop().create_future()
                await self._want_more

    async def read(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def wait(self) -> None:
        """Read all of it and throw it away; hash and log keep it."""
        async for _ in self.chunks():
            pass

    def put_back(self, data: bytes) -> None:
        """Let the next reader find `data` first; for faults that wait for the body which the answer reads."""
        if data:
            self._chunks.appendleft(data)
            self._returned += len(data)

    def kept(self) -> bytes | None:
        """The bytes so far, or None where they were more than the log keeps."""
        kept = self._kept  # another thread may ask while the loop goes on
        return None if kept is None else b"".join(kept)

    def sha256(self) -> str:
        """Hash of the bytes so far, in hexadecimal."""
        kept = self._kept
        if kept is not None:
            return hashlib.sha256(b"".join(kept)).hexdigest()
        digest: str = self._hash.copy().hexdigest()
        return digest

    def _wake(self) -> None:
        if self._want_more is not None and not self._want_more.done():
            self._want_more.set_result(None)
