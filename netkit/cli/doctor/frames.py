"""What a server's own HTTP/2 frames say about it: SETTINGS, and the window that it opens for the whole connection."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["Frames"]

_HEAD: Final = 9
_SETTINGS, _WINDOW_UPDATE = 4, 8
_KEPT: Final = 16 << 10


class Frames:
    """Reads along. `settings` by number (RFC 9113 section 6.5.2), `window` of the connection in bytes; `settled` once
    SETTINGS were there. Other frames pass by; of one payload at most 16 KiB is kept."""

    def __init__(self) -> None:
        self.settings: dict[int, int] = {}
        self.window = 65535
        self.settled = False
        self._head = b""
        self._payload = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if len(self._head) < _HEAD:
                missing = _HEAD - len(self._head)
                self._head += bytes(view[:missing])
                view = view[missing:]
                if len(self._head) < _HEAD:
                    return
                self._left = int.from_bytes(self._head[:3], "big")
            piece = view[: self._left]
            view = view[len(piece) :]
            self._left -= len(piece)
            self._payload += piece[: _KEPT - len(self._payload)]
            if not self._left:
                self._frame(self._head[3], self._head[4], int.from_bytes(self._head[5:], "big") & 0x7FFFFFFF)
                self._head, self._payload = b"", bytearray()

    def _frame(self, kind: int, flags: int, stream: int) -> None:
        if kind == _SETTINGS and not flags & 1:
            self.settled = True
            whole = len(self._payload) - len(self._payload) % 6
            self.settings.update(struct.iter_unpack(">HI", self._payload[:whole]))
        elif kind == _WINDOW_UPDATE and not stream and len(self._payload) == 4 and self.window < 1 << 31:
            self.window += int.from_bytes(self._payload, "big") & 0x7FFFFFFF
