"""What, besides its URL, decides where a request arrives and whom it trusts: see `netkit.Request.channel`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from netkit.identity import token_of

if TYPE_CHECKING:
    from netkit_adapters.httpx.chain import Wiring

__all__ = ["channel_of", "tls_of"]


def tls_of(arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The TLS settings among a client's own keyword arguments, None where they cannot be described: an SSLContext,
    a certificate of the client's, transports of the user's."""
    verify = arguments.get("verify", True)
    if isinstance(verify, ssl.SSLContext) or any(arguments.get(name) for name in ("cert", "transport", "mounts")):
        return None
    return (f"verify={verify}",)


def channel_of(wiring: Wiring, transport: Any, native: Any) -> tuple[str, ...]:
    """`transport` is the one that the client picked for `native`."""
    pool = getattr(transport, "_pool", None)
    if type(transport) is not wiring.own or pool is None:
        return (f"transport={token_of(transport)}",)
    parts: tuple[str, ...] = ()
    proxy, socket = getattr(pool, "_proxy_url", None), getattr(pool, "_uds", None)
    if proxy is not None:
        parts += (f"proxy={proxy}", f"proxy-headers={getattr(pool, '_proxy_headers', None)}")
        parts += (f"proxy-auth={getattr(pool, '_proxy_auth', None)}",)
    if socket is not None:
        parts += (f"uds={socket}",)
    target = native.extensions.get("target")
    if target is not None:
        # What is asked for in place of the URL's path.
        parts += (f"target={target!r}",)
    if native.url.scheme == "https":
        parts += wiring.tls or (f"ssl={token_of(pool._ssl_context)}",)
        name = native.extensions.get("sni_hostname")
        if name is not None:
            parts += (f"server={name}",)
    return parts
