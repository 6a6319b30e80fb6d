"""One remembered answer, as it is kept, and as it is written down.

Rules of this file:

- What was not written by this version, for this key, with this storage's secret, is None when it is read.
- No header that identifies somebody, or that belongs to one exchange, is kept.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from netkit import Headers, Response
from netkit.answers import Answer
from netkit.headers import is_secret

__all__ = ["Entry", "remembered", "replayed", "seal", "unseal"]

MAGIC: Final = b"nkc1"
CHECK_BYTES: Final = 16
OVERHEAD: Final = 256
"""What an entry takes beside its content, roughly."""

_NOT_KEPT: Final = ("set-cookie", "date", "age", "retry-after", "server-timing", "alt-svc", "content-length")
_NOT_KEPT_PREFIXES: Final = ("x-ratelimit-", "ratelimit", "x-amz-", "cf-")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """`stored` is when its request was sent, in seconds of the storage's clock. `status` 0 stands for no answer, but
    for the moment at which what was known before became void."""

    stored: float
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""

    @property
    def size(self) -> int:
        return len(self.content) + OVERHEAD

    def response(self, now: float, **extensions: Any) -> Response:
        """The answer as it is replayed, with its Age (RFC 9111 section 5.1)."""
        return replayed(self.status, self.headers, self.content, max(0.0, now - self.stored), **extensions)


def replayed(
    status: int, headers: tuple[tuple[str, str], ...], content: bytes, age: float | None, **extensions: Any
) -> Response:
    """`content` with headers that fit it; `age` in seconds, None for what is fresh in part."""
    pairs = [*headers, ("content-length", str(len(content)))]
    if age is not None:
        pairs.append(("age", str(int(age))))
    return Response.of(status, Headers(pairs), content, **extensions)


def remembered(answer: Answer, content: bytes, stored: float) -> Entry:
    """An entry with `content`, which is `answer`'s or a part of it, decoded."""
    headers = tuple(pair for pair in answer.headers if _is_kept(pair[0].lower()))
    return Entry(stored, answer.status, headers, content)


def _is_kept(name: str) -> bool:
    return not (
        name in _NOT_KEPT or name == "content-encoding" or name.startswith(_NOT_KEPT_PREFIXES) or is_secret(name)
    )


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Entry).decode


def seal(key: bytes, entry: Entry, secret: bytes) -> bytes:
    """The entry as bytes that hold together only with their key."""
    content = _encode(entry)
    return MAGIC + _check(key, content, secret) + content


def unseal(key: bytes, sealed: object, secret: bytes) -> Entry | None:
    """What `seal` made; None for anything else."""
    if not isinstance(sealed, bytes) or sealed[: len(MAGIC)] != MAGIC:
        return None
    check, content = sealed[len(MAGIC) : len(MAGIC) + CHECK_BYTES], sealed[len(MAGIC) + CHECK_BYTES :]
    if check != _check(key, content, secret):
        return None
    try:
        return _decode(content)
    except (msgspec.DecodeError, ValueError):
        return None


def _check(key: bytes, content: bytes, secret: bytes) -> bytes:
    digest = blake2b(key, digest_size=CHECK_BYTES, key=secret, person=b"entry")
    digest.update(content)
    return digest.digest()
