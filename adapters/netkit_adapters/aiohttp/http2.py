"""HTTP/2 under aiohttp: what a request is on the wire, and how an attempt goes.

Rules of this file:

- Nothing is counted or kept of a request that goes on to aiohttp.
- `Expect: 100-continue` is not sent: a server that refuses an HTTP/2 upload resets that stream alone.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import aiohttp
from aiohttp import ClientRequest, ClientTimeout, hdrs
from aiohttp.client import DEFAULT_TIMEOUT
from yarl import URL

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2 import ConnectSpec, Engine, H2Request, Http1Only, Http2Options, ProxySpec
from netkit.http2.port import could_not_connect
from netkit_adapters.aiohttp.answer import SUPPORTED, respond
from netkit_adapters.aiohttp.eligible import is_ordinary, is_stock, is_unpatched, proxy_of, tls_settings
from netkit_adapters.aiohttp.errors import classify, name_failure
from netkit_adapters.aiohttp.limits import bound_body, shorter, timeout_of
from netkit_adapters.aiohttp.negotiation import Negotiation
from netkit_adapters.aiohttp.pool import AiohttpPool
from netkit_adapters.aiohttp.tls import Offers
from netkit_adapters.aiohttp.upload import PayloadBody

if TYPE_CHECKING:
    from netkit.http2 import Exchange as H2Exchange
    from netkit.messages import Request, Response
    from netkit_adapters.aiohttp.messages import Exchange

__all__ = ["AiohttpHttp2", "Hop2"]

_DEFAULT: Final = timeout_of(DEFAULT_TIMEOUT)

_Way: TypeAlias = "tuple[ProxySpec | None, ssl.SSLContext | None, ssl.SSLContext | None]"
"""Proxy, the caller's TLS settings, and the context that offers HTTP/2 under them."""


class Hop2(H2Request, eq=False):
    """One attempt: the engine's request with aiohttp's own."""

    req: Any = None


@lru_cache(1024)
def _parts(url: URL) -> tuple[str, str, int, bytes, bytes] | None:
    """(scheme, host, port, authority, path with query)."""
    host, port, authority = url.raw_host, url.port, url.host_port_subcomponent
    if not host or port is None or authority is None:
        return None
    return url.scheme, host, port, authority.encode(), url.raw_path_qs.encode()


