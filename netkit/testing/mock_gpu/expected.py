"""What the server answers, as functions that tests call too: an answer proves the input that it belongs to.

Every component of a vector is a multiple of 1/128 in [-1, 1), so it is exact as a double, as a little-endian f32 and
in JSON: tests compare with `==`.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

__all__ = ["encoded_vector", "expected_bytes", "expected_tokens", "expected_vector", "vector_json"]

Input = str | bytes | Sequence[int] | Mapping[str, object]
"""A text, raw bytes, one token array, or a JSON object (a GME item, a content part)."""


def expected_vector(text_or_tokens: Input, *, dimensions: int = 8) -> list[float]:
    """The vector that MockGPU gives for this input.

    Example: `assert answer["data"][0]["embedding"] == expected_vector("hello", dimensions=8)`.

    Args:
        text_or_tokens: str, bytes, a list of token ids, or a JSON object (hashed with sorted keys).
        dimensions: how many components; the first n of a longer vector equal the shorter one.
    """
    return list(_vector(_identity(text_or_tokens), dimensions))


def encoded_vector(text_or_tokens: Input, *, dimensions: int = 8) -> str:
    """The same vector as `encoding_format="base64"` gives it: little-endian f32, base64."""
    vector = _vector(_identity(text_or_tokens), dimensions)
    return base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode("ascii")


def vector_json(value: Input, dimensions: int) -> msgspec.Raw:
    """The same vector as ready JSON, remembered, because benchmarks ask for the same texts again and again."""
    return _json(_identity(value), dimensions)


def expected_tokens(messages: object, count: int) -> list[str]:
    """The tokens that `/v1/chat/completions` answers to these messages (a prompt text for `/v1/completions`).

    The answer's text is `"".join(expected_tokens(messages, n))`.
    """
    seed = hashlib.sha256(msgspec.json.encode(messages, order="deterministic")).digest()
    return [hashlib.sha256(seed + number.to_bytes(4, "big")).hexdigest()[:4] + " " for number in range(count)]


def expected_bytes(size: int, offset: int = 0) -> bytes:
    """`size` bytes of the content of `/bytes/N`, from `offset` on. No two 32-byte blocks of a MiB are equal."""
    block = _block()
    start = offset % len(block)
    return (block * ((start + size) // len(block) + 1))[start : start + size]


@lru_cache(maxsize=1)
def _block() -> bytes:
    return b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(32768))


def _identity(value: Input) -> bytes:
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, Mapping):
        return b"j" + msgspec.json.encode(value, order="deterministic")
    return b"t" + ",".join(map(str, value)).encode("ascii")


def _vector(identity: bytes, dimensions: int) -> tuple[float, ...]:
    digest = b"".join(
        hashlib.sha256(identity + block.to_bytes(4, "big")).digest() for block in range((dimensions + 31) // 32)
    )
    return tuple((byte - 128) / 128 for byte in digest[:dimensions])


@lru_cache(maxsize=4096)
def _json(identity: bytes, dimensions: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_vector(identity, dimensions)))
