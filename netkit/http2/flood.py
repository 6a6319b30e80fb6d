"""How many frames that cost us and carry nothing a server may send: a bucket that fills with time."""

from __future__ import annotations

from time import monotonic
from typing import Final

from netkit.http2.protocol import Code, MachineError

__all__ = ["FloodGuard"]

_BURST: Final = 1000
_RATE: Final = 100.0
"""Frames per second that may go on for ever."""


class FloodGuard:
    """One connection's bucket."""

    __slots__ = ("_left", "_time")

    def __init__(self) -> None:
        self._left = float(_BURST)
        self._time = monotonic()

    def count(self) -> None:
        """One such frame has come. Raises `MachineError` (ENHANCE_YOUR_CALM) when there are too many."""
        now = monotonic()
        left = self._left + (now - self._time) * _RATE
        self._time = now
        self._left = min(float(_BURST), left) - 1
        if self._left < 0:
            self._left = _BURST
            raise MachineError("the server floods the connection with control frames", Code.ENHANCE_YOUR_CALM)

    def __repr__(self) -> str:
        return f"<FloodGuard {self._left:g} frames left>"
