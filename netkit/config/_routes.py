"""`[[tool.netkit.route]]`: which requests a route is for.

Rules of this file:

- `*` matches any characters; in the host part it never reaches into the path, so that no path can pose as a host.
- Scheme and host are compared without case, default ports are dropped, the query and credentials do not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from netkit.config._levels import Level

__all__ = ["Route", "compile_match", "location"]

DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class Route:
    """One route: its glob, and what it says about plugins."""

    match: str
    level: Level
    pattern: re.Pattern[str] = field(compare=False, repr=False)


def compile_match(match: str) -> re.Pattern[str]:
    """The pattern of `match = "https://host/path*"` for `location()`. Raises ValueError, saying what is wrong."""
    if match == "*":
        return re.compile(".*", re.DOTALL)
    scheme, separator, rest = match.partition("://")
    if not separator or not scheme or not rest:
        raise ValueError('must be "*", or begin with scheme and host, as in "https://host/path*"')
    if "?" in rest or "#" in rest:
        raise ValueError("must end before the query, which does not count")
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        raise ValueError("must not hold credentials")
    scheme, authority = scheme.casefold(), _host(scheme.casefold(), authority.casefold())
    if not slash:
        # "https://host*" reads as "everything that begins so"; "https://host" is its root.
        path = "*" if authority.endswith("*") else ""
    head = f"{_glob(scheme, '[^/]*')}://{_glob(authority, '[^/]*')}"
    return re.compile(f"{head}/{_glob(path, '.*')}", re.DOTALL)


def location(url: str) -> str:
    """The part of a URL that routes look at: `scheme://host[:port]/path`."""
    bare = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, _, rest = bare.partition("://")
    authority, _, path = rest.partition("/")
    scheme = scheme.casefold()
    return f"{scheme}://{_host(scheme, authority.rpartition('@')[2].casefold())}/{path}"


def _host(scheme: str, authority: str) -> str:
    port = DEFAULT_PORTS.get(scheme)
    return authority.removesuffix(f":{port}") if port else authority


def _glob(text: str, star: str) -> str:
    return star.join(re.escape(piece) for piece in text.split("*"))
