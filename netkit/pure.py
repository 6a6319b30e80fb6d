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

__all__ = ["PURE_PATHS", "SAFE_METHODS", "Routes"]

PURE_PATHS: Final = ("*/embeddings", "*/embed", "*/rerank", "*/score", "*/tokenize", "*/classify")
"""Inference calls that change nothing and cost little twice; chat and image generation are billed twice."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that ask for nothing to be changed (RFC 9110 section 9.2.1). TRACE is left out: its answer is the request
itself, on its way."""


class Routes:
    """Path patterns (`*`, `?`, `[...]`, without the query); `url in routes` says whether one matches.

    A trailing slash does not count. No patterns match nothing. Immutable; safe from any thread.
    """

    __slots__ = ("_match", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        joined = "|".join(fnmatch.translate(pattern) for pattern in self.patterns)
        self._match = re.compile(joined).match if joined else None

    def __contains__(self, url: object) -> bool:
        if self._match is None or not isinstance(url, str):
            return False
        path = urlsplit(url).path
        return self._match(path.rstrip("/") or "/") is not None

    def __repr__(self) -> str:
        return f"Routes({self.patterns!r})"
