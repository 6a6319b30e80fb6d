"""The chain around whatever transport a client picks for a URL.

Rules of this file:

- Where the client itself has something to do (see `dispatch`), its own `_send_single_request` runs unchanged:
  cookies, elapsed and logging are the stack's. It only finds a chained transport where it asks for one.
- What the client, the user or a mocking library put in place as transport is what gets called.
- A request passes one chain: a chained transport is never chained again.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from netkit.errors import BodyClosed, ConfigError, NetkitError, PluginError, TransportError, Verdict
from netkit.flow import run_sync
from netkit.messages import Request, Response
from netkit_adapters.httpx.building import Building
from netkit_adapters.httpx.cookies import CookieSeam
from netkit_adapters.httpx.dispatch import Dispatch
from netkit_adapters.httpx.driven import AsyncDriven, ClosingBackend, SyncDriven
from netkit_adapters.httpx.exchanges import AsyncExchangeBody, NetworkInfo, SyncExchangeBody
from netkit_adapters.httpx.failures import classify, to_native
from netkit_adapters.httpx.making import Making
from netkit_adapters.httpx.messages import Exchange, native_response, response_headers
from netkit_adapters.httpx.origins import FoundAuths
from netkit_adapters.httpx.reading import Reading
from netkit_adapters.httpx.routes import Seams
from netkit_adapters.httpx.stack import Stack
from netkit_adapters.httpx.streams import AsyncBody, NativeBody, ReadBody, SyncBody, Synthetic
from netkit_adapters.httpx.urls import Addresses

if TYPE_CHECKING:
    from netkit.edge import Edge
    from netkit.jars import JarAfterFork
    from netkit_adapters.httpx.pool import HttpcorePool

__all__ = [
    "AsyncChained",
    "Shapes",
    "SyncChained",
    "View",
    "Wiring",
    "async_counted",
    "async_terminal",
    "counted",
    "reap",
    "reap_async",
    "sync_terminal",
]


class Shapes:
    """The classes of one stack that must derive from its own: made once per stack."""

    def __init__(self, stack: Stack) -> None:
        native = stack.native
        self.stack = stack
        self.sync_chained: Any = type("ChainedTransport", (SyncChained, native.BaseTransport), {})
        self.async_chained: Any = type("AsyncChainedTransport", (AsyncChained, native.AsyncBaseTransport), {})
        self.sync_body: Any = type("ObservedStream", (SyncBody, native.SyncByteStream), {})
        self.async_body: Any = type("AsyncObservedStream", (AsyncBody, native.AsyncByteStream), {})
        both = (Synthetic, native.SyncByteStream, native.AsyncByteStream)
        self.synthetic: Any = type("SyntheticStream", both, {})
        core = stack.core
        self.sync_driven: Any = type("DrivenConnection", (SyncDriven, core.ConnectionInterface), {})
        self.async_driven: Any = type("AsyncDrivenConnection", (AsyncDriven, core.AsyncConnectionInterface), {})
        self.closing_backend: Any = type("ClosingBackend", (ClosingBackend, core.AsyncNetworkBackend), {})
        self.sync_exchanged: Any = type("ExchangeStream", (SyncExchangeBody, native.SyncByteStream), {})
        self.async_exchanged: Any = type("AsyncExchangeStream", (AsyncExchangeBody, native.AsyncByteStream), {})
        self.reading = Reading(stack, (self.sync_exchanged, self.async_exchanged))
        self.sync_network: Any = type("NetworkInfo", (NetworkInfo, core.NetworkStream), {})
        self.async_network: Any = type("AsyncNetworkInfo", (NetworkInfo, core.AsyncNetworkStream), {})
        self.transports: tuple[type, type] = (native.HTTPTransport, native.AsyncHTTPTransport)
        self.seams = tuple(Seams(stack, self.transports[world], asynchronous=bool(world)) for world in (0, 1))
        names = ("ConnectionPool", "HTTPProxy", "SOCKSProxy")
        self.core_pools = {getattr(core, f"{prefix}{name}") for name in names for prefix in ("", "Async")}
        self.cookies = CookieSeam(native.Cookies)
        self.making = Making(stack)
        self.building = Building(stack, self.making)
        self.dispatch = tuple(Dispatch(stack, asynchronous=world) for world in (False, True))
        self.merge_url: Any = stack.client._merge_url  # type: ignore[attr-defined]
        clients: tuple[Any, Any] = (stack.client, stack.async_client)
        self.singles = [getattr(client._send_single_request, "__code__", None) for client in clients]
        self.default_limits: Any = inspect.signature(native.HTTPTransport).parameters["limits"].default


class Wiring:
    """What every hop of one client needs. Knows nothing of the client, so that no cycle keeps it alive."""

    def __init__(self, shapes: Shapes, pool: HttpcorePool, *, asynchronous: bool) -> None:
        self.stack = shapes.stack
        self.pool = pool
        self.asynchronous = asynchronous
        self.own = shapes.transports[asynchronous]
        self.chained = shapes.async_chained if asynchronous else shapes.sync_chained
        self.observed = shapes.async_body if asynchronous else shapes.sync_body
        self.expected = shapes.stack.native.AsyncByteStream if asynchronous else shapes.stack.native.SyncByteStream
        self.synthetic = shapes.synthetic
        self.exchanged = shapes.async_exchanged if asynchronous else shapes.sync_exchanged
        self.network_info = shapes.async_network if asynchronous else shapes.sync_network
        self.cookies = shapes.cookies
        self.making = shapes.making
        self.addresses = Addresses()
        self.single = shapes.singles[asynchronous]
        self.found_auths = FoundAuths(shapes.stack.native)
        self.abandoned: deque[NativeBody] = deque()
        self.tls: tuple[str, ...] | None = None
        """The client's TLS settings in words, None where they cannot be described."""
        self.edge: Edge
        self.jar: JarAfterFork

    @property
    def is_bare(self) -> bool:
        """Nothing stands between the caller and the client's own `_send_single_request`, and nothing waits for
        netkit to end it."""
        return self.edge.is_bare and not self.abandoned

    def failed_body(self, error: BaseException) -> TransportError | None:
        return classify(self.stack, error, processed=True)

    def wrap(self, native: Any) -> Response:
        """The neutral form of what a transport returned; its stream is observed from now on."""
        stream = native.stream
        body: Any
        if native.is_closed:
            body = ReadBody(stream if isinstance(stream, self.stack.byte_stream) else (native.content,))
        elif not isinstance(stream, self.expected):
            # Of the other world: the client says so by itself.
            body = ReadBody(())
        else:
            body = native.stream = self.observed(stream, native.headers, self)
            body._network = native.extensions.get("network_stream")
        version = native.extensions.get("http_version", b"HTTP/1.1").decode("ascii", "replace")
        return Response(
            native.status_code,
            lambda: response_headers(native),
            body,
            extensions={"http_version": version},
            native=native,
        )

    def failed(self, exchange: Exchange, error: Exception) -> TransportError | None:
        """The neutral error for what the last attempt of `exchange` raised."""
        failure = classify(self.stack, error)
        if failure is not None and failure.verdict is Verdict.NOT_SENT:
            exchange.unsent()
            failure.details["body_started"] = False
        return failure


