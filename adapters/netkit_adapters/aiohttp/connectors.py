"""One connector per event loop, for a session that made its connector itself.

Rules of this file:

- A connector is used in the loop in which it was made, and in no other.
- Sockets of a loop that has ended, or of the process that forked this one, are closed without a word: no farewell is
  sent on a connection that may be someone else's, and nothing is logged or warned of.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import BaseConnector
from aiohttp.client_proto import ResponseHandler

from netkit import fork

__all__ = ["LoopConnectors"]


class LoopConnectors:
    """The connectors of one session, by loop; `make()` opens one in the running loop."""

    def __init__(self, home: BaseConnector, make: Callable[[], BaseConnector]) -> None:
        self._make = make
        self._known: dict[asyncio.AbstractEventLoop, BaseConnector] = {home._loop: home}
        self._lock = threading.Lock()
        fork.register(self)

    def of(self, loop: asyncio.AbstractEventLoop) -> BaseConnector:
        """The connector of `loop`, which is running here."""
        known = self._known.get(loop)
        if known is not None:
            return known
        with self._lock:
            for other in [other for other in self._known if other.is_closed()]:
                _abandon(self._known.pop(other))
            connector = self._known[loop] = self._make()
            return connector

    async def close(self) -> None:
        """Close all of them; those of other loops in their own loops."""
        with self._lock:
            connectors = list(self._known.items())
            self._known.clear()
        running = asyncio._get_running_loop()
        for loop, connector in connectors:
            if loop is running:
                await connector.close()
            elif loop.is_closed():
                _abandon(connector)
            else:
                loop.call_soon_threadsafe(connector._close)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        connectors, self._known = list(self._known.values()), {}
        for connector in connectors:
            _abandon(connector)


def _abandon(connector: BaseConnector) -> None:
    if connector.closed:
        return
    protocols = [*connector._acquired, *(protocol for idle in connector._conns.values() for protocol, _ in idle)]
    for protocol in protocols:
        if isinstance(protocol, ResponseHandler):
            _drop(protocol.transport)
            protocol.transport = None
    connector._conns.clear()
    connector._acquired.clear()


def _drop(transport: Any) -> None:
    """Close the socket under a transport whose loop will not run again, and keep its finalizer quiet."""
    if transport is None:
        return
    protocol = getattr(transport, "_ssl_protocol", None)
    if protocol is not None:
        inner = protocol._transport
        transport._closed = True
        protocol._transport = None
        _drop(inner)
        return
    sock = getattr(transport, "_sock", None)
    if sock is not None:
        transport._sock = None
        sock.close()
        return
    try:
        # Another implementation of asyncio's loops.
        transport.abort()
    except RuntimeError:
        pass
