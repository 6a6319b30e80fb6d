"""Two copies of one call, and which of them is the answer.

Rules of this file:

- It is decided once, under the lock; whatever ends later belongs to nobody, and whoever brings it throws it away.
- The first good answer wins. For the first copy every answer is good that says the server is well; the second has to
  bring what was asked for: an error of its own does not beat a first copy that still runs.
- Without a good answer the first copy's outcome is the call's.
"""

from __future__ import annotations

import threading
from typing import Final

from netkit import Response
from netkit.runtime import Spawned

__all__ = ["Copy", "Race"]

OVERLOADED: Final = frozenset({408, 421, 425, 429})


class Copy:
    """One of the two. `ended` is None while it runs; `admitted`: a limiter above counts it as sent."""

    __slots__ = ("admitted", "ended", "error", "is_first", "response", "spawned", "started")

    def __init__(self, *, is_first: bool, started: float) -> None:
        self.is_first = is_first
        self.admitted = is_first
        self.started = started
        self.ended: float | None = None
        self.response: Response | None = None
        self.error: Exception | None = None
        self.spawned: Spawned | None = None

    @property
    def is_good(self) -> bool:
        if self.response is None:
            return False
        status = self.response.status
        return status < 500 and status not in OVERLOADED if self.is_first else status < 400

    def take(self) -> Response:
        """Its answer, or its error raised; nothing of either is kept."""
        response, error = self.response, self.error
        self.response = self.error = None
        try:
            if error is not None:
                raise error
            assert response is not None
            return response
        finally:
            # The error's traceback holds this frame: no cycle is to keep what it failed on.
            del error


class Race:
    """Between the copies of one call. Safe from any thread."""

    __slots__ = ("_lock", "copies", "decided", "winner")

    def __init__(self, first: Copy) -> None:
        self._lock = threading.Lock()
        self.copies = [first]
        self.decided = False
        self.winner: Copy | None = None

    def join(self, copy: Copy) -> bool:
        """A second copy is about to be sent; False when it is not needed any more."""
        with self._lock:
            if not self.decided:
                self.copies.append(copy)
            return not self.decided

    def admit(self, copy: Copy) -> bool:
        """A limiter let it pass; False when it is not needed any more, and has to be given back there."""
        with self._lock:
            copy.admitted = not self.decided
            return copy.admitted

    def settle(self, copy: Copy, response: Response | None, error: Exception | None, now: float) -> bool:
        """A copy came to its end. False when nobody wants it any more."""
        with self._lock:
            if self.decided:
                return False
            copy.response, copy.error, copy.ended = response, error, now
            if copy.is_good:
                self.winner = copy
            elif all(other.ended is not None for other in self.copies):
                self.winner = self.copies[0]
            self.decided = self.winner is not None
            return True

    def abandon(self) -> list[Response]:
        """Its caller has left. The answers that had come, and that nobody will read."""
        with self._lock:
            self.decided = True
            found = [copy.response for copy in self.copies if copy.response is not None]
            for copy in self.copies:
                copy.response = copy.error = None
            return found

    def __repr__(self) -> str:
        return f"<Race of {len(self.copies)} {'decided' if self.decided else 'open'}>"
