"""Between requests' prepared requests and responses and netkit's neutral ones.

Rules of this file:

- An unchanged request goes to the adapter as the same object with the same arguments.
- A changed request is a copy; only what a layer changed is rebuilt.
"""

from __future__ import annotations

import io
from http.client import responses
from typing import TYPE_CHECKING, Any, TypeAlias

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import rewind_body, select_proxy
from urllib3 import HTTPHeaderDict
from urllib3.response import HTTPResponse

from netkit.headers import Headers
from netkit.hops import Hops
from netkit.identity import token_of
from netkit.messages import NO_BODY, Body, Request, Response, Timeout
from netkit_adapters.requests.body import NativeBody
from netkit_adapters.requests.origins import leave_behind
from netkit_adapters.requests.raw import Original

if TYPE_CHECKING:
    from collections.abc import Iterator

    from requests.adapters import BaseAdapter

    from netkit.stats import Call
    from netkit_adapters.requests.transport import Wiring

__all__ = ["Exchange", "build_native", "to_request", "to_response"]


Prepared: TypeAlias = "tuple[BaseAdapter, requests.PreparedRequest, dict[str, Any]]"


class _NamedAdapter(HTTPAdapter):
    """An adapter whose TLS connections are verified for the name that a request brings, not for its URL's host."""

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        host, pool = super().build_connection_pool_key_attributes(request, verify, cert)
        name = request._netkit_server_hostname
        return host, {**pool, "server_hostname": name, "assert_hostname": name}


def _named(
    name: str, adapter: BaseAdapter, prepared: requests.PreparedRequest, arguments: dict[str, Any]
) -> Prepared:
    """The same, with TLS for `name`. Only requests' own adapter knows how; another's answers for itself."""
    if type(adapter) is not HTTPAdapter:
        return adapter, prepared, arguments
    verified = object.__new__(_NamedAdapter)
    # The very same pools, managed by the adapter that its session closes.
    verified.__dict__ = adapter.__dict__
    prepared = prepared.copy()
    prepared._netkit_server_hostname = name  # type: ignore[attr-defined]
    return verified, prepared, arguments


class Exchange:
    """One hop of a requests call: what `Request.native` holds."""

    __slots__ = (
        "_changed",
        "_hops",
        "_taken_over",
        "adapter",
        "arguments",
        "attempted",
        "call",
        "prepared",
        "request",
        "wiring",
    )

    def __init__(
        self,
        prepared: requests.PreparedRequest,
        adapter: BaseAdapter,
        arguments: dict[str, Any],
        wiring: Wiring,
    ) -> None:
        self.prepared = prepared
        self.adapter = adapter
        self.arguments = arguments
        self.wiring = wiring
        self.attempted = False
        self._changed: tuple[Request, Prepared] | None = None
        self._hops: dict[str, Any] | None = None
        self._taken_over = False
        self.request: Request
        self.call: Call

    def detach(self, request: Request, keep_call: bool) -> Request:
        """See `Request.detach`."""
        apart = Exchange(self.prepared, self.adapter, self.arguments, self.wiring)
        no_call: Any = None
        apart.request, apart.call = self.request, self.call if keep_call else no_call
        return Request(
            request.method, request.url, request._headers, request.body, request.timeout, request.extensions, apart
        )

    def channel(self) -> tuple[str, ...]:
        """See `Request.channel`."""
        url, arguments = self.prepared.url or "", self.arguments
        proxies = arguments.get("proxies")
        proxy = select_proxy(url, proxies) if proxies else None
        parts: tuple[str, ...] = ()
        if type(self.adapter) is not HTTPAdapter:
            # One of the user's own may hold anything: a TLS context, a socket's path.
            parts += (f"adapter={token_of(self.adapter)}",)
        if proxy:
            parts += (f"proxy={proxy}",)
        if url.startswith("https:"):
            verify, cert = arguments.get("verify", True), arguments.get("cert")
            parts += (f"verify={verify if isinstance(verify, (bool, str)) else token_of(verify)}",)
            if cert is not None:
                parts += (f"cert={cert}",)
        return parts

    def hops(self) -> dict[str, Any]:
        """See `netkit.hops`. What follows from a request shares its table of hooks: copies do not copy that."""
        if self._hops is None:
            table: Any = self.prepared.hooks
            known = table.get(_HOPS) if type(table) is dict else None
            if type(known) is not Hops or known.began_with(self.prepared):
                known = Hops(self.prepared)
                if type(table) is dict:
                    table[_HOPS] = known
            self._hops = known.kept
        return self._hops

    def peek(self, request: Request) -> Prepared:
        """The adapter, prepared request and arguments with which `request` would be sent."""
        if request is self.request and self._changed is None:
            return self.adapter, self.prepared, self.arguments
        if self._changed is not None and self._changed[0] is request:
            return self._changed[1]
        adapter, prepared, arguments, original = self.adapter, self.prepared, self.arguments, self.request
        if request.url is not original.url:
            adapter = self.wiring.pick(request.url)
        prepared = self._rebuilt(request)
        if request.timeout is not original.timeout:
            arguments = {**arguments, "timeout": _native_timeout(request.timeout)}
        self._changed = (request, (adapter, prepared, arguments))
        return self._changed[1]

    def begin(self, request: Request, *, opens_body: bool = True) -> Prepared:
        """The same for an attempt that is made now: counted, and with the body at its beginning, unless the sender
        opens it by itself."""
        result = self.peek(request)
        if self.attempted and request.timeout is not self.request.timeout:
            # Limits may shrink from attempt to attempt.
            result = (*result[:2], {**result[2], "timeout": _native_timeout(request.timeout)})
        if request.extensions.get("server_hostname") is not None and (result[1].url or "").startswith("https:"):
            result = _named(request.extensions["server_hostname"], *result)
        body = request.body
        if opens_body and body.content is None and not self._taken_over:
            if body is not self.request.body:
                result[1].body = body.open()  # type: ignore[assignment]
            elif self.attempted and body.replayable:
                # A one-shot body comes here again only where nothing was taken from it.
                rewind_body(result[1])
        self.attempted = True
        self.wiring.edge.meter.attempt(self.call)
        return result

    @property
    def taken_over(self) -> bool:
        """Whether `instead` was called: the prepared request's body is what is left to send."""
        return self._taken_over

    def instead(self, request: Request, body: Iterator[bytes]) -> None:
        """Send `body` in place of a one-shot body from which something was taken already."""
        adapter, prepared, arguments = self.peek(request)
        prepared = prepared.copy()
        prepared.body = body
        self._taken_over = True
        self._changed = (request, (adapter, prepared, arguments))

    def _rebuilt(self, request: Request) -> requests.PreparedRequest:
        original = self.request
        same_headers = request._headers is original._headers
        if (
            same_headers
            and request.url is original.url
            and request.method is original.method
            and request.body is original.body
        ):
            return self.prepared
        prepared = self.prepared.copy()
        prepared.method, prepared.url = request.method, request.url
        if not same_headers:
            merged: CaseInsensitiveDict[Any] = CaseInsensitiveDict()
            for name in request.headers:
                merged[_spelling(request.headers, name)] = request.headers[name]
            prepared.headers = merged
        if request.body is not original.body:
            # Bytes are there; anything else is opened for each attempt.
            prepared.body = request.body.content
            prepared.headers.pop("Transfer-Encoding", None)
            if request.body.size is not None:
                prepared.headers["Content-Length"] = str(request.body.size)
            else:
                prepared.headers.pop("Content-Length", None)
                prepared.headers["Transfer-Encoding"] = "chunked"
        if request.url is not original.url:
            leave_behind(prepared, self.prepared)
        if (host := request.extensions.get("host")) is not None:
            prepared.headers["Host"] = host
        return prepared