class View:
    """A client's `_send_single_request` runs with this in place of the client: every attribute is the client's, but
    `_transport_for_url` gives the transport with the chain around it."""

    __slots__ = ("_netkit_client", "_netkit_wiring")

    def __init__(self, client: Any, wiring: Wiring) -> None:
        put = object.__setattr__
        put(self, "_netkit_client", client)
        put(self, "_netkit_wiring", wiring)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # `super()` in an override between netkit's class and the stack's asks for it.
        return type(self._netkit_client)

    def _transport_for_url(self, url: Any) -> Any:
        pick = self._netkit_client._transport_for_url
        transport = pick(url)
        wiring = self._netkit_wiring
        return transport if isinstance(transport, _Chained) else wiring.chained(wiring, transport, pick)

    # What every call asks for: found here, they cost a tenth of what `__getattr__` does.

    @property
    def cookies(self) -> Any:
        cookies, wiring = self._netkit_client.cookies, self._netkit_wiring
        return wiring.cookies.received(cookies) if sys._getframe(1).f_code is wiring.single else cookies

    @property
    def _default_encoding(self) -> Any:
        return self._netkit_client._default_encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._netkit_client, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._netkit_client, name, value)


def counted(wiring: Wiring, send: Callable[[Any], Any], request: Any) -> Any:
    """The native call `send(request)` of a Client, counted up to its head."""
    meter = wiring.edge.meter
    call = meter.begin()
    meter.attempt(call)
    try:
        response = send(request)
    except BaseException as error:
        call.end(error)
        raise
    call.end()
    return response


