"""HTTP/2 under httpx and httpx2: which requests the engine serves, and real native responses of its exchanges.

Rules of this file:

- What the stack ignores on a request is ignored here; what only its own transport can do (`trace`, upgrades, trio,
  SOCKS) is left to it.
- A one-shot body keeps what was taken from it until it is known that the server speaks HTTP/2; one that tasks read is
  not touched before.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.green import threads_are_green
from netkit.http2 import Engine, H2Request, Http1Only, Http2Options, SyncEngine
from netkit.http2.port import could_not_connect
from netkit.http2.recorded import Recorded
from netkit.messages import Body, Response
from netkit_adapters.httpx.chain import reap, reap_async
from netkit_adapters.httpx.messages import response_headers
from netkit_adapters.httpx.negotiation import Negotiation
from netkit_adapters.httpx.urls import Address

if TYPE_CHECKING:
    from netkit.http2.port import StackEngine
    from netkit.messages import Request
    from netkit_adapters.httpx.chain import Wiring
    from netkit_adapters.httpx.messages import Exchange
    from netkit_adapters.httpx.routes import Place, Routes
    from netkit_adapters.httpx.stack import Stack

__all__ = ["HttpxHttp2", "Watched"]

MAX_ORIGINS: Final = 4096
"""Origins kept per client; beyond it the oldest is asked anew."""

REMEMBER: Final = 600.0
"""Seconds for which a server that chose HTTP/1.1 is not asked again, with whatever TLS settings."""


class HttpxHttp2:
    """`netkit.http2.port.Http2Port` for one client."""

    missing: str | None = None

    def __init__(self, stack: Stack, routes: Routes, *, asynchronous: bool) -> None:
        self._routes = routes
        self._negotiation = None if asynchronous else Negotiation(stack, self._knows_http1)
        self._asynchronous = asynchronous
        self._http1: dict[tuple[str, int], float] = {}

    def engine(self, options: Http2Options, on_event: Callable[[str, dict[str, Any]], None]) -> StackEngine:
        return (Engine if self._asynchronous else SyncEngine)(self._routes.limited(options), on_event=on_event)

    def target(self, request: Request, *, prior_knowledge: bool) -> H2Request | None:
        if asyncio._get_running_loop() is None if self._asynchronous else threads_are_green():
            return None
        exchange: Exchange = request.native
        transport, url, headers = exchange.peek(request)
        route = self._routes.find(transport, exchange.pick)
        if route is None:
            return None
        address = exchange.address if url is exchange.address.url else Address(url)
        scheme = address.scheme
        if scheme != b"https" and not (
            scheme == b"http" and route.proxy is None and (prior_knowledge or route.cleartext)
        ):
            return None
        asked = exchange.native.extensions
        if "trace" in asked:
            return None
        # httpcore does not pass it on through a tunnel.
        name = request.extensions.get("server_hostname") or asked.get("sni_hostname")
        place = route.place(address, name if route.proxy is None else None)
        if self._http1 and self._knows_http1(place):
            return None
        if headers is None:
            headers = exchange.native.headers.raw
        for name, _ in headers:
            if len(name) == 7 and name.lower() == b"upgrade":
                return None
        method = _method(request.method)
        if method is None:
            return None
        body, timeout, key = exchange.body_of(request), request.timeout, place.key
        if exchange.misdirected and request.extensions.get("new_connection"):
            # RFC 9110 section 15.5.20: the connections that are open have shown that they lead elsewhere.
            key = (*key, "after 421")
        content: Any = body.content
        reopen = None
        if content is None:
            if body.replayable:
                reopen = body.open
            elif exchange.attempted and body is exchange.body:
                return None
            content = body.open()
            if not body.replayable:
                content = Watched(content) if hasattr(content, "__aiter__") else Recorded(iter(content))
        return H2Request(
            key,
            place.connect,
            method,
            place.authority,
            asked.get("target") or address.path,
            headers,
            content or None,
            scheme=scheme,
            body_size=body.size,
            reopen=reopen,
            replayable=body.replayable,
            connect_timeout=math.inf if timeout.connect is None else timeout.connect,
            read_timeout=timeout.read,
            write_timeout=timeout.write,
            pool_timeout=timeout.pool,
        )

    async def exchange(self, engine: Any, request: Request, target: H2Request) -> Response | None:
        exchange: Exchange = request.native
        wiring = exchange.wiring
        if wiring.abandoned:
            await reap_async(wiring) if self._asynchronous else reap(wiring)
        try:
            if self._negotiation is not None and not self._shall_serve(engine, request, target):
                return None
            outcome = await engine.send(target) if self._asynchronous else engine.send(target)
        except BaseException as error:
            if could_not_connect(error) or _is_unfit(error):
                _put_back(exchange, request, target)
                return None
            wiring.edge.meter.attempt(exchange.call)
            if isinstance(error, TransportError) and error.verdict is Verdict.NOT_SENT:
                error.details["body_started"] = not _put_back(exchange, request, target)
                raise
            exchange.sent()
            failure = _of_the_body(wiring, error)
            if failure is error:
                raise
            raise failure from failure.__cause__
        if type(outcome) is Http1Only:
            if outcome.reason == "alpn":
                self._remember(target)
            _put_back(exchange, request, target)
            return None
        if type(target.body) is Recorded:
            target.body.forget()
        wiring.edge.meter.attempt(exchange.call)
        exchange.sent()
        exchange.misdirected = outcome.status == 421
        return _respond(wiring, outcome)

    def _shall_serve(self, engine: SyncEngine, request: Request, target: H2Request) -> bool:
        """Whether the engine takes it; a Client opens its first connection to an origin itself."""
        negotiation, connect = self._negotiation, target.connect
        assert negotiation is not None
        if negotiation.knows_http2(target) or connect.ssl is None:
            return True
        if connect.proxy is not None or connect.server_hostname is not None:
            return True
        transport, url, _ = request.native.peek(request)

        def keep(stream: Any) -> None:
            self._remember(target)
            request.native.wiring.pool.keep(transport, url, stream)

        # Where nobody answers, httpcore finds out by itself and says so.
        return negotiation.negotiate(engine, target, transport._pool, keep) is True

    def _remember(self, target: H2Request) -> None:
        known, where = self._http1, (target.connect.host, target.connect.port)
        if len(known) >= MAX_ORIGINS and where not in known:
            known.pop(next(iter(list(known))), None)
        known[where] = time.monotonic() + REMEMBER

    def _knows_http1(self, place: Place | H2Request) -> bool:
        until = self._http1.get((place.connect.host, place.connect.port))
        return until is not None and time.monotonic() < until


@lru_cache(maxsize=64)
def _method(method: str) -> bytes | None:
    """As it goes on the wire; None for what the stack has to refuse in its own words."""
    return method.encode("ascii") if method.isascii() else None


def _put_back(exchange: Exchange, request: Request, target: H2Request) -> bool:
    """Nothing was sent: whoever sends it next does so from its body's beginning. False where that is lost."""
    body, taken = exchange.body_of(request), target.body
    if body.content is not None:
        return True
    if body.replayable:
        exchange.began(request.body, None)
        return True
    if type(taken) is Watched and not taken.begun:
        return True
    if type(taken) is Recorded and (whole := taken.again()) is not None:
        exchange.began(request.body, Body.one_shot(whole, body.size))
        return True
    exchange.began(request.body, None)
    return False


