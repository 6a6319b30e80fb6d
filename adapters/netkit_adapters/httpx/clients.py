"""What netkit keeps on a client, as one of its own classes or attached to an existing one.

Rules of this file:

- Nothing here holds a client but the client itself: it goes when its last user lets go.
- `attach` sets attributes of the instance alone; `detach` removes exactly those.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from netkit.edge import Edge, configured
from netkit.jars import JarAfterFork
from netkit.runtime import Asyncio, Threads
from netkit_adapters.httpx.building import Builder
from netkit_adapters.httpx.chain import (
    Shapes,
    View,
    Wiring,
    async_counted,
    async_terminal,
    counted,
    sync_terminal,
)
from netkit_adapters.httpx.channel import tls_of
from netkit_adapters.httpx.http2 import HttpxHttp2
from netkit_adapters.httpx.pool import HttpcorePool
from netkit_adapters.httpx.routes import Routes
from netkit_adapters.httpx.urls import MergedUrls

if TYPE_CHECKING:
    from netkit.config import Config, PluginSettings

__all__ = ["Attaching", "remember", "rewire", "supplied_in", "wire"]

T = TypeVar("T")

_NOTED: Final = (
    "_netkit_limits",
    "_netkit_supplied",
    "_netkit_tls",
    "_netkit_urls",
    "_netkit_builder",
    "_netkit_settings",
)

_threads = Threads()
_asyncio = Asyncio()


def wire(
    shapes: Shapes,
    client: Any,
    *,
    plugins: Mapping[str, PluginSettings] | None,
    config: Config | str | None,
    explicit_limits: bool | None = None,
    supplied: tuple[Any, ...] = (),
) -> Wiring:
    """The netkit side of one client. `explicit_limits` says whether its user chose pool limits, None that nobody
    can tell; `supplied` are the transports that its user passed in."""
    asynchronous = isinstance(client, shapes.stack.async_client)
    pool = HttpcorePool(shapes, client, explicit_limits=explicit_limits, supplied=supplied)
    wiring = Wiring(shapes, pool, asynchronous=asynchronous)
    routes = Routes(shapes.stack, shapes.seams[asynchronous], pool, asynchronous=asynchronous)
    wiring.edge = Edge(
        stack=shapes.stack.name,
        runtime=_asyncio if asynchronous else _threads,
        terminal=async_terminal if asynchronous else sync_terminal,
        plugins=plugins,
        config=config,
        pool=pool,
        http2=HttpxHttp2(shapes.stack, routes, asynchronous=asynchronous),
    )
    wiring.jar = JarAfterFork(client, _jar_of)
    return wiring


def _jar_of(client: Any) -> Any:
    return getattr(client.__dict__.get("_cookies"), "jar", None)


def rewire(
    shapes: Shapes,
    client: Any,
    plugins: Mapping[str, PluginSettings] | None,
    config: Config | str | None,
    *,
    explicit_limits: bool | None,
    supplied: tuple[Any, ...],
) -> Wiring:
    """As `wire`, for one of netkit's own clients; what it had before gives its pools back. Where the new
    settings are wrong, nothing happens."""
    previous: Wiring | None = client.__dict__.get("_netkit_wiring")
    if previous is not None:
        plugins, config = None, configured(plugins, config)
        previous.pool.restore()
        previous.edge.close()
    wiring = wire(shapes, client, plugins=plugins, config=config, explicit_limits=explicit_limits, supplied=supplied)
    wiring.tls = client.__dict__.get("_netkit_tls")
    wiring.addresses = client._netkit_builder.addresses
    return wiring


def remember(shapes: Shapes, client: Any, arguments: Mapping[str, Any] | None) -> None:
    """Note what a client's own keyword arguments said; None where nobody can tell any more."""
    client._netkit_limits = None if arguments is None else "limits" in arguments
    client._netkit_supplied = supplied_in(arguments or {})
    client._netkit_tls = None if arguments is None else tls_of(arguments)
    client._netkit_urls = MergedUrls(shapes.merge_url)
    client._netkit_builder = Builder(shapes.building)


