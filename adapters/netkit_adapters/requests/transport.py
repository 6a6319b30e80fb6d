"""The chain around `adapter.send`, whatever adapter the session picked.

Rules of this file:

- What the session, the user or a mocking library put in place as adapter is what gets called.
- A request passes one chain: a chained adapter is never chained again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import requests
from requests.adapters import BaseAdapter

from netkit.errors import ConfigError, NetkitError, PluginError
from netkit.flow import run_sync
from netkit_adapters.requests.errors import classify, to_native
from netkit_adapters.requests.messages import Exchange, build_native, to_request, to_response
from netkit_adapters.requests.raw import ExchangeBody

if TYPE_CHECKING:
    from collections.abc import Callable

    from netkit.edge import Edge
    from netkit.jars import JarAfterFork
    from netkit.messages import Request, Response
    from netkit_adapters.requests.pool import RequestsPool

__all__ = ["ChainedAdapter", "Wiring", "chained", "terminal"]


MAX_ADAPTERS: Final = 32
"""Adapters of one session whose chained twins are kept; beyond it all are made anew."""


class Wiring:
    """What every hop of one session needs: its edge, its pool driver, and how it finds an adapter for a URL."""

    __slots__ = ("chained", "edge", "jar", "pick", "pool")

    def __init__(
        self, edge: Edge, pool: RequestsPool, pick: Callable[[str], BaseAdapter], jar: JarAfterFork | None = None
    ) -> None:
        self.edge = edge
        self.jar = jar
        self.pool = pool
        self.pick = pick
        self.chained: dict[int, ChainedAdapter] = {}
        """By the adapter's id, which stays its own as long as the chained one holds it."""

    def succeed(self, other: Wiring) -> None:
        """Take the place of `other`, which is not used any more."""
        self.pool.succeed(other.pool)
        other.edge.close()


class ChainedAdapter(BaseAdapter):
    """Stands for `adapter` in one session; everything but `send` is the adapter's own."""

    def __init__(self, wiring: Wiring, adapter: BaseAdapter) -> None:
        # No super().__init__(): BaseAdapter has no state, and attribute access falls through to the adapter.
        self._netkit_wiring = wiring
        self._netkit_adapter = adapter

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if args:
            kwargs.update(zip(("stream", "timeout", "verify", "cert", "proxies"), args, strict=False))
        edge = self._netkit_wiring.edge
        if edge.is_bare:
            return self._netkit_plain(request, kwargs)
        neutral = to_request(request, self._netkit_adapter, kwargs, self._netkit_wiring)
        extensions: Any = neutral.extensions
        call = extensions["call"] = neutral.native.call = edge.begin(neutral)
        try:
            response = run_sync(edge.select(neutral.url)(neutral))
            native: requests.Response | None = response.native
            if native is None:
                native = build_native(response, run_sync(response.read()), request)
                response.body.end()
        except (ConfigError, PluginError) as error:
            edge.tell_end(neutral, call, None)(error)
            raise
        except NetkitError as error:
            edge.tell_end(neutral, call, None)(error)
            failure = error
        except BaseException as error:
            edge.tell_end(neutral, call, None)(error)
            raise
        else:
            response.body.observe(call.first_byte, edge.tell_end(neutral, call, response.status))
            # Digest authentication and its like send their second leg through `response.connection`.
            native.connection = self  # type: ignore[assignment]
            if type(response.body) is ExchangeBody and not kwargs.get("stream") and _may_preload(request, native):
                response.body.preload()
            return native
        # Raised outside the handler, so that the native exception keeps its own context; `del` breaks the cycle
        # between the error, its traceback and this frame, which would keep sockets alive until a collection.
        try:
            raise to_native(failure, request)
        finally:
            del failure

    def _netkit_plain(self, request: requests.PreparedRequest, arguments: dict[str, Any]) -> requests.Response:
        """The native call, counted."""
        meter = self._netkit_wiring.edge.meter
        call = meter.begin()
        meter.attempt(call)
        try:
            native = self._netkit_adapter.send(request, **arguments)
        except BaseException as error:
            call.end(error)
            raise
        call.end()
        native.connection = self  # type: ignore[assignment]
        return native

    def close(self) -> None:
        self._netkit_adapter.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_netkit"):
            raise AttributeError(name)
        return getattr(self._netkit_adapter, name)

    def __repr__(self) -> str:
        return f"<ChainedAdapter {self._netkit_adapter!r}>"


def _may_preload(request: requests.PreparedRequest, native: requests.Response) -> bool:
    """Whether reading the body now, and not a moment later in `Session.send`, shows to nobody: a hook might look at
    the raw body first, and an encoded one goes through urllib3's decoder."""
    return not request.hooks.get("response") and "content-encoding" not in native.headers


def chained(wiring: Wiring, adapter: BaseAdapter) -> BaseAdapter:
    """`adapter` with the chain around it; itself when it has one already."""
    known = wiring.chained.get(id(adapter))
    if known is None:
        if isinstance(adapter, ChainedAdapter):
            return adapter
        if len(wiring.chained) >= MAX_ADAPTERS:
            wiring.chained.clear()
        known = wiring.chained[id(adapter)] = ChainedAdapter(wiring, adapter)
    return known


async def terminal(request: Request) -> Response:
    """The innermost `send`: the session's own adapter."""
    exchange: Exchange = request.native
    adapter, prepared, arguments = exchange.begin(request)
    exchange.wiring.pool.adopt(adapter)
    try:
        if request.extensions.get("new_connection"):
            with exchange.wiring.pool.afresh():
                native = adapter.send(prepared, **arguments)
        else:
            native = adapter.send(prepared, **arguments)
    except Exception as error:
        failure = classify(error)
        if failure is None:
            raise
        try:
            raise failure from error
        finally:
            del failure
    return to_response(native)
