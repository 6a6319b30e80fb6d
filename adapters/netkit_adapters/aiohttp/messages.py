"""Between aiohttp's requests and responses and netkit's neutral ones.

Rules of this file:

- An unchanged request goes to aiohttp as the same object. A changed one is a copy in which only what a layer changed
  is rebuilt; the original stays as it was, for the next attempt and for aiohttp's redirects.
- The next attempt begins when the previous one has let go of the payload.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import ClientRequest, ClientResponse, hdrs
from aiohttp.helpers import BaseTimerContext
from aiohttp.http import HttpVersion, HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from netkit.errors import FailureKind, PluginError, TransportError, Verdict
from netkit.headers import Headers
from netkit.messages import NO_BODY, Body, Request, Response
from netkit_adapters.aiohttp.body import NativeBody, OpaqueBody, filled_reader, tell
from netkit_adapters.aiohttp.detached import UNLIMITED, detached
from netkit_adapters.aiohttp.eligible import channel_of
from netkit_adapters.aiohttp.native import native_response
from netkit_adapters.aiohttp.payload import body_of, data_of
from netkit_adapters.aiohttp.pool import NEW_CONNECTION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from netkit.messages import Timeout
    from netkit.stats import Call
    from netkit_adapters.aiohttp.transport import Hop

__all__ = ["Exchange", "build_native", "copy_of", "to_response"]


class _Unfrozen(Request):
    """A request while it is being filled in: setting seven fields one by one past `Request.__setattr__` would cost
    more than the rest of a chain without layers."""

    __slots__ = ()

    __setattr__ = object.__setattr__  # type: ignore[assignment]


@lru_cache(1024)
def _text(url: URL) -> str:
    return str(url)


class Exchange:
    """One hop of an aiohttp call: what `Request.native` holds. Called, it loads the neutral headers.

    It keeps what the request was made of, not the request: the two would keep each other until a collection.
    """

    # Defaults on the class: an ordinary call sets only what it needs.
    in_flight = 0
    body_started = False
    sent: ClientRequest | None = None
    timer: BaseTimerContext | None = None
    """The caller's own clock, once its request was detached from it."""
    _loaded: Headers | None = None
    _hops: dict[str, Any] | None = None
    begun = 0
    """The id of the request as it was made, which lives as long as its call; 0 for one that belongs to no call."""
    call: Call

    def __init__(
        self,
        hop: Hop,
        req: ClientRequest,
        handler: Callable[[ClientRequest], Awaitable[ClientResponse]],
        timeout: Timeout,
    ) -> None:
        self.hop = hop
        self.edge = hop.edge
        self.req: ClientRequest | None = req
        self.handler: Callable[[ClientRequest], Awaitable[ClientResponse]] | None = handler
        self.method = req.method
        self.url = _text(req.url)
        self.timeout = timeout
        self.body = NO_BODY if req._body is None else body_of(req._body)
        self._headers = req.headers
        if getattr(req, "_upload_tracker", None) is not None:
            # Its caller counts attempts: nothing is sent again behind its back, whatever the failure.
            self.body = Body(self.body.content, self.body.open, self.body.size, False)
            self.body_started = True

    def __call__(self) -> Headers:
        if self._loaded is None:
            self._loaded = Headers(self._headers.items())
        return self._loaded

    def channel(self) -> tuple[str, ...]:
        """See `Request.channel`."""
        req = self.req
        return () if req is None else channel_of(req)

    def begin(self) -> Request:
        """The neutral request, with its clock running."""
        extensions: dict[str, Any] = {}
        request: Request = object.__new__(_Unfrozen)
        request.method, request.url, request._headers = self.method, self.url, self
        request.body, request.timeout, request.extensions, request.native = self.body, self.timeout, extensions, self
        request.__class__ = Request
        self.begun = id(request)
        self.call = extensions["call"] = self.edge.begin(request)
        extensions["hops"] = self.hops
        return request

    def hops(self) -> dict[str, Any]:
        """See `netkit.hops`. A call over which layers keep something has a `Hop` of its own."""
        kept = self.hop.kept
        if kept is None:
            kept = self._hops = {} if self._hops is None else self._hops
        return kept

    def detach(self, request: Request, keep_call: bool) -> Request:
        """See `Request.detach`."""
        req, handler = self.req, self.handler
        if req is None or handler is None:
            raise PluginError("a layer detached a request after its call had ended")
        self.timer = req._timer
        copied, handler = detached(copy_of(req), handler, keep_traces=keep_call)
        apart = Exchange(self.hop, copied, handler, UNLIMITED)
        no_call: Any = None
        apart.body, apart.call = self.body, self.call if keep_call else no_call
        return Request(
            request.method, request.url, request._headers, request.body, request.timeout, request.extensions, apart
        )

    def finish(self) -> None:
        """Let go of the native request, which holds its response: observers may keep this object for longer."""
        self.req = self.handler = self.sent = None

    def attach(self, native: ClientResponse) -> None:
        """Put an answer that was made without the caller's clock back under it: its body is the caller's."""
        timer = self.timer
        if timer is None or not isinstance(native, ClientResponse):
            return
        native._timer = timer
        watched: Any = getattr(native.content, "_timer", None)
        if isinstance(watched, NativeBody):
            watched.follow(timer)
        elif watched is not None:
            native.content._timer = timer

    async def prepare(self, request: Request, req: ClientRequest) -> ClientRequest:
        """What to send for `request`: `req` itself, or a copy with what layers changed, fit to be sent once more."""
        req = self.rebuilt(request, req)
        if self.sent is not None:
            req = await self.again(request, req)
        if request.extensions.get("new_connection"):
            req = copy_of(req) if req is self.req else req
            req.__dict__[NEW_CONNECTION] = True
        return req

    def unchanged(self, request: Request) -> bool:
        """Whether this is the very request that the call began with."""
        return self.begun == id(request)

    def body_of(self, req: ClientRequest) -> Body:
        """The neutral form of what `req` sends."""
        return self.body if req is self.req or req._body is None else body_of(req._body)

    async def again(self, request: Request, req: ClientRequest) -> ClientRequest:
        """`req`, or a copy, fit to be sent after an earlier attempt, which has let go of the payload by then."""
        last = self.sent
        assert last is not None
        if self.in_flight:
            if request.body.content is None:
                raise PluginError("a layer sent a body that is not in memory twice at once")
            if req is self.req:
                req = copy_of(req)
        elif (writer := last._writer) is not None:
            writer.cancel()
            with suppress(aiohttp.ClientError, OSError):
                await last.close()
        # Once ClientTimeout.total is spent, nothing is sent any more.
        req._timer.assert_timeout()
        if req._body is not None and self.body_started and (req._body.consumed or not request.body.replayable):
            cause = aiohttp.ClientPayloadError("a one-shot request body cannot be sent again")
            raise TransportError(
                str(cause), kind=FailureKind.BODY, verdict=Verdict.AMBIGUOUS, native=cause
            ) from cause
        req.response = None
        if req._continue is not None:
            # The previous attempt's "100 Continue", or the cancellation of waiting for it, is not this one's.
            req._continue = req.loop.create_future()
        return req

    def rebuilt(self, request: Request, req: ClientRequest) -> ClientRequest:
        """`req` itself, or a copy with what layers changed."""
        same_headers = request._headers is self or request._headers is self._loaded
        same_body = request.body is self.body
        same_url = request.url is self.url
        if same_headers and same_body and same_url and request.method is self.method:
            return req if request.timeout is self.timeout else copy_of(req)
        changed = copy_of(req)
        changed.method = request.method.upper()
        changed.headers = req.headers.copy() if same_headers else CIMultiDict(request.headers.items())
        if not same_url:
            _move(changed, URL(request.url, encoded=True), req.url)
            if (host := request.extensions.get("host")) is not None:
                changed.headers[hdrs.HOST] = host
            if (name := request.extensions.get("server_hostname")) is not None:
                changed.server_hostname = name
        if not same_body:
            _fill(changed, data_of(request.body))
        return changed


