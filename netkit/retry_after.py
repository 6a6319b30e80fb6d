"""How long a server asks its clients to wait: Retry-After (RFC 9110 section 10.2.3) and retry-after-ms."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Final

from netkit.headers import Headers

__all__ = ["requested_delay"]

_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)


def requested_delay(headers: Headers, wall: float) -> float | None:
    """Seconds to wait, 0.0 for a moment that has passed, None when nothing readable was sent.

    `wall` is the time as seconds since 1970; only the date form needs it. `retry-after-ms` is finer and wins.
    """
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and _NUMBER.fullmatch(milliseconds.strip()):
        return float(milliseconds) / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    value = value.strip()
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
        return max(0.0, moment.timestamp() - wall)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
