"""Where the requests of one session go over HTTP/2: origin, TLS and proxy as the engine takes them.

Rules of this file:

- Everything that must not be shared is part of the pool's key: TLS settings, proxy, server name.
- What a URL leads to is worked out once, without I/O but for certificate files that are new or have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from requests.auth import _basic_auth_str
from requests.utils import get_auth_from_url, prepend_scheme_if_needed, select_proxy
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url
from urllib3.util.url import _encode_target

from netkit.http2 import ConnectSpec, ProxySpec
from netkit_adapters.requests.tls import Trust

__all__ = ["Destination", "Destinations"]

MAX_DESTINATIONS: Final = 4096
"""URLs, and origins, that are remembered; beyond it all are worked out anew."""


class Destination:
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


class Destinations:
    """What the URLs of one session lead to."""

    def __init__(self) -> None:
        self._trust = Trust()
        self._known: dict[Any, Destination | None] = {}
        self._keys: dict[tuple[Any, ...], _Key] = {}

    def find(self, url: str, arguments: Mapping[str, Any], server_hostname: str | None) -> Destination | None:
        """The destination of a request with these `arguments` of `HTTPAdapter.send`; None for what requests has to
        send, or to refuse, itself. `server_hostname` is what TLS asks for and verifies, None: the URL's host."""
        proxies = arguments.get("proxies")
        proxy = select_proxy(url, proxies) if proxies else None
        try:
            trust = self._trust.key(arguments.get("verify", True), arguments.get("cert"))
            asked = (url, trust, proxy, server_hostname)
            found = self._known.get(asked)
            if found is None and asked not in self._known:
                if len(self._known) >= MAX_DESTINATIONS:
                    self._known.clear()
                found = self._known[asked] = self._found(*asked)
        except (OSError, TypeError, ValueError):
            # A file that is not there, a setting of a strange type, a URL that is none: requests words that itself.
            return None
        return found

    def _found(self, url: str, trust: Any, address: str | None, server_hostname: str | None) -> Destination | None:
        parts = _split(url)
        proxy = _proxy(address) if address else None
        if parts is None or parts[0] not in ("http", "https") or (address and (proxy is None or parts[0] != "https")):
            return None
        scheme, host, port, authority, path = parts
        secure = scheme == "https"
        identity = (scheme, host, port, trust if secure else None, proxy, server_hostname)
        if len(self._keys) >= MAX_DESTINATIONS:
            self._keys.clear()
        key = self._keys.setdefault(identity, _Key(identity))
        context = self._trust.context(trust) if secure else None
        spec = ConnectSpec(host, port, ssl=context, proxy=proxy, server_hostname=server_hostname)
        return Destination(key, spec, scheme.encode(), authority, path)


def _split(url: str) -> tuple[str, str, int, bytes, bytes] | None:
    """(scheme, host, port, authority, path with query) of a prepared URL, escaped as urllib3 escapes what its caller
    put in by hand. None without a host; ValueError for what only urllib3 may know how to send."""
    parts = urlsplit(url)
    host = parts.hostname
    if host is None:
        return None
    usual = 443 if parts.scheme == "https" else 80
    port = parts.port or usual
    name = f"[{host}]" if ":" in host else host
    authority = name if port == usual else f"{name}:{port}"
    path = _encode_target((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    return parts.scheme.lower(), host, port, authority.encode("ascii"), path.encode("ascii")


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
