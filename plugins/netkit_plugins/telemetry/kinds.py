"""What a call was, in few words: for labels, whose number must stay small."""

from __future__ import annotations

from typing import Final

from netkit.errors import TransportError
from netkit.urls import DEFAULT_PORTS, split_url

__all__ = ["METHODS", "OTHER", "Few", "address_of", "error_type", "method_of", "operation_of"]

METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
OPERATIONS: Final = {
    "/chat/completions": "chat",
    "/responses": "chat",
    "/messages": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
    "/embed": "embeddings",
}
"""Ends of paths → the operation's name in the conventions for generative AI."""


OTHER: Final = "other"


class Few:
    """At most about `most` values as they are; those that come later are all "other". Safe from any thread.

    Why: each value of a label is a series that is kept for ever, and hosts and models are what callers name.
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._known: set[str] = set()
        self._most = most

    def __call__(self, value: str) -> str:
        known = self._known
        if value not in known:
            if len(known) >= self._most:
                return OTHER
            known.add(value)
        return value


def method_of(method: str) -> str:
    """ "_OTHER" for what is not one of the known methods, as the conventions ask."""
    return method if method in METHODS else "_OTHER"


def error_type(error: BaseException) -> str:
    """What failed where netkit knows it, else the name of the class."""
    return error.kind.value if isinstance(error, TransportError) else type(error).__name__


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a URL, the scheme's own where it names none."""
    scheme, _, authority, _ = split_url(url)
    host, colon, port = authority.rpartition(":")
    if not colon or "]" in port:
        host, port = authority, ""
    return host.strip("[]"), int(port) if port.isdecimal() else DEFAULT_PORTS.get(scheme, 80)


def operation_of(url: str) -> str | None:
    """ "chat", "embeddings" or "text_completion" for a URL of such an API, else None."""
    path = url.partition("?")[0].partition("#")[0].rstrip("/")
    return next((name for end, name in OPERATIONS.items() if path.endswith(end)), None)
