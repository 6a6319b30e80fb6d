"""URLs as they may be shown: in spans, log lines and errors."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

__all__ = ["REDACTED", "safe_url"]

REDACTED: Final = "REDACTED"
LONGEST_VALUE: Final = 48
"""A longer value of a query parameter is hidden whatever its name: signatures, tokens and pictures are long."""
LONGEST_LONE: Final = 16
"""The same for a value that stands alone: it is a flag, or anything."""

_SECRET = re.compile(
    r"key|token|secret|passw|pwd|sig|auth|cred|cookie|session|jwt|code|nonce|otp|bearer|hmac|saml|ticket",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"([&;])")
"""Some servers take ";" for "&", as HTML 4 advised."""
_BESIDE = re.compile(r";([^;/]+)")
"""Parameters of a path's segment, such as ";jsessionid=…" (RFC 3986, section 3.3)."""


def safe_url(url: str) -> str:
    """`url` without user and password, without the values of parameters that may be secrets, without its fragment.

    Example::

        safe_url("http://u:p@h/x?api_key=s&q=ok#f")   # "http://REDACTED:REDACTED@h/x?api_key=REDACTED&q=ok"
    """
    scheme, mark, rest = url.partition("#")[0].partition("://")
    if not mark:
        return REDACTED
    address, question, query = rest.partition("?")
    authority, slash, path = address.partition("/")
    userinfo, at, host = authority.rpartition("@")
    if at:
        host = f"{REDACTED}:{REDACTED}@{host}" if ":" in userinfo else f"{REDACTED}@{host}"
    shown = "".join(_parameter(part) for part in _BETWEEN.split(query))
    path = _BESIDE.sub(lambda found: f";{_parameter(found[1])}", path)
    return f"{scheme}://{host}{slash}{path}{question}{shown}"


def _parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    if not equals:
        return REDACTED if len(name) > LONGEST_LONE else name
    return f"{name}={REDACTED}" if len(value) > LONGEST_VALUE or _SECRET.search(unquote(name)) else part
