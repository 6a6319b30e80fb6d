"""Which calls are spread, and what a call looks like on its way to one replica.

Rules of this file:

- Only calls to the service's address are touched: a session may talk to others, too.
- A replica's credentials go to it alone. Where it has its own, the caller's stay behind; cookies belong to a host and
  leave it never.
"""

from __future__ import annotations

import base64
from urllib.parse import urlsplit

from netkit import Headers, Request
from netkit.headers import is_secret
from netkit.urls import DEFAULT_PORTS, split_url
from netkit_plugins.balance.options import BalanceOptions, Endpoint

__all__ = ["Service", "Target"]


class Service:
    """The addresses of the calls that are spread."""

    def __init__(self, options: BalanceOptions) -> None:
        self._every = options.url == "*"
        urls = [each.url for each in options.replicas()] if options.url is None else [options.url]
        self._bases: dict[str, list[str]] = {}
        if not self._every:
            for url in urls:
                origin, path = _split(url)
                self._bases.setdefault(origin, []).append(path.rstrip("/"))
            for bases in self._bases.values():
                bases.sort(key=len, reverse=True)

    def rest_of(self, url: str) -> str | None:
        """What follows the service's address in `url` ("/embeddings?x=1"), None where the call is none of its."""
        origin, rest = _split(url)
        if self._every:
            return rest
        for base in self._bases.get(origin, ()):
            if not base or (rest.startswith(base) and rest[len(base) :][:1] in ("", "/", "?")):
                return rest[len(base) :]
        return None


class Target:
    """Where one replica is reached. `address` is an IP address in place of the name in its URL."""

    def __init__(self, endpoint: Endpoint, address: str | None = None) -> None:
        parts = urlsplit(endpoint.url)
        self.endpoint = endpoint
        self.host = (parts.hostname or "").lower()
        self.port = parts.port or DEFAULT_PORTS[parts.scheme]
        self._path = parts.path.rstrip("/")
        self._own = _own_headers(endpoint)
        self._server_hostname: str | None = None
        self._authority: str | None = None
        authority = parts.netloc
        if address is not None and address != self.host:
            self._authority = authority
            self._server_hostname = self.host if parts.scheme == "https" else None
            shown = f"[{address}]" if ":" in address else address
            authority = shown if parts.port is None else f"{shown}:{parts.port}"
        self._base = f"{parts.scheme}://{authority}"
        self.key = f"{self._base}{self._path}"

    def addressed(self, request: Request, rest: str) -> Request:
        """`request` as this replica gets it."""
        headers = request.headers
        changed = headers
        if self._own:
            changed = Headers([pair for pair in changed.items() if not is_secret(pair[0])])
            for name, value in self._own:
                changed = changed.set(name, value)
        if "cookie" in changed and (urlsplit(request.url).hostname or "").lower() != self.host:
            changed = Headers([pair for pair in changed.items() if pair[0].lower() != "cookie"])
        if not rest.startswith("/"):
            rest = f"/{rest}" if not self._path else rest
        changes: dict[str, object] = {"url": f"{self._base}{self._path}{rest}"}
        if changed is not headers:
            changes["headers"] = changed
        extensions = {**request.extensions, "endpoint": self.key}
        if self._authority is not None:
            extensions["host"] = self._authority
        if self._server_hostname is not None:
            extensions["server_hostname"] = self._server_hostname
        return request.replace(extensions=extensions, **changes)


def _split(url: str) -> tuple[str, str]:
    """Origin, in one spelling, and the rest."""
    scheme, _, host, target = split_url(url)
    return f"{scheme}://{host}", target


def _own_headers(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    if endpoint.auth is None:
        return endpoint.headers
    if ":" in endpoint.auth:
        value = "Basic " + base64.b64encode(endpoint.auth.encode()).decode()
    else:
        value = f"Bearer {endpoint.auth}"
    return (*endpoint.headers, ("Authorization", value))
