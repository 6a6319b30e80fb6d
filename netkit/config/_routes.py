"""`[[tool.netkit.route]]`: which requests a route is for.

Rules of this file:

- `*` matches any characters; in the host part it never reaches into the path, so that no path can pose as a host.
- Scheme and host are compared without case, default ports are dropped, the query and credentials do not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from netkit.config._levels import Level
from netkit.urls import split_url

__all__ = ["Route", "compile_match", "location"]


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
    if "@" in rest.partition("/")[0]:
        raise ValueError("must not hold credentials")
    scheme, _, host, path = split_url(match)
    # "https://host*" reads as "everything that begins so"; "https://host" is its root.
    path = path or ("/*" if host.endswith("*") else "/")
    head = f"{_glob(scheme, '[^/]*')}://{_glob(host, '[^/]*')}"
    return re.compile(f"{head}{_glob(path, '.*')}", re.DOTALL)


def location(url: str) -> str:
    """The part of a URL that routes look at: `scheme://host[:port]/path`."""
    scheme, _, host, target = split_url(url)
    return f"{scheme}://{host}{target.partition('?')[0] or '/'}"


def _glob(text: str, star: str) -> str:
    return star.join(re.escape(piece) for piece in text.split("*"))
