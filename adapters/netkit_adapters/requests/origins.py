"""What stays behind when a layer sends a request to another origin than its caller named.

Rules of this file:

- Credentials that were found for the old origin (in its URL, in a netrc file, in the cookie jar) are not for the new
  one. Those that the caller gave for the call or the session go along: replicas of one service share them.
- A header that a layer set itself is its own.
"""

from __future__ import annotations

from typing import Any

import requests
from requests.auth import _basic_auth_str
from requests.cookies import get_cookie_header
from requests.utils import get_auth_from_url, get_netrc_auth
from urllib3.util import parse_url

from netkit.urls import origin_of

__all__ = ["leave_behind"]


def leave_behind(prepared: requests.PreparedRequest, old: requests.PreparedRequest) -> None:
    """Take from `prepared`, a changed copy of `old`, what belongs to the origin of `old` alone."""
    url = old.url or ""
    if origin_of(url) == origin_of(prepared.url or ""):
        return
    headers = prepared.headers
    if "Host" in headers and headers["Host"] == parse_url(url).netloc:
        del headers["Host"]
    if "Cookie" in headers and headers["Cookie"] == _cookies_for(old):
        del headers["Cookie"]
        prepared.prepare_cookies(prepared._cookies)
    if "Authorization" in headers and headers["Authorization"] in _found_for(url):
        del headers["Authorization"]


def _cookies_for(old: requests.PreparedRequest) -> str | None:
    bare = old.copy()
    bare.headers.pop("Cookie", None)
    jar: Any = bare._cookies
    return None if jar is None else get_cookie_header(jar, bare)


def _found_for(url: str) -> list[str]:
    found = [get_auth_from_url(url), get_netrc_auth(url)]
    return [_basic_auth_str(*pair) for pair in found if pair is not None and any(pair)]