class AiohttpHttp2:
    """`netkit.http2.port.Http2Port` for one aiohttp session."""

    missing: str | None = (
        None
        if SUPPORTED
        else f"HTTP/2 under aiohttp needs aiohttp 3.14 as netkit knows it; this is {aiohttp.__version__}"
    )

    def __init__(self) -> None:
        self._offers = Offers()
        self._negotiation = Negotiation()
        self.used = False
        """Whether an engine was ever needed."""

    def engine(self, options: Http2Options, on_event: Callable[[str, dict[str, Any]], None]) -> Engine:
        self.used = True
        return Engine(options, on_event=on_event)

    def target(self, request: Request, *, prior_knowledge: bool) -> H2Request | None:
        native: Exchange = request.native
        req = native.req
        if req is None or not native.hop.http2:
            return None
        if not native.unchanged(request):
            req = native.rebuilt(request, req)
        parts = _parts(req.url)
        if parts is None:
            return None
        scheme, host, port, authority, path = parts
        if scheme != "https" and not (prior_knowledge and scheme == "http"):
            return None
        if self._negotiation.http1 and self._negotiation.knows_http1(host, port):
            return None
        session = req._session
        place: Any = None if session is None else session._connector
        if not SUPPORTED or not is_stock(place) or not is_ordinary(req, session) or not is_unpatched():
            return None
        way = self._way(req, place, scheme)
        if way is None:
            return None
        proxy, settings, context = way
        body, size, replayable = _body(req, native)
        if body is NotImplemented:
            return None
        timeout = request.timeout
        given = timeout is not _DEFAULT and timeout != _DEFAULT
        return Hop2(
            (scheme, host, port, settings, req.server_hostname, proxy),
            ConnectSpec(
                host,
                port,
                ssl=context,
                server_hostname=None if context is None else (req.server_hostname or host).rstrip("."),
                proxy=proxy,
                happy_eyeballs_delay=place._happy_eyeballs_delay,
            ),
            req.method.encode(),
            authority,
            path,
            _fields(req),
            body,
            scheme=scheme.encode(),
            body_size=size,
            reopen=_again if replayable else None,
            replayable=replayable,
            connect_timeout=(math.inf if timeout.connect is None else timeout.connect) if given else None,
            read_timeout=timeout.read,
            pool_timeout=timeout.pool,
            req=req,
        )

    def _way(self, req: ClientRequest, place: Any, scheme: str) -> _Way | None:
        """How a request gets to its server; None for what aiohttp has to do."""
        proxy: ProxySpec | None = None
        if req.proxy is not None:
            proxy = proxy_of(req)
            if proxy is None or scheme != "https":
                return None
        if scheme != "https":
            return None, None, None
        settings = tls_settings(req, place)
        context = None if settings is None else self._offers.of(settings)
        return None if context is None else (proxy, settings, context)

    async def exchange(self, engine: Engine, request: Request, target: H2Request) -> Response | None:
        assert isinstance(target, Hop2)
        native: Exchange = request.native
        before, req = native.sent, target.req
        if before is not None:
            req = await native.again(request, req)
        body = target.body
        native.sent = req
        native.in_flight += 1
        told = fresh = False
        try:
            if target.connect.ssl is not None and target.key not in self._negotiation.http2:
                with req._timer:
                    fresh = bool(await self._negotiation.ask(engine, req, target, _limits(native, request, req)))
                if not fresh:
                    native.sent = before
                    return None
            told = bool(req._traces) and await _announce(engine, target, req, fresh=fresh)
            ends: float | None = None
            if request.timeout is native.timeout:
                with req._timer:
                    outcome = await engine.send(target)
            else:
                outcome, ends = await _send_within(engine, request, native, target)
        except TransportError as error:
            untouched = not isinstance(body, PayloadBody) or body.task is None
            if untouched and (could_not_connect(error) or error.details.get("reason") == "invalid_header"):
                # aiohttp connects and words what is wrong, or sends what only HTTP/1.1 can carry.
                native.sent = before
                return None
            native.edge.meter.attempt(native.call)
            name_failure(error, req)
            _detail(error, native, body)
            raise
        except Exception as error:
            native.edge.meter.attempt(native.call)
            failure = classify(error, req=req)
            if failure is None:
                raise
            _detail(failure, native, body)
            raise failure from error
        except BaseException:
            native.edge.meter.attempt(native.call)
            raise
        finally:
            native.in_flight -= 1
            # The exchange, which the response holds, would hold the request, which holds the response.
            target.req = None
        if isinstance(outcome, Http1Only):
            self._hand_on(outcome, native, before, target)
            return None
        native.edge.meter.attempt(native.call)
        native.body_started = True
        try:
            if req._traces and not told:
                await _announce(engine, target, req, late=True)
            response = _answer(outcome, native, req, body)
        except BaseException:
            outcome.close()
            raise
        if ends is not None:
            bound_body(response.native, ends)
        if not outcome.ended:
            # The engine closes its connections when it goes: whoever reads on keeps it, also past `uninstall()`.
            response.body.observe(on_end=partial(_let_go, engine))
        return response

    def _hand_on(self, outcome: Http1Only, native: Exchange, before: Any, target: Hop2) -> None:
        """Nothing was processed: aiohttp sends it, unless a body that can be sent once is spent."""
        self._negotiation.remember_http1(target)
        body = target.body
        if isinstance(body, PayloadBody) and body.task is not None:
            native.body_started = True
            if not target.replayable:
                native.edge.meter.attempt(native.call)
                cause = aiohttp.ClientPayloadError("the server wants HTTP/1.1, and the body can be sent only once")
                raise TransportError(
                    str(cause), kind=FailureKind.BODY, verdict=Verdict.AMBIGUOUS, native=cause
                ) from cause
        else:
            native.sent = before


def _let_go(engine: Engine, error: BaseException | None) -> None:
    """A body has ended that needed the engine."""


