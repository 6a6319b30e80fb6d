"""TLS without a socket: bytes from the network in, what they say out; and the other way round.

Rules of this file:

- No I/O. `below` is the TLS that this one runs inside of (an https:// proxy's), whose bytes then are the network's.
- Buffers grow with what passes through them at once and are never given back: feed and encrypt in bounded pieces.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, Self

__all__ = ["Tls"]

_SCRATCH: Final = 16384
"""The largest TLS record (RFC 8446 section 5.1)."""


class Tls:
    """One client's end. `object` is the `ssl.SSLObject`; `ended` is set once the peer has said goodbye."""

    __slots__ = ("_incoming", "_outgoing", "_read", "_write", "below", "ended", "object")

    def __init__(self, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.object = tls
        self.ended = False
        self.below: Tls | None = None
        self._incoming = incoming
        self._outgoing = outgoing
        self._read = tls.read
        self._write = tls.write

    @classmethod
    def client(cls, context: ssl.SSLContext, server_hostname: str | None) -> Self:
        """A client that has said nothing yet."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return cls(context.wrap_bio(incoming, outgoing, server_hostname=server_hostname), incoming, outgoing)

    def handshake(self) -> bool:
        """Go on with the handshake; False while the peer has to speak. Raises `ssl.SSLError`."""
        try:
            self.object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def feed(self, data: Any) -> None:
        """Bytes from the network; none at all means that it has ended."""
        incoming, below = self._incoming, self.below
        if not data:
            incoming.write_eof()
        elif below is None:
            incoming.write(data)
        else:
            below.feed(data)
            scratch = memoryview(bytearray(_SCRATCH))
            while size := below.read_into(scratch):
                incoming.write(scratch[:size])

    def read_into(self, buffer: memoryview) -> int:
        """Fill `buffer` with what was said; 0 when that was nothing (yet). Raises `ssl.SSLError`, but hands out first
        what came before it."""
        total, size = 0, len(buffer)
        while total < size:
            try:
                count = self._read(size - total, buffer[total:] if total else buffer)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLEOFError:
                self.ended = True
                break
            except ssl.SSLError:
                if total:
                    break  # OpenSSL will say it again
                raise
            if not count:
                self.ended = True
                break
            total += int(count)
            if not self._incoming.pending and not self.object.pending():
                break
        return total

    def encrypt(self, data: Any) -> bytes:
        """`data` as the network carries it, behind whatever else had to be said."""
        view = memoryview(data)
        sent = self._write(view)
        while sent < len(view):
            sent += self._write(view[sent:])
        return self.unsent()

    def unsent(self) -> bytes:
        """What this end has to say by itself: handshake messages, key updates, alerts."""
        data = self._outgoing.read()
        return self.below.encrypt(data) if data and self.below is not None else data

    @property
    def speaks(self) -> bool:
        """Whether `unsent` has something."""
        return self._outgoing.pending > 0

    def goodbye(self) -> bytes:
        """The close_notify."""
        try:
            self.object.unwrap()
        except (ssl.SSLError, OSError, ValueError):
            pass  # it waits for the peer's, which nobody here does
        return self.unsent()

    def __repr__(self) -> str:
        return f"<Tls {self.object.version()}{' ended' if self.ended else ''}{' in TLS' if self.below else ''}>"
