"""What a server says of its own limits: `x-ratelimit-*` headers, and how long to stay away after a refusal.

Example: `x-ratelimit-remaining-requests: 59`, `x-ratelimit-reset-requests: 6m0s`; the same for tokens; without a
suffix they count requests. A reset is a duration ("250ms", "1h2m3.5s"), seconds, or a moment since 1970 in seconds or
milliseconds. What cannot be read, or makes no sense, was not said.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from netkit import Headers

__all__ = ["Report", "duration", "report_of"]

_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_PART: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|us|µs|ns|d|h|m|s)", re.ASCII)
_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_EPOCH: Final = 1e9
"""From here on a number is a moment, not a duration: 30 years of waiting are not meant."""
_EPOCH_MILLISECONDS: Final = 1e12


@dataclasses.dataclass(frozen=True)
class Report:
    """What is left until a reset in so many seconds; None where it was not said."""

    requests: float | None = None
    requests_reset: float | None = None
    tokens: float | None = None
    tokens_reset: float | None = None


def duration(value: str, wall: float) -> float | None:
    """Seconds from now, 0.0 for a moment that has passed, None when it cannot be read. `wall` is the time as seconds
    since 1970."""
    value = value.strip()
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number >= _EPOCH:
            return max(0.0, (number / 1000 if number >= _EPOCH_MILLISECONDS else number) - wall)
        return number
    parts = _PART.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return None
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def report_of(headers: Headers, wall: float) -> Report | None:
    """None when the answer says nothing about limits."""
    said = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-ratelimit-re")}
    if not said:
        return None

    def pair(*suffixes: str) -> tuple[float | None, float | None]:
        for suffix in suffixes:
            left = said.get(f"x-ratelimit-remaining{suffix}", "").strip()
            reset = duration(said.get(f"x-ratelimit-reset{suffix}", ""), wall)
            if _NUMBER.fullmatch(left) and reset is not None:
                return float(left), reset
        return None, None

    return Report(*pair("-requests", ""), *pair("-tokens"))
