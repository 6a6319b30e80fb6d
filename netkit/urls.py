"""What the text of a URL says to a layer: where it leads, and in whose name (RFC 3986, section 3).

Example::

    origin_of("HTTPS://user:secret@Host:443?x=a@b")   # "https://host"

Rules of this file:

- One origin has one text: scheme and host in lower case, no default port, no credentials (RFC 6454, section 4).
- Nothing raises: what is wrong in a URL is the stack's to say.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DEFAULT_PORTS", "origin_of", "split_url"]

DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_SUFFIXES: Final = {scheme: f":{port}" for scheme, port in DEFAULT_PORTS.items()}


def split_url(url: str) -> tuple[str, str, str, str]:
    """(scheme, user and password, host and port, path and query) of a URL; the fragment is left out.

    User and password are as written, "" where there are none. Path and query are as written: they begin with "/" or
    "?", or are "".
    """
    scheme, _, rest = url.partition("#")[0].partition("://")
    scheme = scheme.lower()
    authority = rest.partition("/")[0].partition("?")[0]
    userinfo, _, host = authority.rpartition("@")
    return scheme, userinfo, host.lower().removesuffix(_SUFFIXES.get(scheme, "")), rest[len(authority) :]


def origin_of(url: str) -> str:
    """scheme://host of a URL, with its port where that is not the scheme's own."""
    scheme, _, host, _ = split_url(url)
    return f"{scheme}://{host}"
