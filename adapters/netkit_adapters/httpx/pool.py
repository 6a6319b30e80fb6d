"""Reads the connection counts of a client's own httpcore pools."""

from __future__ import annotations

import weakref
from typing import Any

from netkit.pooling import ConnectionPolicy, PoolCounts, SocketSettings
from netkit_adapters.httpx.stack import Stack

__all__ = ["HttpcorePool"]


class HttpcorePool:
    """The pools behind one client's transports."""

    supports: frozenset[str] = frozenset()

    def __init__(self, stack: Stack, client: Any, *, explicit_limits: bool | None) -> None:
        self._stack = stack
        self._client = weakref.ref(client)

    def configure(self, settings: SocketSettings, policy: ConnectionPolicy) -> None:
        pass

    def restore(self) -> None:
        pass

    def counts(self) -> PoolCounts:
        client = self._client()
        if client is None:
            return PoolCounts()
        pools = {id(t): t._pool for t in (client._transport, *client._mounts.values()) if hasattr(t, "_pool")}
        connections = [connection for pool in pools.values() for connection in pool.connections]
        idle = sum(connection.is_idle() for connection in connections)
        return PoolCounts(open=len(connections), idle=idle, in_use=len(connections) - idle)

    def sweep(self) -> int:
        return 0

    def describe(self) -> dict[str, Any]:
        return {}
