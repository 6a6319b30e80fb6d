"""Request fields: from what a stack has to what HTTP/2 carries (RFC 9113 section 8.2 and 8.3).

Rules of this file:

- What is returned is valid: an invalid field raises before anything is sent. No message shows a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.headers import SECRET_HEADERS
from netkit.http2.options import H2Request
from netkit.http2.protocol import Header

__all__ = ["request_fields"]

_CLOSER: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings", b"host",
     b"te", b"content-length")
)  # fmt: skip
_Folded: TypeAlias = "tuple[()] | tuple[bytes, bytes, Any]"
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = b"\x00\r\n"
_BAD_TARGET: Final = re.compile(rb"[\x00-\x20\x7f]")

_known: dict[Header, Header] = {}
"""Whole fields seen before, to their valid form; secrets never."""
_folded: dict[Header, _Folded] = {}
"""Fields that concern the connection, or the message as a whole, to what follows from them."""
_secrets: dict[bytes, bytes] = {}
"""Names of secret fields, as callers spell them, to their form on the wire."""
_targets: set[bytes] = {b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS", b"http", b"https"}
"""Methods, schemes, authorities and paths seen before and found valid."""
_LIMIT: Final = 2048
_SECRET: Final = frozenset(name.encode() for name in SECRET_HEADERS)


def _field(field: Header, add: Callable[[Header], None]) -> _Folded:
    """Look at a field for the first time: `add` it, or give what follows from it. Remembers both."""
    raw, value = field
    name = raw.lower()
    if not _TOKEN.fullmatch(name):
        raise _invalid("a header name holds a character that HTTP does not allow")
    if name in _CLOSER:
        folded = _closer(name, value)
        if len(value) < 200:
            _remember(_folded, field, folded)
        return folded
    valid = (name, _value(value))
    if name in _SECRET:
        _remember(_secrets, raw, name)
    elif len(value) < 200:
        _remember(_known, field, valid)
    add(valid)
    return ()


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= _LIMIT:
        memory.clear()  # rather than an order of use: values that never recur must not cost more
    memory[key] = value


def _closer(name: bytes, value: bytes) -> _Folded:
    """Fields that concern the connection, or the message as a whole."""
    if name == b"host":
        if _BAD_TARGET.search(value):
            raise _invalid("the Host header holds a character that HTTP does not allow")
        return (b":authority", value, None) if value else ()
    if name == b"content-length":
        if not value.isdigit():
            raise _invalid("content-length is not one number")
        return name, value, int(value)
    if name == b"te":
        return (name, b"trailers", None) if b"trailers" in value.lower() else ()
    if name == b"connection":
        listed = {token.strip() for token in value.lower().split(b",")} - {b"te", b"close", b"keep-alive", b""}
        return (name, value, listed) if listed else ()
    return ()


def _check_target(request: H2Request) -> None:
    """Method, scheme, authority and path hold nothing that could end a line."""
    if not _TOKEN.fullmatch(request.method.lower()):
        raise _invalid("the method is not a token")
    for part in (request.scheme, request.authority, request.path):
        if not part or _BAD_TARGET.search(part):
            raise _invalid("the request target holds a character that HTTP does not allow")
    if len(_targets) >= _LIMIT:
        _targets.clear()
    _targets.update((request.method, request.scheme, request.authority, request.path))


def _invalid(message: str) -> TransportError:
    return TransportError(message, kind=FailureKind.PROTOCOL, verdict=Verdict.NOT_SENT, reason="invalid_header")


def request_fields(request: H2Request) -> tuple[list[Header], int | None]:
    """The header list to send, pseudo-headers first, and the declared content-length.

    Raises `TransportError` (PROTOCOL, NOT_SENT, reason "invalid_header") for what HTTP/2 cannot carry.
    """
    method, scheme, authority, path = request.method, request.scheme, request.authority, request.path
    seen = _targets
    if path not in seen or authority not in seen or method not in seen or scheme not in seen:
        _check_target(request)
    fields: list[Header] = [
        (b":method", method),
        (b":scheme", scheme),
        (b":authority", authority),
        (b":path", path),
    ]
    add, known, secrets = fields.append, _known, _secrets
    closer: list[tuple[bytes, bytes, Any]] | None = None
    for field in request.headers:
        valid = known.get(field)
        if valid is not None:
            add(valid)
            continue
        name = secrets.get(field[0])
        if name is not None:
            add((name, _value(field[1])))
            continue
        folded = _folded.get(field)
        if folded is None:
            folded = _field(field, add)
        if folded:
            if closer is None:
                closer = [folded]
            else:
                closer.append(folded)
    return fields, None if closer is None else _fold(closer, fields)


def _value(value: bytes) -> bytes:
    if len(value.translate(None, _BAD_VALUE)) != len(value):
        raise _invalid("a header value holds NUL, CR or LF")
    return value.strip(b" \t")


def _fold(closer: list[tuple[bytes, bytes, Any]], fields: list[Header]) -> int | None:
    """Fold in host, content-length, te, and the names that Connection lists."""
    length: int | None = None
    for name, value, what in closer:
        if name == b":authority":
            fields[2] = (name, value)
        elif name == b"te":
            fields.append((name, value))
        elif name == b"content-length":
            fields.append((name, value))
            if length is not None and length != what:
                raise _invalid("content-length is not one number")
            length = what
        else:
            fields[4:] = [field for field in fields[4:] if field[0] not in what]
    return length