def _spelling(headers: Headers, lowered: str) -> str:
    return next(name for name, _ in headers.items() if name.lower() == lowered)


def to_request(
    prepared: requests.PreparedRequest,
    adapter: BaseAdapter,
    arguments: dict[str, Any],
    wiring: Wiring,
) -> Request:
    """The neutral form of one hop."""
    exchange = Exchange(prepared, adapter, arguments, wiring)
    request = Request(
        prepared.method or "GET",
        prepared.url or "",
        lambda: Headers((_text(name), _text(value)) for name, value in (prepared.headers or {}).items()),
        _body(prepared),
        _timeout(arguments.get("timeout")),
        {"hops": exchange.hops, "stream": True} if arguments.get("stream") else {"hops": exchange.hops},
        exchange,
    )
    exchange.request = request
    return request


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _body(prepared: requests.PreparedRequest) -> Body:
    body: Any = prepared.body
    if body is None:
        return NO_BODY
    if isinstance(body, bytes):
        return Body.of(body)
    if isinstance(body, (bytearray, memoryview)):
        return Body.of(bytes(body))
    if isinstance(body, str):
        return Body.of(body.encode("utf-8"))
    length = prepared.headers.get("Content-Length") if prepared.headers is not None else None
    size = int(length) if length is not None and str(length).isdigit() else None
    if isinstance(prepared._body_position, int) and hasattr(body, "seek"):

        def reopen() -> Any:
            rewind_body(prepared)
            return body

        return Body.reopenable(reopen, size)
    return Body.one_shot(body, size)


def _timeout(value: Any) -> Timeout:
    if value is None:
        return _NO_TIMEOUT
    if isinstance(value, tuple):
        return Timeout(*value) if len(value) == 2 else _NO_TIMEOUT
    if isinstance(value, (int, float)):
        return Timeout(value, value)
    read = getattr(value, "read_timeout", None)
    connect = getattr(value, "connect_timeout", None)
    return Timeout(*(limit if isinstance(limit, (int, float)) else None for limit in (connect, read)))


_NO_TIMEOUT = Timeout()
_HOPS = "netkit"


def _native_timeout(timeout: Timeout) -> Any:
    if timeout.total is None:
        return timeout.connect, timeout.read
    return urllib3.Timeout(timeout.total, timeout.connect, timeout.read)


def to_response(native: requests.Response) -> Response:
    """The neutral form of what an adapter returned."""

    def headers() -> Headers:
        raw = getattr(native.raw, "headers", None)
        source = raw if isinstance(raw, HTTPHeaderDict) else native.headers
        return Headers(source.items())

    return Response(native.status_code, headers, NativeBody(native), native=native)


_builder = HTTPAdapter()


def build_native(response: Response, content: bytes, prepared: requests.PreparedRequest) -> requests.Response:
    """A real `requests.Response` for an answer that a layer gave by itself."""
    original: Any = Original(response.headers.items())
    raw = HTTPResponse(
        body=io.BytesIO(content),
        headers=HTTPHeaderDict(response.headers.items()),
        status=response.status,
        version=20 if response.extensions.get("http_version") == "HTTP/2" else 11,
        reason=responses.get(response.status, ""),
        preload_content=False,
        decode_content=False,
        original_response=original,
        enforce_content_length=False,
        request_method=prepared.method,
        request_url=prepared.url,
    )
    return _builder.build_response(prepared, raw)
