"""An answer that is there whole, so that it can be given to several callers, or again later.

Example::

    answer = await take(request, response, max_bytes=8 << 20)
    if answer is not None:
        another = answer.response(coalesced=True)

Rules of this file:

- A stream stays a stream: whether all of an answer may be read is decided by its head, before its first byte.
- Only what is complete becomes an `Answer`; `take` raises what the stack raises for a body that breaks off.
"""

from __future__ import annotations

import copy
import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from netkit.errors import NetkitError, TransportError
from netkit.headers import Headers
from netkit.messages import Request, Response

__all__ = ["Answer", "copy_of_error", "is_whole", "plain", "take"]

HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "te", "upgrade"})
STREAMED: Final = ("text/event-stream", "multipart/", "application/x-ndjson", "application/jsonl",
                   "application/x-jsonlines", "application/json-seq", "application/stream+json")  # fmt: skip


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Status, the headers that fit a whole body, and that body; compressed where Content-Encoding is among them."""

    status: int
    headers: tuple[tuple[str, str], ...]
    content: bytes
    http_version: str = "HTTP/1.1"

    def response(self, **extensions: Any) -> Response:
        """A response of its own; readable as often as its stack allows for any other."""
        return Response.of(
            self.status, Headers(self.headers), self.content, http_version=self.http_version, **extensions
        )


def is_whole(request: Request, response: Response, max_bytes: int) -> bool:
    """Whether the answer, by its head, is no stream and no longer than `max_bytes`.

    One of unknown length is waited for only where it is JSON (a compressing proxy takes the length away): anything
    else may go on for ever.
    """
    headers = response.headers
    if response.status < 200 or request.method == "CONNECT":
        return False
    if request.method == "HEAD" or response.status in (204, 304):
        return True
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith(STREAMED):
        return False
    length = headers.get("content-length")
    if length is None or "transfer-encoding" in headers:
        return kind == "application/json" or kind.endswith("+json")
    return length.isascii() and length.isdigit() and int(length[:20]) <= max_bytes


async def take(request: Request, response: Response, *, max_bytes: int) -> Answer | None:
    """Read `response`, which its caller can still read afterwards; None when it is a stream, or longer than
    `max_bytes`: then nothing was read, unless its length showed only at the end."""
    if not is_whole(request, response, max_bytes):
        return None
    content = await response.read()
    if len(content) > max_bytes:
        return None
    decoded = response.body.decoded and response.extensions.get("encoded") is not True
    headers = _fitting(response, content, decoded, has_body=request.method != "HEAD")
    return Answer(response.status, headers, content, response.extensions.get("http_version", "HTTP/1.1"))


def _fitting(response: Response, content: bytes, decoded: bool, *, has_body: bool) -> tuple[tuple[str, str], ...]:
    """The headers that fit a body that is there whole, and decoded, if it is."""
    dropped = HOP_BY_HOP
    if has_body and response.status not in (204, 304):
        dropped = dropped | {"content-length"}
        if decoded and "content-encoding" in response.headers:
            dropped = dropped | {"content-encoding"}
    pairs = [pair for pair in response.headers.items() if pair[0].lower() not in dropped]
    if "content-length" in dropped:
        pairs.append(("content-length", str(len(content))))
    return tuple(pairs)


def plain(answer: Answer, *, max_bytes: int) -> bytes | None:
    """The body without its Content-Encoding; None where that is not known here, does not fit the body, or gives more
    than `max_bytes`."""
    content = answer.content
    codings = [value for name, value in answer.headers if name.lower() == "content-encoding"]
    for coding in reversed(",".join(codings).lower().split(",")):
        if coding.strip() in ("", "identity"):
            continue
        decode = _DECODERS.get(coding.strip())
        decoded = None if decode is None else decode(content, max_bytes)
        if decoded is None:
            return None
        content = decoded
    return content


def _inflated(content: bytes, max_bytes: int) -> bytes | None:
    # 47: with the header of gzip or of zlib, whichever is there (RFC 9110 section 8.4.1).
    decoder = zlib.decompressobj(47)
    try:
        decoded = decoder.decompress(content, max_bytes + 1)
    except zlib.error:
        return None
    whole = decoder.eof and not decoder.unused_data and len(decoded) <= max_bytes
    return decoded if whole else None


def _unbrotlied(content: bytes, max_bytes: int) -> bytes | None:
    return _by_library(("brotli", "brotlicffi"), content, max_bytes)


def _unzstandarded(content: bytes, max_bytes: int) -> bytes | None:
    return _by_library(("compression.zstd", "backports.zstd"), content, max_bytes)


def _by_library(names: tuple[str, ...], content: bytes, max_bytes: int) -> bytes | None:
    """Whoever asked the server for it has the library: the stacks offer only what they can read."""
    for name in names:
        try:
            decoded: bytes = importlib.import_module(name).decompress(content)
        except ModuleNotFoundError:
            continue
        except Exception:  # noqa: BLE001 - each library has its own
            return None
        return decoded if len(decoded) <= max_bytes else None
    return None


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes | None]]] = {
    "gzip": _inflated,
    "x-gzip": _inflated,
    "deflate": _inflated,
    "br": _unbrotlied,
    "zstd": _unzstandarded,
}


def copy_of_error(error: NetkitError) -> NetkitError:
    """The same failure as an exception object of its own, for one more caller.

    `details["shared"]` marks it. A native exception is copied too; where it cannot be, the caller gets its stack's
    type for that kind of failure.
    """
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    if isinstance(made, TransportError):
        made.details = {**made.details, "shared": True}
        if made.native is not None:
            made.native = _copy_of_native(made.native)
            if error.__cause__ is getattr(error, "native", None):
                made.__cause__ = made.native
    return made


def _copy_of_native(error: BaseException) -> BaseException | None:
    try:
        made = copy.copy(error)
    except Exception:  # noqa: BLE001 - a class of its own may refuse in any way
        return None
    if type(made) is not type(error) or str(made) != str(error):
        return None
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made
