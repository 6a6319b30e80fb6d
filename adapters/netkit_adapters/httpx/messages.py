"""Between httpx's requests and responses and netkit's neutral ones.

Rules of this file:

- An unchanged request goes to the transport as the very same object.
- A changed request is a copy; only what a layer changed is rebuilt, and the framing headers follow the body.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from netkit.headers import Headers
from netkit.hops import Hops
from netkit.messages import Body, Request, Response, ResponseBody, Timeout
from netkit_adapters.httpx.bodies import body_of, stream_of
from netkit_adapters.httpx.channel import channel_of
from netkit_adapters.httpx.origins import moved

if TYPE_CHECKING:
    from netkit.stats import Call
    from netkit_adapters.httpx.chain import Wiring

__all__ = ["Exchange", "native_response", "response_headers"]

_NO_TIMEOUT = Timeout()
_HOPS = "netkit_hops"
_SECOND_LEG = 1.0
"""Seconds within which the second leg of an authentication follows the first."""


def _is_second_leg(known: Hops) -> bool:
    status, at = known.kept.get(_HOPS, (0, 0.0))
    return status in (401, 407) and time.monotonic() - at < _SECOND_LEG


class _Unfrozen(Request):
    """A request while it is being filled in: setting seven fields one by one past `Request.__setattr__` costs more
    than the rest of `begin`."""

    __slots__ = ()

    __setattr__ = object.__setattr__  # type: ignore[assignment]


class Exchange:
    """One hop of a client's call: what `Request.native` holds. `transport` is what the client picked for its URL,
    `pick` how it picks for another one.

    It does not hold its neutral request: large bodies must not wait for a collector.
    """

    __slots__ = (
        "_before",
        "_headers",
        "_hops",
        "address",
        "attempted",
        "body",
        "call",
        "instead",
        "misdirected",
        "native",
        "pick",
        "timeout",
        "transport",
        "url",
        "wiring",
    )

    def __init__(self, wiring: Wiring, transport: Any, pick: Any) -> None:
        self.wiring = wiring
        self.transport = transport
        self.pick = pick

    def begin(self, native: Any) -> Request:
        """The neutral request for `native`, with its call's clock started."""
        self.native = native
        self.attempted = self.misdirected = False
        self.instead: tuple[Body, Body] | None = None
        self._headers: Headers | None = None
        self._hops: Hops | None = None
        self.address = self.wiring.addresses.of(native.url)
        self.url = self.address.text
        self.body = body_of(self.wiring.stack, native)
        self.timeout = _timeout(native.extensions.get("timeout"))
        extensions: dict[str, Any] = {}
        request: Request = object.__new__(_Unfrozen)
        request.method, request.url, request._headers = native.method, self.url, self.headers
        request.body, request.timeout, request.extensions, request.native = self.body, self.timeout, extensions, self
        request.__class__ = Request
        self.call: Call = self.wiring.edge.begin(request)
        extensions["call"] = self.call
        extensions["hops"] = self.hops
        return request

    def hops(self) -> dict[str, Any]:
        """See `netkit.hops`. Extensions go on to what follows from a request; a request that is answered 401 and sent
        again at once is a second leg of authentication."""
        if self._hops is None:
            known = self.native.extensions.get(_HOPS)
            if type(known) is not Hops or (known.began_with(self.native) and not _is_second_leg(known)):
                known = self.native.extensions[_HOPS] = Hops(self.native)
            self._hops = known
        return self._hops.kept

    def answered(self, status: int) -> None:
        """Where something is kept over hops: how this one ended."""
        if self._hops is not None:
            self._hops.kept[_HOPS] = status, time.monotonic()

    def detach(self, request: Request, keep_call: bool) -> Request:
        """See `Request.detach`."""
        apart = Exchange(self.wiring, self.transport, self.pick)
        apart.native, apart.url, apart.body, apart.timeout = self.native, self.url, self.body, self.timeout
        apart.address = self.address
        no_call: Any = None
        apart._headers, apart.attempted, apart.instead = self._headers, False, None
        apart.misdirected = False
        apart.call = self.call if keep_call else no_call
        return Request(
            request.method, request.url, request._headers, request.body, request.timeout, request.extensions, apart
        )

    def channel(self) -> tuple[str, ...]:
        """See `Request.channel`."""
        return channel_of(self.wiring, self.transport, self.native)

    def headers(self) -> Headers:
        """The headers as text, in the encoding that httpx itself finds for them."""
        if self._headers is None:
            encoding = self.native.headers.encoding
            self._headers = Headers((k.decode(encoding), v.decode(encoding)) for k, v in self.native.headers.raw)
        return self._headers

    def peek(self, request: Request) -> tuple[Any, Any, list[tuple[bytes, bytes]] | None]:
        """The transport, native URL and raw headers for sending `request`, None where those are the native request's
        own; its body is not touched."""
        native = self.native
        if (
            request.url is self.url
            and request.body is self.body
            and (request._headers is self._headers or request._headers == self.headers)
        ):
            return self.transport, native.url, None
        transport, url, headers = self._addressed(request)
        return transport, url, None if headers is native.headers else headers

    def began(self, body: Body, instead: Body | None) -> None:
        """An attempt took from `body` and came to nothing before the request was sent. `instead` is a one-shot body
        put together again."""
        if instead is not None:
            self.instead = body, instead
        else:
            self.attempted = True

    def sent(self) -> None:
        """An attempt of the engine's got as far as a server: a one-shot body is gone."""
        self.attempted, self.instead = True, None

    def unsent(self) -> None:
        """The last attempt of the stack's own transport failed before it touched the body."""
        self.attempted, self.instead = self._before

    def body_of(self, request: Request) -> Body:
        """The body to send for `request`: what an earlier attempt took from a one-shot body is in front again."""
        instead = self.instead
        return request.body if instead is None or instead[0] is not request.body else instead[1]

    def next_attempt(self, request: Request, *, asynchronous: bool) -> tuple[Any, Any]:
        """The transport and the native request for sending `request`, with its body at its beginning."""
        self._before = self.attempted, self.instead
        body = request.body
        if self.instead is not None and (whole := self.body_of(request)) is not body:
            self.attempted, self.instead = True, None
            transport, url, headers = self._addressed(request)
            return transport, self._with_stream(request, url, headers, whole, asynchronous=asynchronous)
        transport, native = self._rebuilt(request, asynchronous=asynchronous)
        if self.attempted and body is self.body and body.content is None:
            if not body.replayable:
                raise self.wiring.stack.native.StreamConsumed
            body.open()
        self.attempted = True
        return transport, native

    def _rebuilt(self, request: Request, *, asynchronous: bool) -> tuple[Any, Any]:
        native = self.native
        if (
            request.url is self.url
            and request.body is self.body
            and (request._headers is self._headers or request._headers == self.headers)
            and request.timeout is self.timeout
            and request.method is native.method
        ):
            return self.transport, native
        transport, url, headers = self._addressed(request)
        return transport, self._with_stream(request, url, headers, request.body, asynchronous=asynchronous)

    def _addressed(self, request: Request) -> tuple[Any, Any, Any]:
        """The transport, native URL and headers of a changed request."""
        native = self.native
        transport, url, headers = self.transport, native.url, request.headers
        if request.url is not self.url:
            url = self.wiring.stack.native.URL(request.url)
            transport = self.pick(url)
            headers = moved(self, headers, url, transport)
            if (host := request.extensions.get("host")) is not None:
                headers = headers.set("Host", host)
        if request.body is not self.body:
            headers = _framed(headers, request.body)
        return (
            transport,
            url,
            native.headers if headers is self._headers else _encoded(headers, native.headers.encoding),
        )

    def _with_stream(self, request: Request, url: Any, headers: Any, body: Body, *, asynchronous: bool) -> Any:
        native, stack = self.native, self.wiring.stack
        extensions = native.extensions
        if request.timeout is not self.timeout:
            extensions = {**extensions, "timeout": _limits(request.timeout)}
        if (name := request.extensions.get("server_hostname")) is not None:
            extensions = {**extensions, "sni_hostname": name}
        return stack.native.Request(
            request.method,
            url,
            headers=headers,
            stream=native.stream if body is self.body else stream_of(stack, body, asynchronous=asynchronous),
            extensions=extensions,
        )


