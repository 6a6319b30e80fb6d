"""Whose fault a failure is: only what the server or the way to it did wrong counts against it."""

from __future__ import annotations

from typing import Final

from netkit.errors import BodyClosed, FailureKind, TransportError, Verdict

__all__ = ["Judgement", "judge_end", "judge_error"]

Judgement = bool | None
"""True: it counts as a failure. False: as a success. None: it says nothing about the server."""

OWN: Final = frozenset({FailureKind.POOL, FailureKind.CIRCUIT, FailureKind.CERTIFICATE})
"""This process holding back, and certificates: whom to trust is the client's setting."""

OWN_REASONS: Final = frozenset({"request_body", "invalid_header"})
SILENCE: Final = frozenset({"first_byte", "between_events"})


def judge_error(error: TransportError) -> Judgement:
    """What a failed exchange says about the server."""
    if error.kind in OWN or error.verdict is Verdict.REFUSED or error.details.get("reason") in OWN_REASONS:
        return None
    if error.kind is FailureKind.DEADLINE:
        # The stack's own limit of a call (aiohttp's `total`) is a time-out like any other. netkit's `deadline` is
        # the caller's patience, unless the server said nothing at all for too long.
        return True if error.native is not None or error.details.get("reason") in SILENCE else None
    if error.kind is FailureKind.PROXY and 400 <= (error.details.get("status") or 0) < 500:
        return None
    return True


def judge_end(error: BaseException | None) -> Judgement:
    """What the end of a body says, after a head with a good status."""
    if error is None or isinstance(error, BodyClosed):
        return False
    if isinstance(error, TransportError):
        return judge_error(error)
    return True if isinstance(error, Exception) else None
