"""What may be remembered: pure decisions on requests and answers.

Rule of this file: in doubt an answer is not remembered. One call more is the price; a wrong answer for an hour is
not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from netkit import Request, Response
from netkit.answers import Answer
from netkit.identity import is_json, members_of

__all__ = ["is_failure", "is_storable", "may_be_known", "voids"]

CACHED_METHODS: Final = frozenset({"GET", "POST"})
VOIDING_METHODS: Final = frozenset({"PUT", "PATCH", "DELETE"})
_NOTHING: Final = (b"", b"null", b"false")


def may_be_known(request: Request) -> bool:
    """Whether an answer to this kind of request is ever remembered."""
    return request.method in CACHED_METHODS and "range" not in request.headers


def voids(request: Request, response: Response) -> bool:
    """Whether the answer says that something was changed (RFC 9111 section 4.4)."""
    return request.method in VOIDING_METHODS and 200 <= response.status < 400


def is_failure(response: Response) -> bool:
    """Whether a stale answer is better."""
    return response.status >= 500


def is_storable(request: Request, answer: Answer, content: bytes) -> bool:
    """Whether a complete answer, whose decoded body is `content`, may be given again."""
    if answer.status != 200:
        return False
    kind = ""
    for name, value in answer.headers:
        lowered = name.lower()
        if lowered == "content-type":
            kind = value.partition(";")[0].strip().lower()
        elif (
            lowered == "content-range"
            or (lowered == "cache-control" and "no-store" in value.lower())
            or (lowered == "vary" and "*" in value)
        ):
            return False
    if kind == "application/json" or kind.endswith("+json"):
        return _is_good_json(content)
    # A page in answer to a call is a proxy's, or a login's.
    return not (kind.startswith("text/") and (is_json(request) or request.method == "POST"))


def _is_good_json(content: bytes) -> bool:
    """Whether it is whole, and does not say with status 200 that it failed."""
    members = members_of(content)
    if members is not None:
        return bytes(members.get("error", b"")) in _NOTHING
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True
