"""Whose limit it is: origin, credential and model of a request, as a key that gives no secret away.

Rules of this file:

- A credential goes into a keyed digest and is forgotten; what is kept, logged or sent to Redis is the digest.
- A header that changes with each request (a signature, a nonce) identifies by its steady part: the key's own name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from netkit import Headers
from netkit.headers import is_secret
from netkit.identity import Identities
from netkit.urls import split_url

__all__ = ["credential", "key_of"]

_SIGNED: Final = re.compile(r'\b(?:Credential|username|client_id)="?([^",/\s]+)', re.IGNORECASE)
"""AWS Signature Version 4 and Digest (RFC 7616): who signs, without what was signed."""
_NO_CREDENTIAL: Final = frozenset({"cookie", "set-cookie", "proxy-authorization"})
"""Cookies change while the account stays the same; a proxy's password is not the server's business."""
_DEPLOYMENT: Final = re.compile(r"/deployments/([^/?#]+)/")


def credential(headers: Headers) -> str:
    """What identifies the account, all of it in one string; "" when the request carries none. Never store it."""
    found = []
    for name, value in headers.items():
        if _is_credential(name):
            signed = _SIGNED.search(value)
            found.append(f"{name.lower()}={signed[1] if signed else value}")
    return "\0".join(found)


@lru_cache(maxsize=1024)
def _is_credential(name: str) -> bool:
    return is_secret(name) and name.lower() not in _NO_CREDENTIAL


def key_of(url: str, headers: Headers, model: str | None, identities: Identities) -> tuple[str, str]:
    """(origin, key) of a request: the key is `origin|digest|model`, the digest keyed with the secret of `identities`.

    A model that only the URL names (`…/deployments/NAME/…`) counts too.
    """
    scheme, account, host, target = split_url(url)
    origin = f"{scheme}://{host}"
    if model is None:
        named = _DEPLOYMENT.search(target)
        model = unquote(named[1]) if named else ""
    who = credential(headers) + account
    digest = identities.digest(who.encode("utf-8", "surrogatepass")).hex() if who else "-"
    return origin, f"{origin}|{digest}|{model[:256]}"
