"""The private attributes of httpcore and httpcore2 that a driven pool needs, all of them, behind one check.

Rules of this file:

- A pool whose class or attributes are not as expected is never touched: `CorePool.of` gives None for it.
- Only attributes of the instance are set; `restore` takes them away again.
- `_assign_requests_to_connections` runs with the pool's lock held, in httpcore's own words: pure bookkeeping.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import time
import weakref
from collections.abc import Coroutine
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from netkit.runtime import Asyncio
from netkit_adapters.httpx.driven import Driven, socket_of

if TYPE_CHECKING:
    from netkit.pooling import SocketSettings
    from netkit_adapters.httpx.chain import Shapes
    from netkit_adapters.httpx.pool import HttpcorePool

__all__ = ["CorePool", "rescue"]

_ATTRIBUTES: Final = (
    "_assign_requests_to_connections",
    "_close_connections",
    "_connections",
    "_keepalive_expiry",
    "_max_connections",
    "_max_keepalive_connections",
    "_network_backend",
    "_optional_thread_lock",
    "_requests",
    "_socket_options",
    "_local_address",
    "_retries",
    "_ssl_context",
    "_uds",
    "create_connection",
)
_OVERRIDDEN: Final = ("create_connection", "_assign_requests_to_connections")
_CHANGED: Final = (
    "_max_connections",
    "_max_keepalive_connections",
    "_keepalive_expiry",
    "_socket_options",
    "_network_backend",
)

FRESH: Final = 2.0
"""Seconds for which a connection that nothing was sent on is worth using: servers hang up on silent clients."""

_left_behind: list[Any] = []
"""Connections of a parent process or a finished loop: never used again, and never finalised, which would warn."""

_rank = attrgetter("rank")


class CorePool:
    """One pool of httpcore's. `loop` is the event loop that its connections belong to, where they do."""

    def __init__(self, shapes: Shapes, pool: Any, *, asynchronous: bool) -> None:
        self._shapes = shapes
        self._pool = pool
        self._asynchronous = asynchronous
        self._saved: dict[str, Any] | None = None
        self.loop: Any = None
        self._tasks: set[Any] = set()
        self._fresh: dict[str, tuple[Any, float]] = {}

    @classmethod
    def of(cls, shapes: Shapes, transport: Any) -> CorePool | None:
        """The pool behind one of the stack's own transports; None for anything else."""
        pool = getattr(transport, "_pool", None)
        if type(transport) not in shapes.transports or type(pool) not in shapes.core_pools:
            return None
        if not all(hasattr(pool, name) for name in _ATTRIBUTES):
            return None
        return cls(shapes, pool, asynchronous=type(transport) is shapes.transports[1])

    def twin(self, transport: Any) -> Any:
        """A transport like `transport`, whose pool this is, with a pool of its own that is empty and not driven."""
        twin, pool = copy.copy(transport), copy.copy(self._pool)
        if self._saved is not None:
            for name in _OVERRIDDEN:
                pool.__dict__.pop(name, None)
            pool.__dict__.update(self._saved)
        pool._connections, pool._requests = [], []
        pool._optional_thread_lock = type(pool._optional_thread_lock)()
        if type(pool._network_backend).__name__ == "AutoBackend":
            # It settles on asyncio or trio at its first use.
            pool._network_backend = type(pool._network_backend)()
        twin._pool = pool
        return twin

    def original_settings(self) -> dict[str, Any]:
        """What `drive` changes, as it was before."""
        return self._saved or {name: getattr(self._pool, name) for name in _CHANGED}

    def has_chosen_limits(self) -> bool:
        """Whether the pool's limits differ from what the stack gives by itself."""
        limits, own = self._shapes.default_limits, self.original_settings()
        return bool(
            own["_max_connections"] != limits.max_connections
            or own["_max_keepalive_connections"] != limits.max_keepalive_connections
            or own["_keepalive_expiry"] != limits.keepalive_expiry
        )

    def drive(self, driver: HttpcorePool, settings: SocketSettings, explicit: bool) -> None:
        """Have `driver` asked and told from now on. With `explicit` limits, those stay httpcore's business."""
        pool = self._pool
        if any(name in pool.__dict__ for name in _OVERRIDDEN):
            # Another client drives it, or a mocking library has its hands in it.
            return
        self._saved = {name: getattr(pool, name) for name in _CHANGED}
        if not explicit:
            pool._max_connections = pool._max_keepalive_connections = sys.maxsize
            pool._keepalive_expiry = None
        if pool._uds is None and pool._socket_options is None:
            pool._socket_options = settings.socket_options
        if self._asynchronous:
            pool._network_backend = self._shapes.closing_backend(pool._network_backend)
        overrides = _Overrides(
            self._shapes, pool, weakref.ref(driver), explicit, self._fresh, asynchronous=self._asynchronous
        )
        pool.create_connection = overrides.create_connection
        pool._assign_requests_to_connections = overrides.assign

    def keep(self, url: Any, stream: Any) -> bool:
        """Take a connected stream for the next connection to the origin of `url`; False where the pool is not driven,
        or has one already."""
        origin = str(self._origin(url))
        if self._saved is None or origin in self._fresh:
            return False
        self._fresh[origin] = (stream, time.monotonic())
        return True

    def part(self, url: Any) -> None:
        """Close the idle connections to the origin of `url`."""
        self._pool._close_connections(self._taken_out(url))

    async def async_part(self, url: Any) -> None:
        await self._pool._close_connections(self._taken_out(url))

    def _taken_out(self, url: Any) -> list[Any]:
        pool, origin = self._pool, self._origin(url)
        with pool._optional_thread_lock:
            wanted = {id(request.connection) for request in pool._requests}
            idle = [
                connection
                for connection in pool._connections
                if id(connection) not in wanted and connection.is_idle() and connection.can_handle_request(origin)
            ]
            pool._connections = [connection for connection in pool._connections if connection not in idle]
        return idle

    def _origin(self, url: Any) -> Any:
        return self._shapes.stack.core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port).origin

    def close_fresh(self) -> None:
        while self._fresh:
            self._fresh.popitem()[1][0].close()

    def restore(self) -> None:
        self.close_fresh()
        if self._saved is not None:
            for name in _OVERRIDDEN:
                self._pool.__dict__.pop(name, None)
            self._pool.__dict__.update(self._saved)
            for connection in self._pool._connections:
                if isinstance(connection, Driven):
                    connection.keepalive_expiry = self._saved["_keepalive_expiry"]
            self._saved = None

    def counts(self) -> tuple[int, int]:
        """(open, idle) connections; those still connecting count as open, failed ones do not."""
        open_ = idle = 0
        for connection in list(self._pool._connections):
            if connection.is_closed() or (isinstance(connection, Driven) and self._is_ghost(connection)):
                continue
            open_ += 1
            idle += connection.is_idle()
        return open_, idle

    def sweep(self) -> int:
        pool = self._pool
        with pool._optional_thread_lock:
            closing = pool._assign_requests_to_connections()
        if closing:
            if self._asynchronous:
                self._spawn(pool._close_connections(closing))
            else:
                pool._close_connections(closing)
        return len(closing)

    def forget(self) -> None:
        """Drop every connection without closing it: it belongs to another process, or to a loop that is over."""
        pool = self._pool
        pool._optional_thread_lock = type(pool._optional_thread_lock)()
        _left_behind.extend(self._fresh.values())
        self._fresh.clear()
        for connection in pool._connections:
            _left_behind.append(connection)
            if not self._asynchronous:
                with contextlib.suppress(Exception):
                    socket_of(connection).close()
        pool._connections = []
        pool._requests = []

    async def aclose(self) -> None:
        await self._pool.aclose()

    def _is_ghost(self, connection: Driven) -> bool:
        return not connection.started and all(
            request.connection is not connection for request in self._pool._requests
        )

    def _spawn(self, coroutine: Any) -> None:
        task = Asyncio().spawn(coroutine, name="pool-close")
        self._tasks = {known for known in self._tasks if not known.done()} | {task}


