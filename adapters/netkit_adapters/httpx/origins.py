"""A request that a layer sends to another origin: what of it belongs to the origin that it was made for.

Rules of this file:

- Credentials that were found for the old origin (in its URL, in netrc, in the client's cookie jar, for its proxy)
  stay behind. What the caller or a layer wrote into the headers is theirs to send.
- They are told by their value: a layer may have built the headers anew.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from netkit.headers import Headers

if TYPE_CHECKING:
    from netkit_adapters.httpx.messages import Exchange

__all__ = ["FoundAuths", "moved"]


class FoundAuths:
    """The auths that one client found by itself, for as long as a call uses them: those of URLs and of netrc."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._found: dict[int, weakref.ref[Any]] = {}

    def note(self, request: Any, auth: Any) -> None:
        """`auth` is what the client uses for `request`."""
        kind, native = type(auth), self._native
        if kind is native.NetRCAuth or (kind is native.BasicAuth and self._is_of_url(auth, request.url)):
            key, found = id(auth), self._found
            # Each step is one of C's own: other threads note and look at the same time.
            found[key] = weakref.ref(auth, lambda known: found.pop(key, None) if found.get(key) is known else None)

    def _is_of_url(self, auth: Any, url: Any) -> bool:
        return bool(url.userinfo) and self._made(auth, url) == self._of_url(url)

    def gave(self, value: str, url: Any, auth: Any) -> bool:
        """Whether the Authorization `value` was found for `url`; `auth` is the client's own."""
        candidates = [known() for known in list(self._found.values())]
        if type(auth) is self._native.NetRCAuth:
            candidates.append(auth)
        return value == self._of_url(url) or any(
            known is not None and value == self._made(known, url) for known in candidates
        )

    def _of_url(self, url: Any) -> str | None:
        if not url.userinfo:
            return None
        return self._made(self._native.BasicAuth(url.username, url.password), url)

    def _made(self, auth: Any, url: Any) -> str | None:
        request = next(auth.auth_flow(self._native.Request("GET", url)))
        value: str | None = request.headers.get("authorization")
        return value


def moved(exchange: Exchange, headers: Headers, url: Any, transport: Any) -> Headers:
    """`headers` as they go to `url`, through `transport`. A Host that names the old URL's authority follows the URL;
    one of the caller's or a layer's own stays."""
    native = exchange.native
    if (url.scheme, url.host, url.port) == (native.url.scheme, native.url.host, native.url.port):
        return headers
    before = exchange.headers()
    if headers.get("host") == native.url.netloc.decode("ascii"):
        headers = headers.set("Host", url.netloc.decode("ascii"))
    client: Any = getattr(exchange.pick, "__self__", None)
    value = headers.get("authorization")
    if (
        value is not None
        and value == before.get("authorization")
        and exchange.wiring.found_auths.gave(value, native.url, getattr(client, "_auth", None))
    ):
        headers = headers.remove("Authorization")
    value = headers.get("proxy-authorization")
    if value is not None and value == before.get("proxy-authorization"):
        proxied = getattr(getattr(transport, "_pool", None), "_proxy_url", None) is not None
        if transport is not exchange.transport or not proxied:
            headers = headers.remove("Proxy-Authorization")
    if "cookie" in headers and client is not None:
        headers = _without_the_jars(exchange, client, headers, url)
    return headers


def _without_the_jars(exchange: Exchange, client: Any, headers: Headers, url: Any) -> Headers:
    """Without the cookies that the client's jar had for the old origin and has not for `url`."""
    request = exchange.wiring.stack.native.Request

    def of_jar(where: Any) -> set[str]:
        return set(request("GET", where, cookies=client.cookies).headers.get("cookie", "").split("; "))

    private = of_jar(exchange.native.url) - of_jar(url)
    sent = headers["cookie"].split("; ")
    kept = [cookie for cookie in sent if cookie not in private]
    if len(kept) == len(sent):
        return headers
    return headers.set("Cookie", "; ".join(kept)) if kept else headers.remove("Cookie")
