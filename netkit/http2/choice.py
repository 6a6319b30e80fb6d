"""Which connection serves the next request: a pure function over what the connections report.

Rules of this file:

- Nothing here waits, opens or counts; the pool acts on the answer.
- Connections come oldest first and are usable ones only: draining and dead connections are not offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

__all__ = ["Choice", "Occupancy", "choose"]


class Occupancy(Protocol):
    """What the decision needs to know of a connection."""

    open: int
    """Streams open now."""
    limit: int
    """Streams that it may have open now: ours, the server's, 1 before the server's SETTINGS."""
    expected: int
    """`limit`, or what it will probably be once the server's SETTINGS are here."""
    uploads: int
    """Open streams with a large body still being sent."""


View = TypeVar("View", bound=Occupancy)


class Choice(NamedTuple):
    """`use` is the index of the connection to take, None to wait; `dial` says to open another one."""

    use: int | None
    dial: bool


def choose(
    connections: Sequence[Occupancy],
    *,
    dialing: int,
    max_connections: int,
    spread: bool = False,
    upload: bool = False,
    negotiated: bool = True,
    waiting: int = 1,
) -> Choice:
    """Decide for the first of `waiting` requests.

    Packed: the oldest connection with room, lanes with large uploads last. Spread: the one with the fewest open
    streams, and another is dialled while all are busy. Connections that are about to have room are waited for, as far
    as that is enough for all who wait. A large upload takes an idle connection or a new one while
    there may be more, else any with room. One dial at a time, save that uploads may each dial their lane once the
    server is known to speak HTTP/2 (`negotiated`).
    """
    may_dial = len(connections) + dialing < max_connections
    if upload:
        for index, view in enumerate(connections):
            if view.open == 0 and view.limit > 0:
                return Choice(index, False)
        if may_dial:
            return Choice(None, negotiated or dialing == 0)
        if dialing:
            return Choice(None, False)
    best: int | None = None
    for index, view in enumerate(connections):
        if view.open >= view.limit:
            continue
        if best is None:
            best = index
            continue
        chosen = connections[best]
        if (view.uploads, view.open) < (chosen.uploads, chosen.open) if spread else view.uploads < chosen.uploads:
            best = index
    if best is None:
        room = sum(view.expected - view.open for view in connections if view.expected > view.limit)
        return Choice(None, may_dial and dialing == 0 and waiting > room)
    busy = spread and connections[best].open > 0
    return Choice(best, busy and may_dial and dialing == 0)