def _is_unfit(error: BaseException) -> bool:
    """Whether HTTP/2 cannot carry it; what HTTP/1.1 makes of that is for the stack to say."""
    return isinstance(error, TransportError) and error.details.get("reason") == "invalid_header"


def _of_the_body(wiring: Wiring, error: BaseException) -> BaseException:
    """What the caller's own body raised, as it would have come from the stack; `error` where it is none of that."""
    if not isinstance(error, TransportError) or error.details.get("reason") != "request_body":
        return error
    if error.kind is FailureKind.BODY:
        made: BaseException = wiring.stack.native.LocalProtocolError(str(error))
        made.__cause__ = error
        return made
    return error if error.native is None else error.native


def _respond(wiring: Wiring, outcome: Any) -> Response:
    """The neutral response, with the native one inside it."""
    status, headers = outcome.status, outcome.headers
    body = wiring.exchanged(outcome, headers, wiring)
    native = wiring.making.response(
        status,
        headers,
        body,
        {
            "http_version": b"HTTP/2",
            "reason_phrase": _phrase(status),
            "stream_id": outcome.stream_id,
            "network_stream": wiring.network_info(outcome),
        },
    )
    extensions = {
        "http_version": "HTTP/2",
        "connection_id": outcome.connection_id,
        "stream_id": outcome.stream_id,
    }
    return Response(status, lambda: response_headers(native), body, extensions=extensions, native=native)


@lru_cache(maxsize=1024)
def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b""


class Watched:
    """A one-shot body of tasks, which knows whether anyone has begun to read it."""

    def __init__(self, chunks: AsyncIterable[bytes]) -> None:
        self._chunks = chunks
        self.begun = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self.begun = True
        return self._chunks.__aiter__()
