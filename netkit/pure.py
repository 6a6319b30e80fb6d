"""Which calls change nothing: pure routes by their path, safe methods by their name.

Example::

    routes = Routes(PURE_PATHS)
    "https://gpu.test/v1/embeddings?x=1" in routes     # True

One definition for everything that repeats, shares or remembers a call.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from netkit.identity import asks_for_stream, is_sampled
from netkit.messages import Request

__all__ = ["PURE_PATHS", "SAFE_METHODS", "Routes", "is_shareable"]

PURE_PATHS: Final = ("*/embeddings", "*/embed", "*/rerank", "*/score", "*/tokenize", "*/classify")
"""Inference calls that change nothing and cost little twice; chat and image generation are billed twice."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that ask for nothing to be changed (RFC 9110 section 9.2.1). TRACE is left out: its answer is the request
itself, on its way."""


MAX_URLS: Final = 1024
"""URLs for which the outcome is kept; beyond it all are looked at anew."""


class Routes:
    """Path patterns (`*`, `?`, `[...]`, without the query); `url in routes` says whether one matches.

    A trailing slash does not count. No patterns match nothing. Immutable; safe from any thread.
    """

    __slots__ = ("_known", "_match", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        joined = "|".join(fnmatch.translate(pattern) for pattern in self.patterns)
        self._match = re.compile(joined).match if joined else None
        self._known: dict[str, bool] = {}

    def __contains__(self, url: object) -> bool:
        if self._match is None or not isinstance(url, str):
            return False
        known = self._known.get(url)
        if known is None:
            if len(self._known) >= MAX_URLS:
                self._known = {}
            path = urlsplit(url).path
            known = self._known[url] = self._match(path.rstrip("/") or "/") is not None
        return known

    def __repr__(self) -> str:
        return f"Routes({self.patterns!r})"


def is_shareable(request: Request, routes: Routes, *, safe_methods: bool, sampled: bool) -> bool:
    """Whether one answer to `request` may serve others who ask the same: it changes nothing, is no stream, and its
    caller did not ask for an answer of its own.

    `safe_methods`: GET, HEAD and OPTIONS on every route; `sampled`: also what a model draws at random. A request with
    `extensions["pure"]` needs no route.
    """
    extensions = request.extensions
    if extensions.get("shared") is True or extensions.get("stream") is True:
        return False
    if not (
        (safe_methods and request.method in SAFE_METHODS) or extensions.get("pure") is True or request.url in routes
    ):
        return False
    headers = request.headers
    control = headers.get("cache-control", "").lower()
    if "no-cache" in control or "no-store" in control or "upgrade" in headers or asks_for_stream(request):
        return False
    content = request.body.content
    return sampled or not content or not is_sampled(content)