def _limits(timeout: Timeout) -> dict[str, float | None]:
    return {"connect": timeout.connect, "read": timeout.read, "write": timeout.write, "pool": timeout.pool}


def _framed(headers: Headers, body: Body) -> Headers:
    if body.size is None:
        return headers.remove("Content-Length").set("Transfer-Encoding", "chunked")
    headers = headers.remove("Transfer-Encoding")
    if body.size == 0 and "content-length" not in headers:
        return headers
    return headers.set("Content-Length", str(body.size))


def _encoded(headers: Headers, encoding: str) -> list[tuple[bytes, bytes]]:
    try:
        return [(name.encode(encoding), value.encode(encoding)) for name, value in headers.items()]
    except UnicodeEncodeError:
        return [(name.encode("utf-8"), value.encode("utf-8")) for name, value in headers.items()]


def _timeout(limits: Any) -> Timeout:
    if not limits:
        return _NO_TIMEOUT
    return Timeout(limits.get("connect"), limits.get("read"), limits.get("write"), limits.get("pool"))


def response_headers(native: Any) -> Headers:
    """The headers of a native response as text."""
    encoding = native.headers.encoding
    return Headers((name.decode(encoding), value.decode(encoding)) for name, value in native.headers.raw)


def native_response(wiring: Wiring, response: Response, content: bytes, body: ResponseBody) -> Any:
    """A real native response for an answer that a layer gave by itself."""
    version = str(response.extensions.get("http_version", "HTTP/1.1"))
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    return wiring.stack.native.Response(
        response.status,
        headers=_encoded(response.headers, "utf-8"),
        stream=wiring.synthetic(body, content),
        extensions={"http_version": version.encode("ascii"), "reason_phrase": phrase.encode("ascii")},
    )
