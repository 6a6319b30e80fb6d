"""netkit under httpx: drop-in clients, `attach` for existing ones, and the mirrored namespace.

The modules of this package serve httpx2 as well; what needs httpx itself is imported when first asked for, so that
a project with httpx2 alone needs no httpx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netkit_adapters.httpx.surface import (
        MIRROR,
        AsyncClient,
        BatchError,
        CircuitOpen,
        Client,
        DeadlineExceeded,
        ImageError,
        PoolTimeout,
        QueueFull,
        TransportError,
        adopt,
        attach,
        detach,
        edge_of,
        release,
    )

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


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(import_module(f"{__name__}.surface"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
