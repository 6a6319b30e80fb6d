"""HTTP/2 under requests: the session's own TLS and proxy settings, and real urllib3 responses over an exchange.

Rules of this file:

- Only an untouched `HTTPAdapter` is replaced: any subclass, any patch of requests or urllib3, any setting that
  netkit does not know means that the adapter itself is called.
- TLS contexts are made from what requests would use, and are part of the pool's key: `verify=False` never serves
  `verify=True`.
- A body that was asked for whole is there whole; a streamed one is handed on as it arrives.
"""

from __future__ import annotations

import datetime
import http.client
import io
import os
import ssl
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from http.client import responses
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import _basic_auth_str
from requests.cookies import RequestsCookieJar, extract_cookies_to_jar
from requests.structures import CaseInsensitiveDict
from requests.utils import (
    DEFAULT_CA_BUNDLE_PATH,
    get_auth_from_url,
    get_encoding_from_headers,
    prepend_scheme_if_needed,
    select_proxy,
)
from urllib3 import HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import InsecureRequestWarning, LocationParseError
from urllib3.util import parse_url
from urllib3.util.ssl_ import create_urllib3_context

from netkit import fork
from netkit.errors import FailureKind, TransportError, Verdict
from netkit.green import threads_are_green
from netkit.headers import Headers
from netkit.http2 import ConnectSpec, H2Request, Http1Only, Http2Options, ProxySpec, SyncEngine
from netkit.http2.port import could_not_connect
from netkit.http2.upload import LengthMismatch
from netkit.messages import Body, Response
from netkit_adapters.requests.negotiation import Negotiation
from netkit_adapters.requests.raw import ExchangeBody, ExchangeResponse, Original

if TYPE_CHECKING:
    from netkit.http2 import SyncExchange
    from netkit.messages import Request
    from netkit_adapters.requests.messages import Exchange

__all__ = ["Recorded", "RequestsHttp2", "respond"]


def _seams() -> tuple[Any, ...]:
    return (
        HTTPAdapter.send,
        HTTPAdapter.get_connection_with_tls_context,
        HTTPAdapter.build_response,
        requests.Response.__init__,
        HTTPConnectionPool.urlopen,
        HTTPConnectionPool._make_request,
        HTTPConnectionPool._get_conn,
        HTTPConnectionPool.ConnectionCls,
        HTTPSConnectionPool.urlopen,
        HTTPSConnectionPool._make_request,
        HTTPSConnectionPool._get_conn,
        HTTPSConnectionPool.ConnectionCls,
        PoolManager.connection_from_host,
        PoolManager.connection_from_pool_key,
        HTTPConnection.connect,
        HTTPConnection.request,
        HTTPConnection.getresponse,
        HTTPSConnection.connect,
        HTTPSConnection.request,
        http.client.HTTPConnection.putrequest,
        http.client.HTTPConnection.endheaders,
        http.client.HTTPConnection.getresponse,
    )


_ORIGINALS: Final = _seams()
"""Where mocking libraries take hold; compared for each request with what stood there at import."""

_POOL_KEYWORDS: Final = frozenset({"maxsize", "block", "socket_options"})
BLOCK: Final = 65536


def _unpatched() -> bool:
    return _seams() == _ORIGINALS


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

    def key(self, verify: Any, cert: Any) -> Any:
        """What a connection under these settings must not be shared beyond: the settings, and the state of the files
        that they name. Raises OSError when one is not there."""
        location = DEFAULT_CA_BUNDLE_PATH if verify is True else verify
        if cert is None and isinstance(location, str):
            return bool(verify), location, None, _stamp(location)
        stamps = [_stamp(name) for name in (location, *_files(cert)) if isinstance(name, str)]
        return bool(verify), location, cert, *stamps

    def context(self, key: Any) -> ssl.SSLContext:
        """The context for a key. Raises OSError or ssl.SSLError for files that are no certificates."""
        context = self._contexts.get(key)
        if context is None:
            verify, location, cert = key[:3]
            with self._lock:
                if len(self._contexts) >= 64:
                    self._contexts.clear()
                context = self._contexts[key] = _context(location if verify else None, cert)
        return context

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()


def _files(cert: Any) -> tuple[Any, ...]:
    return cert if isinstance(cert, tuple) else (cert,)


