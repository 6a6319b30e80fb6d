"""A delay line: what one direction of a slow wire does to the bytes (and to the end) that pass it.

Rules of this file: order is kept, whatever is pushed; the end of a connection travels behind its bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["DelayLine"]

_CHUNK_SECONDS = 0.005


class DelayLine:
    """Each piece arrives `latency` seconds after it was pushed, no faster than `bandwidth` bytes per second.

    Args:
        latency: seconds, one way.
        bandwidth: bytes per second; None means no limit.
        not_before: loop time before which nothing arrives (a handshake that is still under way).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, latency: float, bandwidth: float | None, not_before: float = 0.0
    ) -> None:
        self._loop = loop
        self._latency = latency
        self._bandwidth = bandwidth
        self._free_at = not_before
        self._pieces: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.queued = 0
        """Bytes that are under way."""

    def __repr__(self) -> str:
        return f"<DelayLine {self.queued} bytes under way>"

    @property
    def piece(self) -> int | None:
        """How many bytes one piece should have at most, so that a slow wire drips; None means any."""
        return None if self._bandwidth is None else max(1, int(self._bandwidth * _CHUNK_SECONDS))

    def push(self, size: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` when `size` more bytes have passed the wire."""
        ready = max(self._loop.time(), self._free_at)
        if self._bandwidth is not None:
            ready += size / self._bandwidth
        self._free_at = ready
        self.queued += size
        self._pieces.append((ready + self._latency, size, arrive))
        if self._timer is None:
            self._timer = self._loop.call_at(self._pieces[0][0], self._run)

    def _run(self) -> None:
        self._timer = None
        while self._pieces:
            at, size, arrive = self._pieces[0]
            if at > self._loop.time() + 0.0002:
                self._timer = self._loop.call_at(at, self._run)
                return
            self._pieces.popleft()
            self.queued -= size
            arrive()

    def stop(self) -> None:
        """Drop what is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pieces.clear()
        self.queued = 0
