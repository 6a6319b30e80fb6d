"""Request fields: from what a stack has to what HTTP/2 carries (RFC 9113 section 8.2 and 8.3).

Rules of this file:

- What is returned is valid: an invalid field raises before anything is sent. No message shows a value.
"""

from __future__ import annotations

import re
from typing import Final

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.headers import SECRET_HEADERS
from netkit.http2.options import H2Request
from netkit.http2.protocol import Header

__all__ = ["request_fields"]

_DROPPED: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings", b"host"}
)
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = b"\x00\r\n"
_BAD_TARGET: Final = re.compile(rb"[\x00-\x20\x7f]")

_names: dict[bytes, bytes] = {}
"""Names seen before, to their form on the wire; b"" for those that need a closer look."""
_known: dict[Header, Header] = {}
"""Whole fields seen before, to their valid form; secrets never."""
_targets: set[bytes] = {b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS", b"http", b"https"}
"""Methods, schemes, authorities and paths seen before and found valid."""
_LIMIT: Final = 2048
_SECRET: Final = frozenset(name.encode() for name in SECRET_HEADERS)


def _field(field: Header) -> Header | None:
    """A field as it goes on the wire; None for one that needs a closer look. Remembers what it has checked."""
    raw, value = field
    name = _names.get(raw)
    if name is None:
        name = raw.lower()
        if not _TOKEN.fullmatch(name):
            raise _invalid("a header name holds a character that HTTP does not allow")
        if name in _DROPPED or name in (b"te", b"content-length"):
            name = b""
        if len(_names) < _LIMIT:
            _names[raw] = name
    if not name:
        return None
    result = (name, _value(value))
    if name not in _SECRET and len(value) < 200:
        if len(_known) >= _LIMIT:
            _known.clear()  # rather than an order of use: values that never recur must not cost more
        _known[field] = result
    return result


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
    add, known = fields.append, _known
    special: list[Header] | None = None
    for field in request.headers:
        valid = known.get(field)
        if valid is None:
            valid = _field(field)
        if valid is not None:
            add(valid)
        elif special is None:
            special = [(field[0].lower(), field[1])]
        else:
            special.append((field[0].lower(), field[1]))
    return fields, None if special is None else _special(special, fields)


def _value(value: bytes) -> bytes:
    if len(value.translate(None, _BAD_VALUE)) != len(value):
        raise _invalid("a header value holds NUL, CR or LF")
    return value.strip(b" \t")


def _special(special: list[Header], fields: list[Header]) -> int | None:
    """Fold in what needs a closer look: host, te, content-length, and the names that Connection lists."""
    length: int | None = None
    for name, value in special:
        if name == b"host":
            if _BAD_TARGET.search(value):
                raise _invalid("the Host header holds a character that HTTP does not allow")
            if value:
                fields[2] = (b":authority", value)
        elif name == b"content-length":
            fields.append((name, value))
            if not value.isdigit() or (length is not None and length != int(value)):
                raise _invalid("content-length is not one number")
            length = int(value)
        elif name == b"te":
            if b"trailers" in value.lower():
                fields.append((name, b"trailers"))
        elif name == b"connection":
            listed = {token.strip() for token in value.lower().split(b",")} - {b"te", b"close", b"keep-alive"}
            if listed:
                fields[4:] = [field for field in fields[4:] if field[0] not in listed]
    return length