STAMP_SECONDS: Final = 0.02
_stamps: dict[str, tuple[float, tuple[int, int]]] = {}


def _stamp(path: str) -> tuple[int, int]:
    """When a file was changed last, and its size; looked at again after `STAMP_SECONDS`. Many threads that ask the
    system for each request hold one another up, and what a file says matters to new connections only."""
    now = time.monotonic()
    known = _stamps.get(path)
    if known is not None and now < known[0]:
        return known[1]
    status = os.stat(path)
    if len(_stamps) >= 256:
        _stamps.clear()
    stamp = status.st_mtime_ns, status.st_size
    _stamps[path] = now + STAMP_SECONDS, stamp
    return stamp


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
        context.load_cert_chain(*_files(cert))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class _Destination:
    """Where the requests for one URL under one set of TLS and proxy settings go. Keys are compared by identity: equal
    destinations of one origin share one."""

    __slots__ = ("authority", "key", "path", "scheme", "spec")

    def __init__(self, key: Any, spec: ConnectSpec, scheme: bytes, authority: bytes, path: bytes) -> None:
        self.key = key
        self.spec = spec
        self.scheme = scheme
        self.authority = authority
        self.path = path


class _Key:
    """An origin with its TLS and proxy settings, as the engine's key."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts


MAX_DESTINATIONS: Final = 4096


class RequestsHttp2:
    """`netkit.http2.port.Http2Port` for one requests session."""

    missing: str | None = None

    def __init__(self) -> None:
        self._negotiation = Negotiation()
        self._trust = _Trust()
        self._destinations: dict[Any, _Destination | None] = {}
        self._keys: dict[tuple[Any, ...], _Key] = {}
        fork.register(self._trust)

    def engine(self, options: Http2Options, on_event: Callable[[str, dict[str, Any]], None]) -> SyncEngine:
        # requests lets answers be read on when their session is closed, as `with Session()` around a stream does.
        return SyncEngine(options, on_event=on_event, finish_open=True)

    def target(self, request: Request, *, prior_knowledge: bool) -> H2Request | None:
        exchange: Exchange = request.native
        adapter, prepared, arguments = exchange.peek(request)
        url = prepared.url or ""
        if not (url.startswith("https:") or prior_knowledge) or not _is_stock(adapter) or not _unpatched():
            return None
        if threads_are_green():
            return None
        if not _is_timeout(arguments.get("timeout")) or _is_text(prepared.body):
            return None  # requests has its own words, and ways, for these
        proxies = arguments.get("proxies")
        proxy = select_proxy(url, proxies) if proxies else None
        try:
            trust = self._trust.key(arguments.get("verify", True), arguments.get("cert"))
            known = (url, trust, proxy, request.extensions.get("server_hostname"))
            destination = self._destinations.get(known)
            if destination is None:
                if known in self._destinations:
                    return None
                destination = self._destination(known)
        except (OSError, TypeError):
            # A file that is not there, or a setting of a strange type: requests words that itself.
            return None
        if destination is None:
            return None
        headers = _fields(prepared.headers)
        body, timeout = request.body, request.timeout
        reopen = None
        content: Any = body.content
        if content is None:
            if body.replayable:
                reopen = partial(_reopened, body)
            # Each attempt begins at the beginning; a one-shot body has one attempt.
            content = Recorded(_chunks(prepared.body if exchange.taken_over else body.open()))
        return H2Request(
            destination.key,
            destination.spec,
            _bytes(prepared.method or "GET"),
            destination.authority,
            destination.path,
            headers,
            content or None,
            scheme=destination.scheme,
            body_size=body.size,
            reopen=reopen,
            replayable=body.replayable,
            connect_timeout=timeout.connect,
            read_timeout=timeout.read,
            write_timeout=timeout.read,
            pool_timeout=timeout.pool,
        )

    def _destination(self, known: tuple[str, Any, str | None, str | None]) -> _Destination | None:
        """Work out where a URL leads; None, too, is remembered."""
        if len(self._destinations) >= MAX_DESTINATIONS:
            self._destinations.clear()
        url, trust, address, name = known
        destination = None
        parts = _split(url)
        proxy = _proxy(address) if address else None
        if parts is not None and parts[0] in ("http", "https") and (not address or (proxy and parts[0] == "https")):
            scheme, host, port, authority, path = parts
            secure = scheme == "https"
            identity = (scheme, host, port, trust if secure else None, proxy, name)
            if len(self._keys) >= MAX_DESTINATIONS:
                self._keys.clear()
            key = self._keys.setdefault(identity, _Key(identity))
            context = self._trust.context(trust) if secure else None
            spec = ConnectSpec(host, port, ssl=context, proxy=proxy, server_hostname=name)
            destination = _Destination(key, spec, scheme.encode(), authority, path)
        self._destinations[known] = destination
        return destination

    async def exchange(self, engine: SyncEngine, request: Request, target: H2Request) -> Response | None:
        native: Exchange = request.native
        connect = target.connect
        # A connection verified for another name than its URL's must not get into urllib3's pool for that URL.
        direct = connect.ssl is not None and connect.proxy is None and connect.server_hostname is None
        try:
            if direct and not self._negotiation.speaks_http2(engine, request, target):
                return None
            outcome = engine.send(target)
        except BaseException as error:
            if could_not_connect(error):
                _leave_to_native(native, request, target)
                return None
            native.begin(request, opens_body=False)
            if isinstance(error, TransportError) and error.verdict is Verdict.NOT_SENT:
                error.details["body_started"] = not _put_back(native, request, target)
            if isinstance(error, LengthMismatch):
                failure = TransportError(str(error), kind=FailureKind.WRITE, verdict=Verdict.AMBIGUOUS)
                raise failure from error
            raise
        if isinstance(outcome, Http1Only):
            self._negotiation.forget(target)
            _leave_to_native(native, request, target)
            return None
        _, prepared, arguments = native.begin(request, opens_body=False)
        if target.connect.ssl is not None and not arguments.get("verify", True):
            # urllib3 says so for each such request; a drop-in that kept silent would hide it.
            warnings.warn(
                f"Unverified HTTPS request is being made to host {target.connect.host!r}.",
                InsecureRequestWarning,
                stacklevel=2,
            )
        return respond(outcome, prepared)


def _leave_to_native(native: Exchange, request: Request, target: H2Request) -> None:
    """The stack's own transport sends it: the whole body, also where the engine has taken the first of it already."""
    if not _put_back(native, request, target):
        native.begin(request, opens_body=False)
        raise TransportError(
            "the server asked for HTTP/1.1 when part of a body that cannot be sent twice was gone",
            kind=FailureKind.REFUSED,
            verdict=Verdict.REFUSED,
        )


