"""netkit under requests: a drop-in `Session`, `attach` for existing ones, and the mirrored namespace."""

from __future__ import annotations

from typing import Any, Final

from netkit_adapters.requests import api
from netkit_adapters.requests.errors import (
    BatchError,
    CircuitOpen,
    DeadlineExceeded,
    ImageError,
    PoolTimeout,
    QueueFull,
)
from netkit_adapters.requests.session import Session, adopt, attach, detach, edge_of, release

__all__ = [
    "MIRROR",
    "BatchError",
    "CircuitOpen",
    "DeadlineExceeded",
    "ImageError",
    "PoolTimeout",
    "QueueFull",
    "Session",
    "adopt",
    "attach",
    "detach",
    "edge_of",
    "release",
]

_FUNCTIONS: Final = ("delete", "get", "head", "options", "patch", "post", "put", "request")

MIRROR: Final[dict[str, Any]] = {
    "Session": Session,
    "session": api.session,
    "sessions.Session": Session,
    "sessions.session": api.session,
    **{name: getattr(api, name) for name in _FUNCTIONS},
    **{f"api.{name}": getattr(api, name) for name in _FUNCTIONS},
}
