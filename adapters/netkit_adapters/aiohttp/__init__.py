"""netkit under aiohttp: a drop-in `ClientSession`, `attach` for existing ones, and the mirrored namespace."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from netkit.config import Config
from netkit.errors import ConfigError
from netkit_adapters.aiohttp.errors import (
    BatchError,
    CircuitOpen,
    DeadlineExceeded,
    ImageError,
    PoolTimeout,
    QueueFull,
)
from netkit_adapters.aiohttp.session import ClientSession, adopt, attach, detach, edge_of, release, request

__all__ = [
    "MIRROR",
    "BatchError",
    "CircuitOpen",
    "ClientSession",
    "DeadlineExceeded",
    "ImageError",
    "PoolTimeout",
    "QueueFull",
    "adopt",
    "attach",
    "detach",
    "edge_of",
    "release",
    "request",
]

with contextlib.suppress(ConfigError):
    # Found now, since sessions are made inside event loops; what is wrong with it is said when one is made.
    Config.default()

MIRROR: Final[dict[str, Any]] = {
    "ClientSession": ClientSession,
    "request": request,
    "client.ClientSession": ClientSession,
    "client.request": request,
}