def copy_of(req: ClientRequest) -> ClientRequest:
    """A copy that can be changed and sent; headers and payload are the same objects."""
    copied = copy.copy(req)
    copied.__dict__.pop("_ClientRequest__writer", None)
    return copied


def _move(req: ClientRequest, url: URL, before: URL) -> None:
    if not url.raw_host:
        raise aiohttp.InvalidURL(url)
    if req.headers.get(hdrs.HOST) == before.host_port_subcomponent and url.host_port_subcomponent is not None:
        req.headers[hdrs.HOST] = url.host_port_subcomponent
    req.original_url = url
    req.url = url.with_fragment(None) if url.raw_fragment else url


def _fill(req: ClientRequest, data: Any) -> None:
    """Give `req` a body, with the headers that aiohttp would have made for it."""
    req._body = None
    req.headers.popall(hdrs.CONTENT_LENGTH, None)
    if hdrs.CONTENT_ENCODING not in req.headers or data is None:
        req.compress = None
    if not req.compress:
        req.chunked = None
        req.headers.popall(hdrs.TRANSFER_ENCODING, None)
    req.update_body_from_data(data)
    if req.chunked and hdrs.TRANSFER_ENCODING not in req.headers:
        req.update_transfer_encoding()


def to_response(native: Any) -> Response:
    """The neutral form of what aiohttp, or a test's stand-in for a part of it, handed over."""
    if not isinstance(native, ClientResponse):
        return Response(getattr(native, "status", 0), Headers(), OpaqueBody(native), native=native)
    return Response(
        native.status,
        lambda: Headers(native.headers.items()),
        NativeBody(native),
        extensions={"http_version": "HTTP/1.1" if native.version is HttpVersion11 else _version(native)},
        native=native,
    )


def _version(native: ClientResponse) -> str:
    return "HTTP/1.1" if native.version is None else f"HTTP/{native.version.major}.{native.version.minor}"


_VERSIONS: Final = {"HTTP/1.0": HttpVersion(1, 0), "HTTP/2": HttpVersion(2, 0)}


def build_native(response: Response, content: bytes, req: ClientRequest) -> ClientResponse:
    """A real `ClientResponse` for an answer that a layer gave by itself; `response.body` is told as it is read."""
    native = native_response(req)
    headers = response.headers.items()
    native.version = _VERSIONS.get(response.extensions.get("http_version", ""), HttpVersion11)
    native.status = response.status
    native.reason = _reason(response.status)
    native._headers = CIMultiDictProxy(CIMultiDict(headers))
    native._raw_headers = tuple((name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers)
    native._raw_cookie_headers = tuple(response.headers.get_all(hdrs.SET_COOKIE)) or None
    native.content = filled_reader(content, req.loop)
    response.body.release()
    if content and not response.body.ended:
        tell(response.body, native)
    else:
        response.body.end()
    return native


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
