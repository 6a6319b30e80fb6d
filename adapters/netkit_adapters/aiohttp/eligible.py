"""Which requests HTTP/2 may serve under aiohttp: those that aiohttp's own, untouched machinery would have sent.

Rules of this file:

- A `TCPConnector` with ordinary settings under a plain `ClientRequest`. A subclass, a patch (also of one instance),
  or a setting without an equal on HTTP/2: aiohttp itself.
- A connector that was made to hold requests back (fewer connections than aiohttp's default) keeps doing so.
- A request with an `upload_tracker` is aiohttp's: its caller watches bytes reach one socket.
- Asked for each request: settings are looked at, nothing is opened or read.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from aiohttp import (
    BaseConnector,
    BasicAuth,
    ClientRequest,
    ClientResponse,
    Fingerprint,
    TCPConnector,
    connector,
    hdrs,
)
from aiohttp.http import HttpVersion11
from aiohttp.resolver import DefaultResolver

from netkit.http2 import ProxySpec
from netkit.identity import token_of
from netkit_adapters.aiohttp.direct import DirectRequest
from netkit_adapters.aiohttp.pool import DrivenConnector

__all__ = ["channel_of", "is_ordinary", "is_stock", "is_unpatched", "proxy_of", "tls_settings"]

_CONNECTIONS: Final = 100
"""aiohttp's own `limit`."""

_ORDINARY: Final = (ClientRequest, DirectRequest)
_connect = TCPConnector.connect
_base_connect = BaseConnector.connect
_create = TCPConnector._create_connection
_create_direct = TCPConnector._create_direct_connection
_resolve = TCPConnector._resolve_host
_send = ClientRequest.send
_write = ClientRequest.write_bytes
_start = ClientResponse.start


def is_unpatched() -> bool:
    """Whether everything where mocking libraries take hold is what stood there at import."""
    return (
        TCPConnector.connect is _connect
        and BaseConnector.connect is _base_connect
        and TCPConnector._create_connection is _create
        and TCPConnector._create_direct_connection is _create_direct
        and TCPConnector._resolve_host is _resolve
        and ClientRequest.send is _send
        and ClientRequest.write_bytes is _write
        and ClientResponse.start is _start
    )


def is_ordinary(req: ClientRequest, session: Any) -> bool:
    """A plain request, as aiohttp makes it, that asks for nothing that only HTTP/1.1 has."""
    return (
        type(req) in _ORDINARY
        and "send" not in req.__dict__
        and req.version is HttpVersion11
        and getattr(req, "_upload_tracker", None) is None
        and req.method != hdrs.METH_CONNECT
        and req.response_class.start is _start
        and session._max_field_size == 8190
        and session._max_headers == 128
    )


def is_stock(place: Any) -> bool:
    """A TCPConnector that looks names up and opens sockets in aiohttp's ordinary way."""
    kind = type(place)
    if kind is DrivenConnector:
        limit = place._netkit_native[0]
    elif kind is TCPConnector:
        limit = place._limit
    else:
        return False
    attributes = place.__dict__
    return (
        not place._closed
        and not (limit and limit < _CONNECTIONS)
        and not place._limit_per_host
        and not place._force_close
        and type(place._resolver) is DefaultResolver
        and place._family == 0
        and place._local_addr_infos is None
        and place._socket_factory is None
        and place._interleave is None
        and "connect" not in attributes
        and "_create_connection" not in attributes
        and "_create_direct_connection" not in attributes
        and "_resolve_host" not in attributes
        and "_wrap_create_connection" not in attributes
    )


def tls_settings(req: ClientRequest, place: Any) -> ssl.SSLContext | None:
    """The context that aiohttp would use, as `TCPConnector._get_ssl_context` finds it; None with a fingerprint."""
    for chosen in (req._ssl, place._ssl):
        if isinstance(chosen, ssl.SSLContext):
            return chosen
        if isinstance(chosen, Fingerprint):
            return None
        if chosen is not True:
            return connector._SSL_CONTEXT_UNVERIFIED
    return connector._SSL_CONTEXT_VERIFIED


def channel_of(req: ClientRequest) -> tuple[str, ...]:
    """What, besides its URL, decides where `req` arrives and whom it trusts; see `netkit.Request.channel`."""
    place: Any = getattr(req._session, "_connector", None)
    parts: tuple[str, ...] = ()
    if not isinstance(place, TCPConnector):
        # A Unix socket's path, or a connector of the user's own.
        parts = (f"connector={getattr(place, '_path', None) or token_of(place)}",)
    if req.proxy is not None:
        parts += (f"proxy={req.proxy}", f"proxy-auth={req.proxy_auth}", f"proxy-headers={req.proxy_headers}")
    if req.is_ssl():
        parts += tuple(f"ssl={_trust(chosen)}" for chosen in (req._ssl, getattr(place, "_ssl", True)))
        if req.server_hostname is not None:
            parts += (f"server={req.server_hostname}",)
    return parts


def _trust(chosen: Any) -> str:
    if isinstance(chosen, bool):
        return str(chosen)
    return chosen.fingerprint.hex() if isinstance(chosen, Fingerprint) else token_of(chosen)


def proxy_of(req: ClientRequest) -> ProxySpec | None:
    """A plain HTTP proxy, to be asked for a tunnel; None for what aiohttp has to do."""
    proxy = req.proxy
    assert proxy is not None
    if proxy.scheme != "http" or not proxy.host or hdrs.PROXY_AUTHORIZATION in req.headers:
        return None
    auth = req.proxy_auth or BasicAuth.from_url(proxy)
    headers = req.proxy_headers or ()
    pairs = tuple((name, value) for name, value in headers.items()) if headers else ()
    authorization = None if auth is None else auth.encode()
    return ProxySpec(proxy.host, proxy.port or 80, authorization=authorization, headers=pairs)
