"""Answers and errors that several callers get: each its own, with headers that fit its body.

Rules of this file:

- Nothing that two callers hold is one object that either could change.
- Headers that describe the merged body (its length, encoding, digest) or one connection are dropped; all others, rate
  limits above all, reach every caller.
"""

from __future__ import annotations

import copy
from typing import Final

from netkit.answers import Answer, plain
from netkit.errors import BatchError, TransportError
from netkit.headers import Headers
from netkit.messages import Response

__all__ = ["MAX_INFLATED", "Reply", "own_copy"]

MAX_INFLATED: Final = 256 * 1024 * 1024
"""Bytes that an answer may grow to, for servers that compress although they were asked not to."""

_OF_THE_BODY: Final = frozenset(
    {
        "content-length",
        "content-encoding",
        "transfer-encoding",
        "content-md5",
        "digest",
        "content-digest",
        "repr-digest",
        "etag",
        "accept-ranges",
        "connection",
        "keep-alive",
        "trailer",
        "te",
        "upgrade",
    }
)


class Reply:
    """One answer of the server, read to its end."""

    __slots__ = ("content", "extensions", "headers", "status")

    def __init__(self, response: Response, content: bytes) -> None:
        self.status = response.status
        self.content = _plain(response, content)
        pairs = response.headers.items()
        self.headers = tuple((name, value) for name, value in pairs if name.lower() not in _OF_THE_BODY)
        self.extensions = dict(response.extensions)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def response(self, place: tuple[int, int] | None, content: bytes | None = None) -> Response:
        """A response of one caller's own; `content` None is the answer's as it stands."""
        content = self.content if content is None else content
        headers = Headers((*self.headers, ("content-length", str(len(content)))))
        marks = self.extensions if place is None else {**self.extensions, "batch": place}
        return Response.of(self.status, headers, content, **marks)

    def __repr__(self) -> str:
        return f"<Reply {self.status} {len(self.content)} bytes>"


def _plain(response: Response, content: bytes) -> bytes:
    """`content` without its Content-Encoding: no caller asked for it."""
    if not content or "content-encoding" not in response.headers:
        return content
    if response.body.decoded and response.extensions.get("encoded") is not True:
        return content
    plain_content = plain(Answer(response.status, response.headers.items(), content), max_bytes=MAX_INFLATED)
    if plain_content is None:
        raise BatchError("the answer to a batch is compressed in an unknown way, damaged, cut off or too large")
    return plain_content


def own_copy(error: Exception) -> Exception:
    """An equal error that no other caller holds; the error itself where it cannot be copied."""
    if not isinstance(error, TransportError):
        return _copied(error)
    native = error.native
    made = type(error)(
        str(error),
        kind=error.kind,
        verdict=error.verdict,
        native=_copied(native) if isinstance(native, Exception) else native,
        **{**error.details, "shared": True},
    )
    made.attempts = error.attempts
    made.__cause__ = error.__cause__ if error.__cause__ is not native else made.native
    return made


def _copied(error: Exception) -> Exception:
    try:
        made: Exception = copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception whose constructor wants what its arguments do not say
        return error
    if type(made) is not type(error):
        return error
    made.__cause__, made.__suppress_context__ = error.__cause__, True
    return made
