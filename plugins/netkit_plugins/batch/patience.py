"""How long each caller waits, and how long a batch may take: pure decisions on timeouts.

A batch goes out with the most patient limits among its callers, so that nobody's call is cut short by another's. Who
gave stricter ones leaves by them, and the batch goes on for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from netkit.messages import Timeout

__all__ = ["gives_up_at", "most_patient"]


def most_patient(timeouts: Sequence[Timeout], joined: Sequence[float], now: float) -> Timeout:
    """Limit by limit the longest; None, which is no limit, is longer than any number. `total` began when each caller
    `joined`: what is left of it counts."""
    first = timeouts[0]
    if first.total is None and all(timeout is first or timeout == first for timeout in timeouts):
        return first
    totals = [
        None if timeout.total is None else max(0.0, since + timeout.total - now)
        for timeout, since in zip(timeouts, joined, strict=True)
    ]
    return Timeout(
        _longest([timeout.connect for timeout in timeouts]),
        _longest([timeout.read for timeout in timeouts]),
        _longest([timeout.write for timeout in timeouts]),
        _longest([timeout.pool for timeout in timeouts]),
        _longest(totals),
    )


def _longest(limits: Sequence[float | None]) -> float | None:
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None


def gives_up_at(own: Timeout, joined: float, sent: float | None, of_the_batch: Timeout | None) -> float | None:
    """The time at which a caller leaves, None for never.

    `total` runs from `joined`. Before its batch is `sent`, a caller waits no longer than for a silent server; after
    that the transport watches the batch, and only a caller who is less patient than the batch watches by itself.
    """
    limits = [] if own.total is None else [joined + own.total]
    if own.read is not None:
        if sent is None:
            limits.append(joined + own.read)
        elif of_the_batch is None or of_the_batch.read is None or own.read < of_the_batch.read:
            limits.append(sent + own.read)
    return min(limits, default=None)
