"""A client's cookies while one answer is received: the jar is asked only where the answer sets some.

The standard library's jar takes 30 µs to find that there is nothing to do.
"""

from __future__ import annotations

from http.cookiejar import CookieJar
from typing import Any

__all__ = ["CookieSeam", "Received"]


class CookieSeam:
    """What the cookies of one stack are at import. A class, a jar or a method of somebody else's is always asked."""

    __slots__ = ("_cookies", "_extract", "_jars")

    def __init__(self, cookies: Any) -> None:
        self._cookies = cookies
        self._jars = (CookieJar, type(cookies().jar))
        self._extract = cookies.extract_cookies

    def received(self, cookies: Any) -> Any:
        """What takes the place of `cookies` for `extract_cookies`."""
        kind = type(cookies)
        if kind is self._cookies and kind.extract_cookies is self._extract and type(cookies.jar) in self._jars:
            return Received(cookies)
        return cookies


class Received:
    """Cookies whose jar sees only answers that set some (also by RFC 2965's Set-Cookie2)."""

    __slots__ = ("_cookies",)

    def __init__(self, cookies: Any) -> None:
        self._cookies = cookies

    def extract_cookies(self, response: Any) -> None:
        for name, _ in response.headers.raw:
            if 10 <= len(name) <= 11 and name.lower() in (b"set-cookie", b"set-cookie2"):
                self._cookies.extract_cookies(response)
                return