class _Overrides:
    """What stands in a driven pool in place of two of its methods. Holds the driver weakly: it may outlive it."""

    def __init__(
        self,
        shapes: Shapes,
        pool: Any,
        driver: weakref.ref[HttpcorePool],
        explicit: bool,
        fresh: dict[str, tuple[Any, float]],
        *,
        asynchronous: bool,
    ) -> None:
        self._http11 = shapes.stack.core.HTTP11Connection
        self._fresh = fresh
        self._kind = shapes.async_driven if asynchronous else shapes.sync_driven
        self._pool = weakref.ref(pool)
        self._class = type(pool)
        self._driver = driver
        self._explicit = explicit

    def create_connection(self, origin: Any) -> Any:
        pool: Any = self._pool()
        driver = self._driver()
        inner = self._class.create_connection(pool, origin)
        if self._fresh:
            stream, since = self._fresh.pop(str(origin), (None, 0.0))
            # That something is readable says nothing here: TLS 1.3 servers send session tickets unasked.
            if stream is not None and time.monotonic() - since < FRESH:
                inner._connection = self._http11(origin, stream, pool._keepalive_expiry)
            elif stream is not None:
                stream.close()
        if driver is None:
            return inner
        driver.opened()
        return self._kind(driver, inner, str(origin), pool._keepalive_expiry, self._explicit)

    def assign(self) -> Any:
        pool: Any = self._pool()
        connections = pool._connections
        surplus: list[Any] = []
        if len(connections) > 1:
            driver = self._driver()
            if len(connections) >= pool._max_connections:
                self._drop_ghosts(pool)
            if driver is not None and not self._explicit and len(connections) > (driver.max_idle or 0):
                surplus = self._surplus(pool, driver)
            # httpcore takes the first that fits.
            with contextlib.suppress(AttributeError):  # connections from before the pool was driven
                pool._connections.sort(key=_rank)
        closing = self._class._assign_requests_to_connections(pool)
        return closing + surplus if surplus else closing

    @staticmethod
    def _drop_ghosts(pool: Any) -> None:
        """Connections whose request was cancelled before it began to connect would keep their place for ever."""
        wanted = {id(request.connection) for request in pool._requests}
        pool._connections = [
            connection
            for connection in pool._connections
            if not isinstance(connection, Driven) or connection.started or id(connection) in wanted
        ]

    @staticmethod
    def _surplus(pool: Any, driver: HttpcorePool) -> list[Any]:
        limit = driver.max_idle
        if limit is None:
            return []
        wanted = {id(request.connection) for request in pool._requests}
        idle: dict[str, list[Driven]] = {}
        for connection in pool._connections:
            if isinstance(connection, Driven) and id(connection) not in wanted and connection.is_idle():
                idle.setdefault(connection.origin, []).append(connection)
        surplus = {
            id(connection): connection for found in idle.values() for connection in sorted(found, key=_rank)[limit:]
        }
        if surplus:
            driver.surplus(len(surplus))
            pool._connections = [connection for connection in pool._connections if id(connection) not in surplus]
        return list(surplus.values())


def rescue(stream: Any) -> Coroutine[Any, Any, None] | None:
    """Take a half-closed response out of its pool; returns what is left to be awaited, in the loop of the pool.

    The pool would count its request for ever, and its connection as in use (encode/httpcore issue 1093).
    """
    inner = getattr(stream, "_httpcore_stream", None)
    pool, request = getattr(inner, "_pool", None), getattr(inner, "_pool_request", None)
    if pool is None or request is None or request not in getattr(pool, "_requests", ()):
        return None
    pool._requests.remove(request)
    connection = request.connection
    # The other streams of an HTTP/2 connection are none of this one's business.
    lost = not (connection.is_idle() or connection.is_closed() or "HTTP/2" in connection.info())
    if lost and connection in pool._connections:
        pool._connections.remove(connection)
    return _finish_closing(pool, [connection] if lost else [])


async def _finish_closing(pool: Any, closing: list[Any]) -> None:
    await pool._close_connections([*closing, *pool._assign_requests_to_connections()])
