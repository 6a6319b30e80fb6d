"""Request fields: from what a stack has to what HTTP/2 carries (RFC 9113 section 8.2 and 8.3).

Rules of this file:

- What is returned is valid: an invalid field raises before anything is sent. No message shows a value.
"""

from __future__ import annotations

import re
from typing import Final

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.options import H2Request
from netkit.http2.protocol import Header

__all__ = ["request_fields"]

_DROPPED: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings", b"host"}
)
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_SUSPECT: Final = re.compile(rb"[\x00\r\n]|(?:\A|\x1f)[ \t]|[ \t](?:\x1f|\Z)")
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]")
_BAD_TARGET: Final = re.compile(rb"[\x00-\x20\x7f]")

_names: dict[bytes, bytes] = {}
"""Names seen before, to their form on the wire; "" for those that need a closer look."""


def _name(raw: bytes) -> bytes:
    name = raw.lower()
    if not _TOKEN.fullmatch(name):
        raise _invalid("a header name holds a character that HTTP does not allow")
    result = b"" if name in _DROPPED or name in (b"te", b"content-length") else name
    if len(_names) < 4096:
        _names[raw] = result
    return result


def _invalid(message: str) -> TransportError:
    return TransportError(message, kind=FailureKind.PROTOCOL, verdict=Verdict.NOT_SENT, reason="invalid_header")


def request_fields(request: H2Request) -> tuple[list[Header], int | None]:
    """The header list to send, pseudo-headers first, and the declared content-length.

    Raises `TransportError` (PROTOCOL, NOT_SENT, reason "invalid_header") for what HTTP/2 cannot carry.
    """
    fields: list[Header] = [
        (b":method", request.method),
        (b":scheme", request.scheme),
        (b":authority", request.authority),
        (b":path", request.path),
    ]
    known = _names
    special: list[Header] | None = None
    for raw, value in request.headers:
        name = known.get(raw)
        if name is None:
            name = _name(raw)
        if name:
            fields.append((name, value))
        elif special is None:
            special = [(raw.lower(), value)]
        else:
            special.append((raw.lower(), value))
    length = None if special is None else _special(special, fields)
    if _SUSPECT.search(b"\x1f".join([value for _, value in fields])):
        fields = [(name, _value(value)) for name, value in fields]
    if _BAD_TARGET.search(fields[3][1]) or _BAD_TARGET.search(fields[2][1]) or not fields[3][1]:
        raise _invalid("the request target holds a character that HTTP does not allow")
    if not _TOKEN.fullmatch(request.method.lower()):
        raise _invalid("the method is not a token")
    return fields, length


def _value(value: bytes) -> bytes:
    if _BAD_VALUE.search(value):
        raise _invalid("a header value holds NUL, CR or LF")
    return value.strip(b" \t")


def _special(special: list[Header], fields: list[Header]) -> int | None:
    """Fold in what needs a closer look: host, te, content-length, and the names that Connection lists."""
    length: int | None = None
    for name, value in special:
        if name == b"host":
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
