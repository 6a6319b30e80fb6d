"""HTTP/2 under requests: the session's own TLS and proxy settings, and real urllib3 responses over an exchange.

Rules of this file:

- Only an untouched `HTTPAdapter` is replaced: any subclass, any patch of requests or urllib3, any setting that
  netkit does not know means that the adapter itself is called.
- TLS contexts are made from what requests would use, and are part of the pool's key: `verify=False` never serves
  `verify=True`.
- A body that was asked for whole is there whole; a streamed one is handed on as it arrives.
"""

from __future__ import annotations

import os
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from http.client import responses
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import _basic_auth_str
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_auth_from_url, prepend_scheme_if_needed, select_proxy
from urllib3 import HTTPHeaderDict, HTTPSConnectionPool
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import InsecureRequestWarning, LocationParseError
from urllib3.util import parse_url
from urllib3.util.ssl_ import create_urllib3_context

from netkit import fork
from netkit.headers import Headers
from netkit.http2 import ConnectSpec, H2Request, Http1Only, Http2Options, ProxySpec, SyncEngine
from netkit.http2.port import could_not_connect
from netkit.messages import Body, Response
from netkit_adapters.requests.negotiation import Negotiation
from netkit_adapters.requests.raw import ExchangeBody, ExchangeResponse, Original

if TYPE_CHECKING:
    from netkit.http2 import SyncExchange
    from netkit.messages import Request
    from netkit_adapters.requests.messages import Exchange

__all__ = ["Recorded", "RequestsHttp2", "respond"]

_PATCHABLE: Final = (
    (HTTPAdapter, "send"),
    (HTTPAdapter, "get_connection_with_tls_context"),
    (HTTPAdapter, "build_response"),
    (HTTPConnectionPool, "urlopen"),
    (HTTPConnectionPool, "_make_request"),
    (HTTPConnectionPool, "ConnectionCls"),
    (HTTPSConnectionPool, "ConnectionCls"),
)
_ORIGINALS: Final = tuple(getattr(owner, name) for owner, name in _PATCHABLE)
"""Where mocking libraries take hold; compared for each request with what stood there at import."""

_POOL_KEYWORDS: Final = frozenset({"maxsize", "block", "socket_options"})
BLOCK: Final = 65536
_builder = HTTPAdapter()


def _unpatched() -> bool:
    return all(
        getattr(owner, name) is original for (owner, name), original in zip(_PATCHABLE, _ORIGINALS, strict=True)
    )


@lru_cache(maxsize=4096)
def _split(url: str) -> tuple[str, str, int, bytes, bytes] | None:
    """(scheme, host, port, authority, path with query) of a prepared URL."""
    parts = urlsplit(url)
    host = parts.hostname
    if host is None:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = f"[{host}]" if ":" in host else host
    authority = (
        name if parts.port is None or parts.port == (443 if parts.scheme == "https" else 80) else f"{name}:{port}"
    )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme.lower(), host, port, authority.encode("latin-1"), path.encode("latin-1")


