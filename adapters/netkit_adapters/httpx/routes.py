"""Where HTTP/2 would go for a client's own transports: TLS, proxy and origin as the engine takes them.

Rules of this file:

- Only transports that the client made itself, untouched down to the sockets, have a route: any patch of a class or of
  an instance, and any setting that the engine does not know, means that the transport itself is called.
- Everything that must not be shared is part of the pool's key: the transport's SSLContext, proxy, server name.
"""

from __future__ import annotations

import ssl
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from netkit import fork
from netkit.http2 import ConnectSpec, ProxySpec
from netkit_adapters.httpx.offering import Offering, can_offer

if TYPE_CHECKING:
    from netkit.http2 import Http2Options
    from netkit_adapters.httpx.pool import HttpcorePool
    from netkit_adapters.httpx.stack import Stack
    from netkit_adapters.httpx.urls import Address

__all__ = ["Place", "Route", "Routes", "Seams"]

MAX_TRANSPORTS: Final = 256

MAX_PLACES: Final = 1024
"""Origins kept per transport; beyond it they are made anew."""


class Place:
    """One origin as seen through one transport."""

    __slots__ = ("authority", "connect", "key", "scheme")

    def __init__(self, key: Any, connect: ConnectSpec, authority: bytes, scheme: bytes) -> None:
        self.key = key
        self.connect = connect
        self.authority = authority
        self.scheme = scheme


class Route:
    """What one transport's settings come to. `usable`: the engine can take it; `cleartext`: it speaks HTTP/2 without
    TLS, as its user asked."""

    def __init__(self, pool: Any, context: ssl.SSLContext, proxy: ProxySpec | None, *, usable: bool = True) -> None:
        self.pool = pool
        self.context = context
        self.proxy = proxy
        self.usable = usable
        self.offering = Offering(context, ["http/1.1", "h2"] if pool._http2 else ["http/1.1"])
        self.cleartext: bool = proxy is None and pool._http2 and not pool._http1
        self._places: dict[tuple[Any, ...], Place] = {}

    def place(self, address: Address, server_hostname: str | None) -> Place:
        """The place that `address` names; `server_hostname` is what TLS asks for and verifies, None: the host."""
        key = (address.scheme, address.host, address.port, server_hostname)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
            place = self._places.setdefault(key, self._made(address, server_hostname))
        return place

    def _made(self, address: Address, server_hostname: str | None) -> Place:
        scheme, host = address.scheme, address.host.decode("ascii")
        secure = scheme == b"https"
        port = address.port or (443 if secure else 80)
        connect = ConnectSpec(
            host,
            port,
            ssl=self.offering if secure else None,
            server_hostname=server_hostname,
            proxy=self.proxy,
        )
        key = (scheme, host, port, self.offering if secure else None, server_hostname, self.proxy)
        return Place(key, connect, address.url.netloc, scheme)


class Seams:
    """Where mocking libraries take hold of one stack, in one world, and what stood there at import."""

    def __init__(self, stack: Stack, transport: type, *, asynchronous: bool) -> None:
        core, prefix = stack.core, "Async" if asynchronous else ""
        self.transport: Any = transport
        self.pool: Any = getattr(core, f"{prefix}ConnectionPool")
        self.proxy: Any = getattr(core, f"{prefix}HTTPProxy")
        self.backend = type(self.pool()._network_backend)
        self.send = "handle_async_request" if asynchronous else "handle_request"
        client = stack.async_client if asynchronous else stack.client
        self.pick = client._transport_for_url  # type: ignore[attr-defined]
        connection: Any = getattr(core, f"{prefix}HTTPConnection")
        self.are_untouched = _watch(
            (transport, self.send),
            (self.pool, self.send),
            (self.pool, "create_connection"),
            (self.proxy, self.send),
            (connection, self.send),
            (connection, "_connect"),
            (getattr(core, f"{prefix}HTTP11Connection"), self.send),
            (self.backend, "connect_tcp"),
            (client, "_transport_for_url"),
        )
        """Whether all that stands there is what stood there at import; asked for each request."""


def _watch(*seams: tuple[Any, str]) -> Callable[[], bool]:
    """A question: does each owner still have, under each name, what it has now?"""
    owners, names = zip(*seams, strict=True)
    nothing = (None,) * len(seams)
    known = list(map(getattr, owners, names, nothing))
    return lambda: list(map(getattr, owners, names, nothing)) == known


class Routes:
    """The routes of one client's transports."""

    def __init__(self, stack: Stack, seams: Seams, pool: HttpcorePool, *, asynchronous: bool) -> None:
        self._stack = stack
        self._asynchronous = asynchronous
        self._seams = seams
        self._driver = weakref.ref(pool)
        self._known: dict[int, Route] = {}
        """By id of the transport; which one it is, its pool tells, which the route keeps alive."""
        self._proxy_context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def find(self, transport: Any, pick: Any) -> Route | None:
        """The route of `transport`, which `pick` gave; None where the transport itself has to do it."""
        seams = self._seams
        if not seams.are_untouched() or getattr(pick, "__func__", None) is not seams.pick:
            return None
        if type(transport) is not seams.transport:
            return None
        pool = transport._pool
        route = self._known.get(id(transport))
        if route is None or pool is not route.pool or pool._ssl_context is not route.context:
            route = self._settle(transport)
        if route is None or not route.usable or seams.send in transport.__dict__ or seams.send in pool.__dict__:
            return None
        return route

    def limited(self, options: Http2Options) -> Http2Options:
        """`options` with no more connections than the client's user allowed by `limits=`."""
        driver = self._driver()
        limit = None if driver is None else driver.chosen_limit()
        if limit is None or limit >= options.max_connections:
            return options
        return msgspec.structs.replace(options, max_connections=max(1, limit))

    def _settle(self, transport: Any) -> Route | None:
        driver = self._driver()
        settings = None if driver is None else driver.original_settings(transport)
        if settings is None:
            return None
        pool = transport._pool
        with self._lock:
            # Threads of a cold burst get here together: two routes would be two keys, with a handshake each.
            route = self._known.get(id(transport))
            if route is None or pool is not route.pool or pool._ssl_context is not route.context:
                if len(self._known) >= MAX_TRANSPORTS:
                    self._known.clear()
                route = self._known[id(transport)] = self._made(pool, settings)
            return route

    def _made(self, pool: Any, settings: dict[str, Any]) -> Route:
        context = pool._ssl_context
        if (
            pool._uds is not None
            or pool._local_address is not None
            or pool._retries
            or settings["_socket_options"] is not None
            or type(settings["_network_backend"]) is not self._seams.backend
            or not can_offer(context, asynchronous=self._asynchronous)
            or getattr(pool, "_proxy", None) is not None
        ):
            return Route(pool, context, None, usable=False)
        if type(pool) is self._seams.proxy:
            return Route(pool, context, self._proxy(pool))
        return Route(pool, context, None, usable=type(pool) is self._seams.pool)

    def _proxy(self, pool: Any) -> ProxySpec:
        """An HTTP proxy, reached by TLS or not, that is asked for a tunnel as httpcore asks."""
        url = pool._proxy_url
        secure = url.scheme == b"https"
        context = pool._proxy_ssl_context
        if secure and context is None:
            if self._proxy_context is None:
                self._proxy_context = self._stack.core.default_ssl_context()
            context = self._proxy_context
        headers = [(b"Accept", b"*/*"), *pool._proxy_headers]
        return ProxySpec(
            url.host.decode("ascii"),
            url.port or (443 if secure else 80),
            ssl=context if secure else None,
            headers=tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers),
        )