def supplied_in(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """The transports among a client's own keyword arguments."""
    mounts = arguments.get("mounts") or {}
    return tuple(t for t in (arguments.get("transport"), *mounts.values()) if t is not None)


class _Sender:
    """Takes the place of one client's `_send_single_request`."""

    def __init__(self, client: Any, wiring: Wiring, settings: tuple[Any, Any]) -> None:
        self._client = weakref.ref(client)
        self.wiring = wiring
        self.settings = settings

    def __call__(self, request: Any) -> Any:
        client = self._client()
        if client is None:
            raise RuntimeError("this client is a copy of one with netkit attached: attach netkit to the copy")
        wiring, send = self.wiring, type(client)._send_single_request
        if wiring.asynchronous:
            return _sent(client, wiring, send, request)
        if wiring.is_bare:
            return counted(wiring, partial(send, client), request)
        return send(View(client, wiring), request)


async def _sent(client: Any, wiring: Wiring, send: Any, request: Any) -> Any:
    loops = wiring.pool.loops
    if wiring.is_bare and (loops.is_home() or await loops.come_home()):
        return await async_counted(wiring, partial(send, client), request)
    return await send(View(client, wiring), request)


class _Closer:
    """Takes the place of one client's `close`: closes what the layers hold too."""

    def __init__(self, client: Any, wiring: Wiring) -> None:
        self._client = weakref.ref(client)
        self._wiring = wiring

    def __call__(self) -> None:
        client = self._client()
        if client is not None:
            type(client).close(client)
        self._wiring.pool.close()
        self._wiring.edge.close()


class _AsyncCloser(_Closer):
    """Takes the place of one client's `aclose`."""

    async def __call__(self) -> None:  # type: ignore[override]
        client = self._client()
        if client is not None:
            await type(client).aclose(client)
        await self._wiring.pool.aclose()
        self._wiring.edge.close()


class Attaching:
    """`attach`, `detach` and `edge_of` for the clients of one stack. `faces` are netkit's own classes."""

    def __init__(self, shapes: Shapes, faces: tuple[type, ...]) -> None:
        self._shapes = shapes
        self._faces = faces

    def attach(
        self, client: T, *, plugins: Mapping[str, PluginSettings] | None = None, config: Config | str | None = None
    ) -> T:
        """Put netkit into an existing client; returns it. See `netkit.attach`."""
        found: Any = client
        self._check(client)
        settings = (plugins, config)
        if isinstance(client, self._faces):
            found._netkit_configure(settings)
            return client
        present = found.__dict__.get("_send_single_request")
        if isinstance(present, _Sender):
            if present.settings == settings:
                return client
            plugins, config = None, configured(plugins, config)
            self.detach(client)
        elif present is not None:
            raise TypeError(f"{type(client).__name__} has its own _send_single_request: take that out before attach")
        wiring = wire(self._shapes, client, plugins=plugins, config=config)
        found._send_single_request = _Sender(client, wiring, settings)
        name, closer = ("aclose", _AsyncCloser) if wiring.asynchronous else ("close", _Closer)
        if name not in found.__dict__:
            setattr(found, name, closer(client, wiring))
        # `with client:` closes it without close().
        weakref.finalize(client, wiring.edge.close).atexit = False
        return client

    def detach(self, client: Any) -> None:
        """Take netkit out of a client to which it was attached."""
        self._check(client)
        if isinstance(client, self._faces):
            raise TypeError(
                f"a netkit {type(client).__name__} cannot be detached: use {self._shapes.stack.name}'s own"
            )
        present = client.__dict__.get("_send_single_request")
        if isinstance(present, _Sender):
            del client._send_single_request
            for name in ("close", "aclose"):
                if isinstance(client.__dict__.get(name), _Closer):
                    delattr(client, name)
            present.wiring.pool.restore()
            present.wiring.edge.close()

    def adopt(self, client: Any) -> None:
        """Set up a client that has become one of netkit's by a change of its class (`netkit.install`)."""
        remember(self._shapes, client, None)
        client._netkit_configure((None, None))

    def release(self, client: Any) -> None:
        """Undo `adopt`, before the class is changed back."""
        wiring: Wiring | None = client.__dict__.pop("_netkit_wiring", None)
        for name in _NOTED:
            client.__dict__.pop(name, None)
        if wiring is not None:
            # Others may be in the middle of a call. What netkit holds open goes with the last of them.
            wiring.pool.restore()

    def edge_of(self, client: Any) -> Edge:
        """The netkit side of a client; TypeError when it has none."""
        self._check(client)
        if isinstance(client, self._faces):
            found: Any = client
            if found._netkit_wiring is None:
                raise TypeError(f"netkit is not attached to this {type(client).__name__} any more")
            edge: Edge = found._netkit_wiring.edge
            return edge
        present = client.__dict__.get("_send_single_request")
        if isinstance(present, _Sender):
            return present.wiring.edge
        raise TypeError(f"netkit is not attached to this {type(client).__name__}")

    def _check(self, client: Any) -> None:
        if not isinstance(client, (self._shapes.stack.client, self._shapes.stack.async_client)):
            raise TypeError(
                f"{type(client).__module__}.{type(client).__qualname__} is no client of {self._shapes.stack.name}"
            )