def _put_back(native: Exchange, request: Request, target: H2Request) -> bool:
    """Make the body whole again for another attempt; False where that cannot be done any more."""
    body = target.body
    if not isinstance(body, Recorded) or not body.started:
        return True
    if target.replayable:
        native.attempted = True  # so that it is taken from its beginning
        return True
    again = body.again()
    if again is None:
        return False
    native.instead(request, again)
    return True


def _reopened(body: Body) -> Iterator[bytes]:
    return _chunks(body.open())


def _fields(headers: Any) -> list[tuple[bytes, bytes]]:
    if type(headers) is CaseInsensitiveDict:
        try:
            return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers._store.values()]
        except AttributeError:
            pass  # bytes, or None for a header that is not to be sent
    return [(_bytes(name), _bytes(value)) for name, value in headers.items() if value is not None]


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


def _is_timeout(value: Any) -> bool:
    """What requests accepts as a timeout without a word."""
    if isinstance(value, tuple):
        return len(value) == 2 and all(not isinstance(part, tuple) and _is_timeout(part) for part in value)
    if isinstance(value, (int, float)):
        return not isinstance(value, bool) and value > 0
    return value is None or isinstance(value, urllib3.Timeout)


def _is_text(body: Any) -> bool:
    """A file in text mode: its length in characters is what requests takes for its length."""
    return hasattr(body, "read") and isinstance(body, io.TextIOBase)


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


_FIELDS: Final = (
    "_content", "_content_consumed", "_next", "status_code", "headers", "raw", "url", "encoding", "history", "reason",
    "cookies", "elapsed", "request",
)  # fmt: skip
_KNOWS_FIELDS: Final = tuple(vars(requests.Response())) == _FIELDS
_NO_TIME: Final = datetime.timedelta(0)
_new: Final = object.__new__


