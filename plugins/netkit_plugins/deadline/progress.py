"""Whether a piece of an event stream holds more than comments (WHATWG HTML, section 9.2.5)."""

from __future__ import annotations

__all__ = ["EventProgress"]


class EventProgress:
    """Feed it the pieces in order; they may break anywhere. Constant memory."""

    __slots__ = ("_begun", "_is_comment")

    def __init__(self) -> None:
        self._begun = self._is_comment = False
        """Whether the last piece broke off within a line, and whether that is a comment."""

    def feed(self, data: bytes) -> bool:
        """Whether any line in `data` is neither empty nor (the rest of) a comment, which begins with a colon."""
        found = False
        lines = data.replace(b"\r", b"\n").split(b"\n")
        for number, line in enumerate(lines):
            if number or not self._begun:
                self._is_comment = line.startswith(b":")
            found = found or (bool(line) and not self._is_comment)
        self._begun = bool(lines[-1]) or (self._begun and len(lines) == 1)
        return found
