"""`netkit.ClientSession`: an `aiohttp.ClientSession` whose every hop passes netkit's chain.

Rules of this file:

- `ClientSession._request` of aiohttp runs unchanged, looked up when called: what a mocking library put there is what
  gets called, with the caller's own arguments.
- netkit's middleware stands innermost, whatever `middlewares=` a session or a request brings.
- Where the session made its connector itself, it has one per loop; a caller's connector stays with its loop.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final

from aiohttp import BaseConnector, ClientResponse, ClientTimeout, TCPConnector
from aiohttp import ClientSession as Base
from aiohttp.client import _SessionRequestContextManager
from aiohttp.helpers import sentinel
from aiohttp.http import HttpVersion, HttpVersion11

from netkit.edge import Edge
from netkit.runtime import Asyncio
from netkit_adapters.aiohttp.connectors import LoopViews, abandon
from netkit_adapters.aiohttp.http2 import AiohttpHttp2
from netkit_adapters.aiohttp.pool import AiohttpPool
from netkit_adapters.aiohttp.transport import Hop, terminal
from netkit_adapters.reverted import native

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from netkit.config import Config, PluginSettings

__all__ = ["ClientSession", "adopt", "attach", "detach", "edge_of", "release", "request"]

_asyncio: Final = Asyncio()
_original_request: Final = Base._request
_HTTP1_LIMITS: Final = frozenset({"max_line_size", "max_field_size", "max_headers"})
"""Limits of aiohttp's parser, which reads HTTP/1.1 only: who sets them for a call gets that parser."""
_OWN_LIMITS: Final = _HTTP1_LIMITS | {"timeout", "auto_decompress", "read_bufsize"}
CLOSING_TURNS: Final = 4
"""Turns of a loop in which a TLS connection says goodbye and its socket is closed."""
_NO_HIDDEN_RETRY: Final[Any] = 0
"""Switches aiohttp's own replay off, and differs from the False by which a user says that nothing may be replayed."""


class _Wiring:
    """What netkit keeps for one session."""

    __slots__ = ("edge", "hop", "http2", "only", "pool", "restore", "settings")

    def __init__(
        self,
        plugins: Mapping[str, PluginSettings] | None,
        config: Config | str | None,
        *,
        own_connector: bool,
    ) -> None:
        self.settings = (plugins, config)
        self.pool = AiohttpPool(own=own_connector)
        self.http2 = AiohttpHttp2()
        self.edge = Edge(
            stack="aiohttp",
            runtime=_asyncio,
            terminal=terminal,
            plugins=plugins,
            config=config,
            pool=self.pool,
            http2=self.http2,
        )
        self.hop = Hop(self.edge)
        self.only = (self.hop,)
        """The middlewares of a session whose user has none: nothing to put together for each request."""
        self.restore: dict[str, Any] = {}

    async def close(self) -> None:
        """Let layers drop what they hold; connections of HTTP/2 in this loop are down when it returns."""
        self.edge.close()
        for _ in range(CLOSING_TURNS if self.http2.used else 0):
            await asyncio.sleep(0)


