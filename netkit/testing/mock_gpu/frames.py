"""HTTP/2 frames as bytes (RFC 9113, sections 4 and 6): what the server reads off its output, what faults forge.

No state, no HPACK table: forged header blocks use literals without indexing, so that they disturb no other stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "GOAWAY",
    "HEADERS",
    "PING",
    "RST_STREAM",
    "SETTINGS",
    "WINDOW_UPDATE",
    "frame",
    "goaway",
    "literal_headers",
    "ping",
    "settings",
    "split",
]

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = 0x1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame, whatever is in it."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def goaway(last_stream: int, code: int = 0, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + debug)


def ping(data: bytes = b"netkit!!") -> bytes:
    return frame(PING, 0, 0, data)


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


def literal_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """An HPACK block of literals without indexing (RFC 7541, 6.2.2), no Huffman coding."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


def split(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """The whole frames in `data`: kind, flags, stream, start of the frame, its end."""
    start = 0
    while start + 9 <= len(data):
        end = start + 9 + (data[start] << 16 | data[start + 1] << 8 | data[start + 2])
        if end > len(data):  # no frame: a fault sends garbage
            return
        stream = int.from_bytes(data[start + 5 : start + 9], "big") & 0x7FFFFFFF
        yield data[start + 3], data[start + 4], stream, start, end
        start = end


def _string(value: bytes) -> bytes:
    return _integer(len(value), 7) + value


def _integer(value: int, bits: int) -> bytes:
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((value,))
    out = bytearray((limit,))
    value -= limit
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
