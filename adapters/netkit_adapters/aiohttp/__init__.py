"""netkit under aiohttp: a drop-in `ClientSession`, `attach` for existing ones, and the mirrored namespace."""

from __future__ import annotations

from typing import Any, Final

from netkit_adapters.aiohttp.errors import (
    BatchError,
    CircuitOpen,
    DeadlineExceeded,
    ImageError,
    PoolTimeout,
    QueueFull,
)
from netkit_adapters.aiohttp.session import ClientSession, attach, detach, edge_of, request

__all__ = [
    "MIRROR",
    "BatchError",
    "CircuitOpen",
    "ClientSession",
    "DeadlineExceeded",
    "ImageError",
    "PoolTimeout",
    "QueueFull",
    "attach",
    "detach",
    "edge_of",
    "request",
]

MIRROR: Final[dict[str, Any]] = {
    "ClientSession": ClientSession,
    "request": request,
    "client.ClientSession": ClientSession,
    "client.request": request,
}