def _answer(outcome: H2Exchange, native: Exchange, req: ClientRequest, body: Any) -> Response:
    task, writer = None, None
    if isinstance(body, PayloadBody):
        # A request that was sent again after a refusal has another body than the first time.
        body = outcome.body
        task, writer = body.task, body.writer
        if task is not None and task.done():
            task = None
    hop, session = native.hop, req._session
    decompresses = hop.decompresses(req)
    response = respond(
        outcome,
        req,
        writer=task,
        stream_writer=writer,
        auto_decompress=decompresses,
        read_bufsize=hop.read_bufsize or session._read_bufsize,
    )
    if not decompresses:
        response.extensions["encoded"] = True
    return response


async def _send_within(engine: Engine, request: Request, native: Exchange, target: Hop2) -> tuple[Any, float | None]:
    """Send, and wait for the head within aiohttp's total time and what a layer has left of it."""
    req = target.req
    total = shorter(request.timeout.total, native.timeout.total)
    ends = None if total is None else req.loop.time() + total
    try:
        async with asyncio.timeout_at(ends) as scope:
            with req._timer:
                return await engine.send(target), ends
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise aiohttp.ServerTimeoutError(f"No answer in time from host {req.url}") from error


def _detail(error: TransportError, native: Exchange, body: Any) -> None:
    """What the retry policy asks of a failure."""
    started = native.body_started or (isinstance(body, PayloadBody) and body.task is not None)
    if error.verdict is Verdict.NOT_SENT:
        error.details["body_started"] = started
    native.body_started = started or error.verdict is not Verdict.NOT_SENT


def _body(req: ClientRequest, native: Exchange) -> tuple[Any, int | None, bool]:
    """The engine's body, its size and whether it can be sent again; NotImplemented for what only aiohttp can do."""
    payload = req._body
    if payload is None:
        return None, None, True
    body = native.body_of(req)
    content = body.content
    if content is None or req.compress:
        return PayloadBody(req), None if req.compress else body.size, body.replayable
    declared = req.headers.get(hdrs.CONTENT_LENGTH)
    if declared is not None and declared != str(len(content)):
        # aiohttp cuts the body off there, or lets the server wait.
        return NotImplemented, None, False
    return content or None, None, body.replayable


def _again() -> Any:
    raise AssertionError("a payload opens itself again")


def _fields(req: ClientRequest) -> list[tuple[bytes, bytes]]:
    headers = req.headers
    if req.method in req.POST_METHODS and hdrs.CONTENT_TYPE not in headers:
        skipped = req._skip_auto_headers
        if skipped is None or hdrs.CONTENT_TYPE not in skipped:
            headers[hdrs.CONTENT_TYPE] = "application/octet-stream"
    if req._continue is not None:
        return [(name.encode(), value.encode()) for name, value in headers.items() if name.lower() != "expect"]
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _limits(native: Exchange, request: Request, req: ClientRequest) -> ClientTimeout:
    """What a connect may take, in aiohttp's terms."""
    if request.timeout is not native.timeout:
        return ClientTimeout(connect=request.timeout.pool, sock_connect=request.timeout.connect)
    limits = native.hop.timeout or (req._session and req._session._timeout) or DEFAULT_TIMEOUT
    pool = native.edge.pool
    return pool.limits(limits) if isinstance(pool, AiohttpPool) else limits


async def _announce(
    engine: Engine, target: Hop2, req: ClientRequest, *, fresh: bool = False, late: bool = False
) -> bool:
    """Tell traces of the connection, and of head and body where they are in memory; True once that is done.

    On an open connection this comes before the request; where the engine opens one, behind it. `fresh`: negotiation
    has told of the connection.
    """
    reactor = engine._reactors.get(req.loop)
    pool = None if reactor is None else reactor.pools.get(target.key)
    reusable = pool is not None and any(connection.limit for connection in pool.connections)
    if not reusable and not late:
        return False
    for trace in req._traces:
        if late:
            await trace.send_connection_create_start()
            await trace.send_connection_create_end()
        elif not fresh:
            await trace.send_connection_reuseconn()
    await req._on_headers_request_sent(req.method, req.url, req.headers)
    if isinstance(target.body, bytes):
        await req._on_chunk_request_sent(req.method, req.url, target.body)
    return True
