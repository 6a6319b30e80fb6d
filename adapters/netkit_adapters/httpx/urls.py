"""URLs that a client has used before: parsing one again, or asking it for its parts, costs a tenth of a small call.

Rules of this file:

- Kept is what the stack's own `_merge_url` gave, for a text and a base URL; a client with another `_merge_url` under
  netkit's is asked each time.
- The stack's URLs never change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Address", "Addresses", "MergedUrls"]

MAX_URLS: Final = 256
"""Texts kept per client; beyond it they are parsed anew."""

MAX_LENGTH: Final = 2048
"""Characters of a text that is kept."""


class MergedUrls:
    """The merged URLs of one client. `native` is the stack's own `_merge_url`, a function. Safe from any thread."""

    __slots__ = ("_kept", "_native")

    def __init__(self, native: Any) -> None:
        self._native = native
        self._kept: tuple[Any, dict[str, Any]] = (None, {})

    def find(self, base: Any, url: Any, merge: Callable[[Any], Any]) -> Any:
        """What `merge(url)` gives, `base` being the client's base URL at present."""
        if type(url) is not str or getattr(merge, "__func__", None) is not self._native:
            return merge(url)
        known_base, known = self._kept
        if known_base is not base:
            known = {}
            self._kept = (base, known)
        found = known.get(url)
        if found is None:
            found = merge(url)
            if len(url) <= MAX_LENGTH:
                if len(known) >= MAX_URLS:
                    known.clear()
                known[url] = found
        return found


class Address:
    """What is asked of a URL for each request."""

    __slots__ = ("host", "path", "port", "scheme", "text", "url")

    def __init__(self, url: Any) -> None:
        self.url = url
        self.text = str(url)
        self.scheme: bytes = url.raw_scheme
        self.host: bytes = url.raw_host
        self.port: int | None = url.port
        self.path: bytes = url.raw_path


class Addresses:
    """The addresses of URL objects that come again. Safe from any thread."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[int, Address] = {}

    def keep(self, url: Any) -> None:
        """`url` itself, not only its like, will be used again."""
        if len(self._kept) >= MAX_URLS:
            self._kept.clear()
        self._kept[id(url)] = Address(url)

    def of(self, url: Any) -> Address:
        # By id: what is kept holds its URL, so that no other can come to have it.
        known = self._kept.get(id(url))
        return known if known is not None and known.url is url else Address(url)