def _response(
    prepared: requests.PreparedRequest,
    status: int,
    headers: dict[str, str],
    *,
    raw: ExchangeResponse,
    reason: str,
    encoding: str | None,
) -> requests.Response:
    """A response as `HTTPAdapter.build_response` makes it. Its constructor fills it with what is replaced at once:
    where its fields are those that we know, they are set directly."""
    native: requests.Response = _new(requests.Response) if _KNOWS_FIELDS else requests.Response()
    fields: Any = CaseInsensitiveDict.__new__(CaseInsensitiveDict)
    fields._store = OrderedDict((name, (name, value)) for name, value in headers.items())
    native.__dict__.update(
        _content=False,
        _content_consumed=False,
        _next=None,
        status_code=status,
        headers=fields,
        raw=raw,
        url=prepared.url or "",
        encoding=encoding,
        history=[],
        reason=reason,
        cookies=RequestsCookieJar(),
        elapsed=_NO_TIME,
        request=prepared,
    )
    return native


def respond(exchange: SyncExchange, prepared: requests.PreparedRequest) -> Response:
    """The neutral response, with the native one inside it."""
    pairs = [(_NAMES.get(name) or _name(name), value.decode("latin-1")) for name, value in exchange.headers]
    joined: dict[str, str] = {}
    cookies = False
    for name, value in pairs:
        if name in joined:
            joined[name] = f"{joined[name]}, {value}"
        else:
            joined[name] = value
        cookies = cookies or name == "set-cookie"
    body = ExchangeBody(exchange)
    reason = responses.get(exchange.status, "")
    raw = ExchangeResponse(
        body.file,
        headers=pairs,
        status=exchange.status,
        reason=reason,
        # requests looks for cookies only where there is an original response: most answers have none.
        original_response=Original(pairs) if cookies else None,
        request_method=prepared.method,
        request_url=prepared.url,
    )
    native = _response(
        prepared, exchange.status, joined, raw=raw, reason=reason, encoding=_encoding(joined.get("content-type"))
    )
    if cookies:
        extract_cookies_to_jar(native.cookies, prepared, raw)
    body.native = native
    extensions = {
        "http_version": "HTTP/2",
        "connection_id": exchange.connection_id,
        "stream_id": exchange.stream_id,
    }
    return Response(exchange.status, lambda: Headers(pairs), body, extensions=extensions, native=native)


_NAMES: Final[dict[bytes, str]] = {}
"""Header names that servers sent, as text. Bounded: a server that invents names is decoded each time."""


def _name(raw: bytes) -> str:
    name = raw.decode("latin-1")
    if len(_NAMES) < 1024:
        _NAMES[raw] = name
    return name


@lru_cache(maxsize=256)
def _encoding(content_type: str | None) -> str | None:
    headers: CaseInsensitiveDict[str] = CaseInsensitiveDict()
    if content_type is not None:
        headers["content-type"] = content_type
    return get_encoding_from_headers(headers)


class Recorded:
    """A body that remembers what it gave while it is not known yet whether the server speaks HTTP/2, and may have to
    be sent again by another transport. It remembers `LIMIT` bytes at most."""

    LIMIT = 1 << 20

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._given: list[bytes] | None = []
        self._size = 0
        self.started = False

    def __iter__(self) -> Iterator[bytes]:
        self.started = True
        for chunk in self._chunks:
            if self._given is not None and isinstance(chunk, bytes):
                self._given.append(chunk)
                self._size += len(chunk)
                if self._size > self.LIMIT:
                    self._given = None
            yield chunk

    def again(self) -> Iterator[bytes] | None:
        """From its beginning, for the transport that has to send it instead; None when that is not known any more."""
        return None if self._given is None else chain(self._given, self._chunks)


def _chunks(body: Any) -> Iterator[Any]:
    """The body as urllib3 would send it: files in blocks, iterables item by item, text as UTF-8, nothing for what is
    empty. What is neither bytes nor text is handed on for the engine to refuse."""
    items = iter(lambda: body.read(BLOCK), body.read(0)) if hasattr(body, "read") else iter(body)
    for item in items:
        if isinstance(item, str):
            yield item.encode("utf-8")
        else:
            try:
                yield bytes(memoryview(item))
            except TypeError:
                if item:
                    yield item
