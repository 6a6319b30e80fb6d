"""netkit under httpx2: drop-in clients, `attach` for existing ones, and the mirrored namespace.

What both stacks share stands in `netkit_adapters.httpx`; here is what must be a class or a name of its own, so that
pickles find it. The modules are copies of those there but for the stack's name (tests/adapters/httpx keeps them so).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netkit_adapters.httpx2.surface import (
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
