"""One session in several event loops: a connector for each, and a view of the session where loops run side by side.

Rules of this file:

- A connector is used in the loop in which it was made, and in no other.
- A session whose loop has ended moves to the next one. While its loop still runs, another loop gets a view: the same
  settings, cookies and counters, with a connector of its own.
- Sockets of a loop that has ended, or of the process that forked this one, are closed without a word: no farewell is
  sent on a connection that may be someone else's, and nothing is logged or warned of.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import BaseConnector, ClientSession
from aiohttp.client_proto import ResponseHandler

from netkit import fork

__all__ = ["LoopViews", "abandon"]


class LoopViews:
    """The views of one session, by loop; `open_connector()` opens one in the running loop."""

    def __init__(self, session: ClientSession, open_connector: Callable[[], BaseConnector]) -> None:
        self._open_connector = open_connector
        self._home: BaseConnector | None = session._connector
        self._process = os.getpid()
        self._views: dict[asyncio.AbstractEventLoop, ClientSession] = {}
        self._lock = threading.Lock()
        fork.register(self)

    def owns(self, connector: BaseConnector | None) -> bool:
        """Whether the session still has the connector that was made for it, not one that someone put in its place."""
        return connector is not None and connector is self._home

    def of(self, session: ClientSession, loop: asyncio.AbstractEventLoop) -> ClientSession:
        """The session to use in `loop`, which is running here: `session` itself, moved, or a view of it."""
        with self._lock:
            if session._loop is loop:
                return session
            known = self._views.get(loop)
            if known is not None:
                return known
            for ended in [other for other in self._views if other.is_closed()]:
                _leave(self._views.pop(ended))
            if session._loop.is_closed() or self._process != os.getpid():
                if self._home is not None:
                    abandon(self._home)
                self._process = os.getpid()
                moved = session
            else:
                moved = self._views[loop] = copy.copy(session)
                moved.__dict__["_netkit_views"] = None
                moved.__dict__["_netkit_is_view"] = True
            attributes = moved.__dict__
            attributes["_loop"], attributes["_connector"] = loop, self._open_connector()
            if moved is session:
                self._home = attributes["_connector"]
            return moved

    async def close(self) -> None:
        """Close the connectors of all views, each in its own loop."""
        with self._lock:
            views, self._views = list(self._views.values()), {}
        running = asyncio._get_running_loop()
        for view in views:
            connector = view._connector
            if connector is None:
                continue
            view.__dict__["_connector"] = None
            if view._loop is running:
                await connector.close()
            elif view._loop.is_closed():
                abandon(connector)
            else:
                with suppress(RuntimeError):
                    # Unless that loop has just ended.
                    view._loop.call_soon_threadsafe(connector._close)

    def abandon_ended(self) -> None:
        """Close what is open in loops that have ended, when the session goes without having been closed."""
        for connector in (self._home, *(view._connector for view in self._views.values())):
            if connector is not None and connector._loop.is_closed():
                abandon(connector)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        views, self._views = list(self._views.values()), {}
        for view in views:
            _leave(view)
        if self._home is not None:
            abandon(self._home)


def _leave(view: ClientSession) -> None:
    connector = view._connector
    if connector is not None:
        abandon(connector)
    view.__dict__["_connector"] = None


def abandon(connector: BaseConnector) -> None:
    """Close every socket of a connector whose loop will not run again, in this process at least."""
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