def _chained(session: Base, wiring: _Wiring, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for aiohttp's `_request`, with netkit's middleware innermost."""
    if Base._request is not _original_request:
        return arguments
    given = arguments.get("middlewares")
    hop, spans = wiring.hop, wiring.edge.spans_hops
    if spans or not arguments.keys().isdisjoint(_OWN_LIMITS):
        timeout = arguments.get("timeout", sentinel)
        if timeout is sentinel:
            timeout = None
        elif not isinstance(timeout, ClientTimeout):
            timeout = ClientTimeout(total=timeout)
        hop = Hop(
            wiring.edge,
            timeout,
            auto_decompress=arguments.get("auto_decompress"),
            read_bufsize=arguments.get("read_bufsize"),
            http2=arguments.keys().isdisjoint(_HTTP1_LIMITS),
        )
        if spans:
            hop.kept = {}
    elif given is None and session._middlewares is wiring.only:
        return arguments
    middlewares = session._middlewares if given is None else given
    arguments["middlewares"] = (*(each for each in middlewares if not isinstance(each, Hop)), hop)
    return arguments


with warnings.catch_warnings():
    # aiohttp warns of every subclass when it is made. Subclasses of this one are warned of as its own would be.
    warnings.filterwarnings("ignore", message="Inheritance class ClientSession", category=DeprecationWarning)

    class ClientSession(Base):
        """An `aiohttp.ClientSession` with netkit inside. Takes the same arguments, and two more.

        Example::

            async with netkit.ClientSession(plugins={"retry": {"attempts": 5}}) as session:
                async with session.post(url, json=payload) as response:
                    vectors = await response.json()

        `plugins` maps names to True (on, with its defaults), False (off) or a table of options; it comes on top of
        the project's configuration. `config` is a path, a `netkit.Config`, or None for the nearest pyproject.toml.
        Raises `ConfigError` for anything that is wrong in either, before any request is made.

        Unlike aiohttp's own it may be made outside of a loop and used in several loops, one after the other or at
        once, as long as `connector` and `loop` are left to it.
        """

        ATTRS = Base.ATTRS | {"_netkit_is_view", "_netkit_views", "_netkit_wiring"}

        _netkit_wiring: _Wiring
        _netkit_views: LoopViews | None = None
        _netkit_is_view = False

        def __init__(
            self,
            *args: Any,
            plugins: Mapping[str, PluginSettings] | None = None,
            config: Config | str | None = None,
            **kwargs: Any,
        ) -> None:
            own_connector = kwargs.get("connector") is None
            # Settings are checked first: a session that aiohttp has built would be one that nobody closes.
            self.__dict__["_connector"] = None
            wiring = _Wiring(plugins, config, own_connector=own_connector)
            homeless = own_connector and kwargs.get("loop") is None and asyncio._get_running_loop() is None
            if homeless:
                kwargs["loop"] = asyncio.new_event_loop()
            try:
                super().__init__(*args, **kwargs)
            finally:
                if homeless:
                    kwargs["loop"].close()
            self._netkit_wiring = wiring
            if self._connector is not None:
                wiring.pool.adopt(self._connector)
            if own_connector:
                self._netkit_views = LoopViews(self, _opener(self))
            self._retry_connection = _NO_HIDDEN_RETRY
            if not self._middlewares:
                self._middlewares = wiring.only

        # Not a coroutine function: aiohttp's coroutine is handed on as it is.
        def _request(self, method: str, str_or_url: Any, **kwargs: Any) -> Coroutine[Any, Any, ClientResponse]:
            try:
                session = self if self._loop is asyncio._get_running_loop() else self._netkit_here()
                wiring = self._netkit_wiring
            except AttributeError:
                begun: Coroutine[Any, Any, ClientResponse] = native(self, ClientSession, Base)._request(
                    method, str_or_url, **kwargs
                )
                return begun
            own = "middlewares" in kwargs or not _OWN_LIMITS.isdisjoint(kwargs)
            if own or self._middlewares is not wiring.only or wiring.edge.spans_hops:
                kwargs = _chained(self, wiring, kwargs)
            return Base._request(session, method, str_or_url, **kwargs)

        async def _ws_connect(self, *args: Any, **kwargs: Any) -> Any:
            try:
                session = self._netkit_here()
            except AttributeError:
                native(self, ClientSession, Base)
                session = self
            return await Base._ws_connect(session, *args, **kwargs)

        def _netkit_here(self) -> Base:
            """This session as the running loop may use it."""
            views = self._netkit_views
            running = asyncio._get_running_loop()
            if views is None or running is None or running is self._loop or not views.owns(self._connector):
                return self
            return views.of(self, running)

        async def close(self) -> None:
            try:
                views = self._netkit_views
            except AttributeError:
                await native(self, ClientSession, Base).close()
                return
            if self._connector is not None and views is not None:
                if self._loop.is_closed():
                    abandon(self._connector)
                await views.close()
            await super().close()
            wiring = self.__dict__.get("_netkit_wiring")
            if wiring is not None:
                await wiring.close()

        def __repr__(self) -> str:
            # In the warning of an unclosed session: people's filters know aiohttp's own name.
            if _is_plain(self):
                return f"<aiohttp.client.ClientSession object at {id(self):#x}>"
            try:
                shown = super().__repr__
            except TypeError:
                shown = native(self, ClientSession, Base).__repr__
            return shown()

        def __del__(self, *args: Any) -> None:
            # A view has nothing of its own: its session closes it, and warns if nobody did.
            if self._netkit_is_view:
                return
            super().__del__(*args)
            if self._netkit_views is not None:
                self._netkit_views.abandon_ended()


def _is_plain(session: Base) -> bool:
    return type(session) is ClientSession


def _opener(session: Base) -> Callable[[], BaseConnector]:
    """What opens one more connector for `session`, as its first one is but for the loop."""
    reference = weakref.ref(session)

    def open_connector() -> BaseConnector:
        alive = reference()
        assert alive is not None
        connector = TCPConnector()
        _wiring_of(alive).pool.adopt(connector)
        return connector

    return open_connector


def _wiring_of(session: Base) -> _Wiring:
    wiring: _Wiring = session.__dict__["_netkit_wiring"]
    return wiring


def _attached_request(session: Base, wiring: _Wiring) -> Any:
    """What takes the place of one session's `_request`. It holds the session weakly: dropped, it goes at once."""
    reference = weakref.ref(session)

    async def _request(method: str, str_or_url: Any, **kwargs: Any) -> ClientResponse:
        alive = reference()
        assert alive is not None
        return await type(alive)._request(alive, method, str_or_url, **_chained(alive, wiring, kwargs))

    return _request


def _attached_close(session: Base, wiring: _Wiring) -> Any:
    """What takes the place of one session's `close`: connections of HTTP/2 go with those of its connector."""
    reference = weakref.ref(session)

    async def close() -> None:
        alive = reference()
        assert alive is not None
        await type(alive).close(alive)
        await wiring.close()

    return close


def attach(
    session: Base,
    *,
    plugins: Mapping[str, PluginSettings] | None = None,
    config: Config | str | None = None,
) -> Base:
    """Put netkit into an existing session; returns it. See `netkit.attach`."""
    present: _Wiring | None = session.__dict__.get("_netkit_wiring")
    if present is not None and present.settings == (plugins, config):
        return session
    face = isinstance(session, ClientSession)
    own_connector = session.__dict__.get("_netkit_views") is not None
    wiring = _Wiring(plugins, config, own_connector=own_connector)
    home: BaseConnector | None = session.__dict__.get("_connector")
    if present is not None:
        _take_out(session, present)
        present.edge.close()
        wiring.pool.succeed(present.pool)
    elif home is not None:
        wiring.pool.adopt(home)
    # Straight into the dict: in development mode aiohttp warns of attributes that it does not know.
    attributes = session.__dict__
    wiring.restore = {name: attributes.get(name, _ABSENT) for name in _CHANGED}
    attributes["_netkit_wiring"] = wiring
    attributes["_retry_connection"] = _NO_HIDDEN_RETRY
    if not session._middlewares:
        attributes["_middlewares"] = wiring.only
    if not face:
        attributes["_request"] = _attached_request(session, wiring)
        attributes["close"] = _attached_close(session, wiring)
    return session


def detach(session: Base) -> None:
    """Take netkit out of a session to which it was attached."""
    if isinstance(session, ClientSession):
        raise TypeError("a netkit.ClientSession cannot be detached: use aiohttp.ClientSession instead")
    wiring: _Wiring | None = session.__dict__.get("_netkit_wiring")
    if wiring is not None:
        _take_out(session, wiring)
        wiring.edge.close()


def adopt(session: Base) -> None:
    """Set up a session that has become one of netkit's by a change of its class (`netkit.install`)."""
    attach(session)


def release(session: Base) -> None:
    """Undo `adopt`, before the class is changed back."""
    wiring: _Wiring | None = session.__dict__.get("_netkit_wiring")
    if wiring is not None:
        # Tasks may be in the middle of a call. What netkit holds open goes with the last of them.
        _take_out(session, wiring)


_ABSENT: Final = object()
_CHANGED: Final = ("_request", "close", "_middlewares", "_retry_connection")


def _take_out(session: Base, wiring: _Wiring) -> None:
    attributes = session.__dict__
    if attributes.get("_middlewares") is not wiring.only:
        # Someone set others since: those stay.
        wiring.restore.pop("_middlewares", None)
    for name, value in wiring.restore.items():
        if value is _ABSENT:
            attributes.pop(name, None)
        else:
            attributes[name] = value
    attributes.pop("_netkit_wiring", None)


def edge_of(session: Base) -> Edge:
    """The netkit side of a session. TypeError when it has none."""
    wiring: _Wiring | None = session.__dict__.get("_netkit_wiring")
    if wiring is None:
        raise TypeError(f"netkit is not attached to this {type(session).__name__}")
    return wiring.edge


def request(
    method: str,
    url: Any,
    *,
    version: HttpVersion = HttpVersion11,
    connector: BaseConnector | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    **kwargs: Any,
) -> _SessionRequestContextManager:
    """`aiohttp.request` with netkit inside; every argument is aiohttp's own."""
    own_connector = connector is None
    if connector is None:
        connector = TCPConnector(loop=loop, force_close=True)
    session = ClientSession(
        loop=loop,
        cookies=kwargs.pop("cookies", None),
        version=version,
        timeout=kwargs.pop("timeout", sentinel),
        connector=connector,
        connector_owner=own_connector,
    )
    return _SessionRequestContextManager(session._request(method, url, **kwargs), session)
