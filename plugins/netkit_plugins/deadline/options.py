"""The options of `[tool.netkit.deadline]`."""

from __future__ import annotations

import dataclasses
import math

__all__ = ["DeadlineOptions"]


@dataclasses.dataclass(frozen=True)
class DeadlineOptions:
    """Seconds; None means no limit.

    total: from the beginning of a call to the end of its body, redirects and retries included.
    first_byte: from the beginning of a call to the first byte of its body.
    between_events: how long a reader waits for the next piece of a body, or, in an event stream, for anything but
        comments.
    """

    total: float | None = None
    first_byte: float | None = None
    between_events: float | None = None

    def __post_init__(self) -> None:
        for name in ("total", "first_byte", "between_events"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be > 0, got {value:g}")