class _Trust:
    """TLS contexts for each (verify, cert) that a session was asked to use; made anew when a file has changed."""

    def __init__(self) -> None:
        self._contexts: dict[Any, ssl.SSLContext] = {}
        self._lock = threading.Lock()

    def get(self, verify: Any, cert: Any) -> tuple[Any, ssl.SSLContext]:
        """The pool key's part and the context. Raises OSError as requests does when a file is not there."""
        location = DEFAULT_CA_BUNDLE_PATH if verify is True else verify
        files = [
            name for name in (location, *(cert if isinstance(cert, tuple) else (cert,))) if isinstance(name, str)
        ]
        key = (bool(verify), location, cert, tuple(_stamp(name) for name in files))
        context = self._contexts.get(key)
        if context is None:
            with self._lock:
                if len(self._contexts) >= 64:
                    self._contexts.clear()
                context = self._contexts[key] = _context(location if verify else None, cert)
        return key, context

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _context(location: str | None, cert: Any) -> ssl.SSLContext:
    context = create_urllib3_context()
    if location is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = True
        if os.path.isdir(location):
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location)
    if cert:
        pair = cert if isinstance(cert, tuple) else (cert,)
        context.load_cert_chain(*pair)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class RequestsHttp2:
    """`netkit.http2.port.Http2Port` for one requests session."""

    def __init__(self) -> None:
        self._negotiation = Negotiation()
        self._trust = _Trust()
        fork.register(self._trust)

    def engine(self, options: Http2Options, on_event: Callable[[str, dict[str, Any]], None]) -> SyncEngine:
        return SyncEngine(options, on_event=on_event)

    def target(self, request: Request, *, prior_knowledge: bool) -> H2Request | None:
        exchange: Exchange = request.native
        adapter, prepared, arguments = exchange.peek(request)
        parts = _split(prepared.url or "")
        if parts is None:
            return None
        scheme, host, port, authority, path = parts
        if scheme != "https" and not (prior_knowledge and scheme == "http"):
            return None
        if not _is_stock(adapter) or not _unpatched():
            return None
        proxy = None
        if arguments.get("proxies"):
            address = select_proxy(prepared.url or "", arguments["proxies"])
            if address:
                proxy = _proxy(address)
                if proxy is None or scheme != "https":
                    return None
        tls: Any = None
        context = None
        if scheme == "https":
            try:
                tls, context = self._trust.get(arguments.get("verify", True), arguments.get("cert"))
            except OSError:
                # requests words the error of a missing file itself.
                return None
        headers = [(_bytes(name), _bytes(value)) for name, value in prepared.headers.items() if value is not None]
        body, timeout = request.body, request.timeout
        reopen = None
        content: Any = body.content
        if content is None:
            if body.replayable:
                reopen = partial(_reopened, body)
            # Each attempt begins at the beginning; a one-shot body has one attempt.
            content = Recorded(_chunks(body.open()))
        return H2Request(
            (scheme, host, port, tls, proxy),
            ConnectSpec(host, port, ssl=context, proxy=proxy),
            _bytes(prepared.method or "GET"),
            authority,
            path,
            headers,
            content or None,
            scheme=scheme.encode(),
            body_size=body.size,
            reopen=reopen,
            replayable=body.replayable,
            connect_timeout=timeout.connect,
            read_timeout=timeout.read,
            write_timeout=timeout.read,
        )

    async def exchange(self, engine: SyncEngine, request: Request, target: H2Request) -> Response | None:
        native: Exchange = request.native
        body = target.body
        try:
            if (
                target.connect.ssl is not None
                and target.connect.proxy is None
                and not self._negotiation.speaks_http2(engine, request, target)
            ):
                return None
            outcome = engine.send(target)
        except BaseException as error:
            if could_not_connect(error):
                return None
            native.begin(request)
            raise
        if isinstance(outcome, Http1Only):
            if isinstance(body, Recorded) and not target.replayable:
                native.instead(request, body.again())
            return None
        _, prepared, arguments = native.begin(request)
        if target.connect.ssl is not None and not arguments.get("verify", True):
            # urllib3 says so for each such request; a drop-in that kept silent would hide it.
            warnings.warn(
                f"Unverified HTTPS request is being made to host {target.connect.host!r}.",
                InsecureRequestWarning,
                stacklevel=2,
            )
        return respond(outcome, prepared)


def _reopened(body: Body) -> Iterator[bytes]:
    return _chunks(body.open())


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


def _is_stock(adapter: Any) -> bool:
    """A plain HTTPAdapter whose retries and pool settings are requests' own."""
    if type(adapter) is not HTTPAdapter or "send" in adapter.__dict__:
        return False
    retries = adapter.max_retries
    return (
        retries.total == 0
        and retries.read is False
        and adapter.poolmanager.connection_pool_kw.keys() <= _POOL_KEYWORDS
    )


@lru_cache(maxsize=256)
def _proxy(address: str) -> ProxySpec | None:
    """An HTTP CONNECT proxy without TLS of its own; None for what the native transport has to do."""
    try:
        parts = parse_url(prepend_scheme_if_needed(address, "http"))
    except LocationParseError:
        return None
    if parts.scheme != "http" or not parts.host:
        return None
    user, password = get_auth_from_url(address)
    authorization = _basic_auth_str(user, password) if user else None
    return ProxySpec(parts.host.strip("[]"), parts.port or 80, authorization=authorization)


def respond(exchange: SyncExchange, prepared: requests.PreparedRequest) -> Response:
    """The neutral response, with the native one inside it."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers]
    fields = HTTPHeaderDict()
    cookies = False
    for name, value in pairs:
        fields.add(name, value)
        cookies = cookies or name == "set-cookie"
    body = ExchangeBody(exchange)
    raw = ExchangeResponse(
        body.file,
        headers=fields,
        status=exchange.status,
        reason=responses.get(exchange.status, ""),
        # requests looks for cookies only where there is an original response: most answers have none.
        original_response=Original(pairs) if cookies else None,
        request_method=prepared.method,
        request_url=prepared.url,
    )
    body.native = _builder.build_response(prepared, raw)
    extensions = {
        "http_version": "HTTP/2",
        "connection_id": exchange.connection_id,
        "stream_id": exchange.stream_id,
    }
    return Response(exchange.status, lambda: Headers(pairs), body, extensions=extensions, native=body.native)


class Recorded:
    """A one-shot body that remembers what it gave, until it is known that the server speaks HTTP/2."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._given: list[bytes] | None = []

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if self._given is not None:
                self._given.append(chunk)
            yield chunk

    def forget(self) -> None:
        self._given = None

    def again(self) -> Iterator[bytes]:
        """From its beginning, for the transport that has to send it instead."""
        return chain(self._given or (), self._chunks)


def _chunks(body: Any) -> Iterator[bytes]:
    """The body as urllib3 would send it: files in blocks, iterables item by item, text as UTF-8."""
    items = iter(lambda: body.read(BLOCK), body.read(0)) if hasattr(body, "read") else iter(body)
    for item in items:
        yield item.encode("utf-8") if isinstance(item, str) else bytes(item)