async def async_counted(wiring: Wiring, send: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
    """As `counted`, for an AsyncClient."""
    meter = wiring.edge.meter
    call = meter.begin()
    meter.attempt(call)
    try:
        response = await send(request)
    except BaseException as error:
        call.end(error)
        raise
    call.end()
    return response


class _Chained(Exchange):
    """One hop's transport with the chain around it; everything but the sending is the transport's own."""

    def __getattr__(self, name: str) -> Any:
        if name in Exchange.__slots__:
            raise AttributeError(name)
        return getattr(self.transport, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transport!r}>"


class SyncChained(_Chained):
    """A transport for threads; the per-stack class adds the native transport type."""

    def handle_request(self, request: Any) -> Any:
        neutral = self.begin(request)
        try:
            response = run_sync(self.wiring.edge.select(neutral.url)(neutral))
            native = response.native
            return (
                _made(self, neutral, response, run_sync(response.read()))
                if native is None
                else _delivered(self, neutral, response)
            )
        except BaseException as error:  # noqa: BLE001
            failure = _ended(self, neutral, error)
        try:
            raise to_native(self.wiring.stack, failure)
        finally:
            del failure


class AsyncChained(_Chained):
    """A transport for tasks; the per-stack class adds the native transport type."""

    async def handle_async_request(self, request: Any) -> Any:
        neutral = self.begin(request)
        try:
            response = await self.wiring.edge.select(neutral.url)(neutral)
            native = response.native
            return (
                _made(self, neutral, response, await response.read())
                if native is None
                else _delivered(self, neutral, response)
            )
        except BaseException as error:  # noqa: BLE001
            failure = _ended(self, neutral, error)
        try:
            raise to_native(self.wiring.stack, failure)
        finally:
            del failure


def _delivered(exchange: Exchange, neutral: Request, response: Response) -> Any:
    """The transport's own response, to be handed out for `response`."""
    native = response.native
    if len(response.extensions) > 1:
        for name, value in response.extensions.items():
            native.extensions.setdefault(name, value)
    _observe(exchange, neutral, response)
    return native


def _made(exchange: Exchange, neutral: Request, response: Response, content: bytes) -> Any:
    """A native response for an answer that a layer gave by itself."""
    _observe(exchange, neutral, response)
    native = native_response(exchange.wiring, response, content, response.body)
    native.extensions.update({k: v for k, v in response.extensions.items() if k not in native.extensions})
    return native


def _observe(exchange: Exchange, neutral: Request, response: Response) -> None:
    call = exchange.call
    exchange.answered(response.status)
    if response.body.ended and response.body.error is None:
        # A layer has read it: the caller's first byte is here.
        call.first_byte(b"-")
    response.body.observe(call.first_byte, exchange.wiring.edge.tell_end(neutral, call, response.status))


def _ended(exchange: Exchange, neutral: Request, error: BaseException) -> NetkitError:
    """End the call with `error`. Returns the error where the caller must see another one instead, raised outside
    the handler so that a native exception keeps its own context; raises it again otherwise."""
    exchange.wiring.edge.tell_end(neutral, exchange.call, None)(error)
    if not isinstance(error, NetkitError) or isinstance(error, (ConfigError, PluginError)):
        raise error
    return error


async def sync_terminal(request: Request) -> Response:
    """The innermost `send` of a Client: the client's own transport."""
    exchange: Exchange = request.native
    wiring = exchange.wiring
    if wiring.abandoned:
        reap(wiring)
    transport, native = exchange.next_attempt(request, asynchronous=False)
    if type(transport) is wiring.own:
        wiring.pool.adopt(transport)
        if request.extensions.get("new_connection"):
            wiring.pool.part(transport, native.url)
    wiring.edge.meter.attempt(exchange.call)
    try:
        response = transport.handle_request(native)
    except Exception as error:
        failure = wiring.failed(exchange, error)
        if failure is None:
            raise
        try:
            raise failure from error
        finally:
            del failure
    return wiring.wrap(response)


async def async_terminal(request: Request) -> Response:
    """The innermost `send` of an AsyncClient: the client's own transport."""
    exchange: Exchange = request.native
    wiring = exchange.wiring
    if wiring.abandoned:
        await reap_async(wiring)
    transport, native = exchange.next_attempt(request, asynchronous=True)
    if type(transport) is wiring.own:
        wiring.pool.adopt(transport)
        transport = wiring.pool.loops.find(transport) or await wiring.pool.loops.settle(transport)
        if request.extensions.get("new_connection"):
            await wiring.pool.async_part(transport, native.url)
    wiring.edge.meter.attempt(exchange.call)
    try:
        response = await transport.handle_async_request(native)
    except Exception as error:
        failure = wiring.failed(exchange, error)
        if failure is None:
            raise
        try:
            raise failure from error
        finally:
            del failure
    return wiring.wrap(response)


def reap(wiring: Wiring) -> None:
    """End what was abandoned since the last call: its connection is closed, its observers are told."""
    while wiring.abandoned:
        body: Any = wiring.abandoned.popleft()
        body.close()


async def reap_async(wiring: Wiring) -> None:
    """As `reap`, for an AsyncClient. A body of another loop is only told."""
    while wiring.abandoned:
        body: Any = wiring.abandoned.popleft()
        if body.is_here():
            await body.aclose()
        else:
            body.end(BodyClosed("abandoned"))
