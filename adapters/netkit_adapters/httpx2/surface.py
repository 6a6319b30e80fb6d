"""What the adapter of httpx2 offers: drop-in clients, `attach` for existing ones, and the mirrored namespace."""

from __future__ import annotations

from typing import Any, Final

import httpx2._api as _original_api

from netkit_adapters.httpx.functions import functions_with
from netkit_adapters.httpx2.errors import (
    BatchError,
    CircuitOpen,
    DeadlineExceeded,
    ImageError,
    PoolTimeout,
    QueueFull,
    TransportError,
)
from netkit_adapters.httpx2.faces import ATTACHING, AsyncClient, Client

__all__ = [
    "MIRROR",
    "AsyncClient",
    "BatchError",
    "CircuitOpen",
    "Client",
    "DeadlineExceeded",
    "ImageError",
    "PoolTimeout",
    "QueueFull",
    "TransportError",
    "adopt",
    "attach",
    "detach",
    "edge_of",
    "release",
]

adopt = ATTACHING.adopt
attach = ATTACHING.attach
detach = ATTACHING.detach
edge_of = ATTACHING.edge_of
release = ATTACHING.release

_FUNCTIONS: Final[dict[str, Any]] = functions_with(_original_api, Client, "netkit_adapters.httpx2")

MIRROR: Final[dict[str, Any]] = {"Client": Client, "AsyncClient": AsyncClient, **_FUNCTIONS}


def __getattr__(name: str) -> Any:
    # Module-level functions are found here by pickle and by whoever asks for netkit_adapters.httpx2.get.
    try:
        return _FUNCTIONS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
