"""Between httpx's requests and responses and netkit's neutral ones.

Rules of this file:

- An unchanged request goes to the transport as the very same object.
- A changed request is a copy; only what a layer changed is rebuilt, and the framing headers follow the body.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from netkit.headers import Headers
from netkit.messages import Body, Request, Response, ResponseBody, Timeout
from netkit_adapters.httpx.bodies import body_of, stream_of

if TYPE_CHECKING:
    from netkit.stats import Call
    from netkit_adapters.httpx.chain import Wiring

__all__ = ["Exchange", "native_response", "response_headers"]

_NO_TIMEOUT = Timeout()


class Exchange:
    """One hop of a client's call: what `Request.native` holds. `transport` is what the client picked for its URL,
    `pick` how it picks for another one.

    It does not hold its neutral request: large bodies must not wait for a collector.
    """

    __slots__ = ("_headers", "attempted", "body", "call", "native", "pick", "timeout", "transport", "url", "wiring")

    def __init__(self, wiring: Wiring, transport: Any, pick: Any) -> None:
        self.wiring = wiring
        self.transport = transport
        self.pick = pick

    def begin(self, native: Any) -> Request:
        """The neutral request for `native`, with its call's clock started."""
        self.native = native
        self.attempted = False
        self._headers: Headers | None = None
        self.url = str(native.url)
        self.body = body_of(self.wiring.stack, native)
        self.timeout = _timeout(native.extensions.get("timeout"))
        extensions: dict[str, Any] = {}
        request = Request(native.method, self.url, self.headers, self.body, self.timeout, extensions, self)
        self.call: Call = self.wiring.edge.begin(request)
        extensions["call"] = self.call
        return request

    def headers(self) -> Headers:
        """The headers as text, in the encoding that httpx itself finds for them."""
        if self._headers is None:
            encoding = self.native.headers.encoding
            self._headers = Headers((k.decode(encoding), v.decode(encoding)) for k, v in self.native.headers.raw)
        return self._headers

    def next_attempt(self, request: Request, *, asynchronous: bool) -> tuple[Any, Any]:
        """The transport and the native request for sending `request`, with its body at its beginning."""
        transport, native = self._rebuilt(request, asynchronous=asynchronous)
        if self.attempted and request.body is self.body and self.body.content is None:
            if not self.body.replayable:
                raise self.wiring.stack.native.StreamConsumed
            self.body.open()
        self.attempted = True
        return transport, native

    def _rebuilt(self, request: Request, *, asynchronous: bool) -> tuple[Any, Any]:
        native, stack = self.native, self.wiring.stack
        same_url = request.url is self.url
        same_body = request.body is self.body
        same_headers = request._headers is self._headers or request._headers == self.headers
        same_timeout = request.timeout is self.timeout
        if same_url and same_body and same_headers and same_timeout and request.method is native.method:
            return self.transport, native
        url = native.url if same_url else stack.native.URL(request.url)
        headers = request.headers
        if not same_url and headers.get("host") == native.url.netloc.decode("ascii"):
            headers = headers.set("Host", url.netloc.decode("ascii"))
        if not same_body:
            headers = _framed(headers, request.body)
        changed = stack.native.Request(
            request.method,
            url,
            headers=native.headers if headers is self._headers else _encoded(headers, native.headers.encoding),
            stream=native.stream if same_body else stream_of(stack, request.body, asynchronous=asynchronous),
            extensions=native.extensions
            if same_timeout
            else {**native.extensions, "timeout": _limits(request.timeout)},
        )
        return self.transport if same_url else self.pick(url), changed


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
