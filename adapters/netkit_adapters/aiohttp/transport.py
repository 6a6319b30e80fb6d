"""The chain around each hop: an innermost client middleware of aiohttp, and the end of the chain.

Rules of this file:

- Everything the caller put into `middlewares=` stands outside of the chain and sees aiohttp's own types.
- Upgrades (websockets) do not pass the chain: they are no request with an answer, and live for hours.
- Native exceptions leave without a trace of netkit in their context, and without a cycle that would keep sockets
  alive until a collection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import ClientRequest, ClientResponse, hdrs
from aiohttp.client import DEFAULT_TIMEOUT

from netkit.errors import ConfigError, NetkitError, PluginError, Verdict
from netkit_adapters.aiohttp.direct import send_directly
from netkit_adapters.aiohttp.errors import classify, to_native
from netkit_adapters.aiohttp.limits import send_within, timeout_of
from netkit_adapters.aiohttp.messages import Exchange, build_native, to_response
from netkit_adapters.aiohttp.pool import reused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import ClientSession, ClientTimeout

    from netkit.edge import Edge
    from netkit.messages import Request, Response, Timeout

__all__ = ["Hop", "terminal"]


class Hop:
    """aiohttp's client middleware in which netkit's chain runs.

    `timeout`, `auto_decompress` and `read_bufsize` are the call's own, None where the session's apply.
    """

    __slots__ = ("_limits", "_timeout", "auto_decompress", "edge", "http2", "kept", "read_bufsize", "timeout")

    def __init__(
        self,
        edge: Edge,
        timeout: ClientTimeout | None = None,
        *,
        auto_decompress: bool | None = None,
        read_bufsize: int | None = None,
        http2: bool = True,
    ) -> None:
        self.edge = edge
        self.timeout = timeout
        self.auto_decompress = auto_decompress
        self.read_bufsize = read_bufsize
        self.http2 = http2
        self.kept: dict[str, Any] | None = None
        """What layers keep over the hops of one call: only where this object serves a single call."""
        self._limits: ClientTimeout = timeout or DEFAULT_TIMEOUT
        self._timeout = timeout_of(self._limits)

    async def __call__(
        self, req: ClientRequest, handler: Callable[[ClientRequest], Awaitable[ClientResponse]]
    ) -> ClientResponse:
        kind = type(req)
        if not (kind is ClientRequest or issubclass(kind, ClientRequest)) or hdrs.UPGRADE in req.headers:
            # Tests of aiohttp's users put stand-ins in place of requests: there is nothing in them to work with.
            return await handler(req)
        edge = self.edge
        if edge.is_bare:
            # The native call, counted to its head.
            call = edge.meter.begin()
            edge.meter.attempt(call)
            send_directly(req)
            try:
                native = await handler(req)
            except BaseException as error:
                call.end(error)
                raise
            call.end()
            return native
        exchange = Exchange(self, req, handler, self._timeout_of(req._session))
        request = exchange.begin()
        try:
            response = await edge.select(request.url)(request)
            answer: ClientResponse | None = response.native
            if answer is None:
                answer = build_native(response, await response.body.read(), req)
            elif exchange.timer is not None:
                exchange.attach(answer)
        except (ConfigError, PluginError) as error:
            edge.tell_end(request, exchange.call, None)(error)
            raise
        except NetkitError as error:
            edge.tell_end(request, exchange.call, None)(error)
            failure = error
        except BaseException as error:
            edge.tell_end(request, exchange.call, None)(error)
            raise
        else:
            response.body.observe(exchange.call.first_byte, edge.tell_end(request, exchange.call, response.status))
            return answer
        finally:
            exchange.finish()
        try:
            raise to_native(failure)
        finally:
            del failure

    def decompresses(self, req: ClientRequest) -> bool:
        """Whether aiohttp decodes gzip and its like in the answer to `req`."""
        if self.auto_decompress is None:
            return bool(getattr(req._session, "_auto_decompress", True))
        return self.auto_decompress

    def _timeout_of(self, session: ClientSession | None) -> Timeout:
        limits = self.timeout or (session and session._timeout) or DEFAULT_TIMEOUT
        if limits is not self._limits:
            self._limits, self._timeout = limits, timeout_of(limits)
        return self._timeout


async def terminal(request: Request) -> Response:
    """The innermost `send`: what aiohttp would have done without netkit."""
    exchange: Exchange = request.native
    req, handler, edge = exchange.req, exchange.handler, exchange.edge
    if req is None or handler is None:
        raise PluginError("a layer sent a request after its call had ended")
    try:
        if exchange.begun != id(request) or exchange.sent is not None:
            req = await exchange.prepare(request, req)
        exchange.sent = req
        exchange.in_flight += 1
        try:
            edge.meter.attempt(exchange.call)
            send_directly(req)
            if request.timeout is exchange.timeout:
                native = await handler(req)
            else:
                native = await send_within(req, handler, request.timeout, exchange.timeout)
        finally:
            exchange.in_flight -= 1
    except Exception as error:
        failure = None if isinstance(error, NetkitError) else classify(error, req=exchange.sent)
        if failure is None:
            raise
        if failure.verdict is Verdict.NOT_SENT:
            failure.details["body_started"] = exchange.body_started
        else:
            exchange.body_started = True
            failure.details["reused"] = reused(exchange.sent)
        try:
            raise failure from error
        finally:
            del failure
    exchange.body_started = True
    if edge.pool is not None:
        edge.pool.answered(native)  # type: ignore[attr-defined]
    response = to_response(native)
    if not exchange.hop.decompresses(req):
        response.extensions["encoded"] = True
    return response
