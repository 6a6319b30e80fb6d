"""A transport over a TLS socket that a stack opened itself, so that one handshake serves whichever protocol it chose.

Rules of this file:

- The socket is in non-blocking mode and this transport's alone; everything runs in one loop.
- OpenSSL may want to write in order to read and the other way round: both directions are tried whenever either is
  ready (only renegotiation, which TLS 1.3 does not have, would need more).
- `close()` sends what is buffered first; `abort()` does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["AdoptedTransport"]

_HIGH_WATER: Final = 256 << 10
_LOW_WATER: Final = 64 << 10
_READS_PER_TURN: Final = 8
"""So that one busy connection does not keep a loop's others waiting."""


class AdoptedTransport:
    """The part of `asyncio.Transport` that a connection uses, over a connected `ssl.SSLSocket`.

    Calls the protocol as asyncio does: `connection_made` at once, then `get_buffer`/`buffer_updated`,
    `pause_writing`/`resume_writing`, `eof_received`, and `connection_lost` once, at the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: ssl.SSLSocket, protocol: Connection) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol = protocol
        self._buffer = bytearray()
        self._writing = False
        self._paused = False
        self._closing = False
        self._lost = False
        self._failed = False
        sock.setblocking(False)
        protocol.connection_made(self)
        if not self._lost:
            loop.add_reader(self._fd, self._readable)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket" or name == "ssl_object":
            return self._sock
        return default

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    # --- reading

    def _readable(self) -> None:
        protocol, sock = self._protocol, self._sock
        if self._writing and not self._failed:
            self._send()
        for _ in range(_READS_PER_TURN):
            if self._lost or self._closing:
                return
            try:
                size = sock.recv_into(protocol.get_buffer(-1))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError):
                return
            except (OSError, ssl.SSLError) as error:
                self._fail(None if isinstance(error, ssl.SSLEOFError) else error)
                return
            if not size:
                self._end()
                return
            try:
                protocol.buffer_updated(size)
            except Exception as error:  # noqa: BLE001 - as asyncio: what the protocol raises ends its connection
                self._fail(error)
                return
        if not self._lost and sock.pending():
            # What OpenSSL holds already does not make the descriptor readable again.
            self._loop.call_soon(self._readable)

    def _end(self) -> None:
        self._protocol.eof_received()
        self.close()

    # --- writing

    def write(self, data: bytes) -> None:
        if self._lost or self._closing or self._failed or not data:
            return
        self._buffer += data
        if not self._writing:
            self._send()

    def _send(self) -> None:
        buffer = self._buffer
        try:
            while buffer:
                sent = self._sock.send(buffer)
                del buffer[:sent]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError):
            pass
        except (OSError, ssl.SSLError) as error:
            self._last_words(error)
            return
        if bool(buffer) != self._writing:
            self._writing = bool(buffer)
            if self._writing:
                self._loop.add_writer(self._fd, self._writable)
            else:
                self._loop.remove_writer(self._fd)
        self._watermarks()

    def _writable(self) -> None:
        self._send()
        if self._closing and not self._buffer and not self._lost:
            self._finish(None)

    def _watermarks(self) -> None:
        size = len(self._buffer)
        if size > _HIGH_WATER and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        elif size <= _LOW_WATER and self._paused:
            self._paused = False
            self._protocol.resume_writing()

    # --- the end

    def close(self) -> None:
        """Send what is buffered, say goodbye, and close."""
        if self._closing or self._lost:
            return
        self._closing = True
        self._loop.remove_reader(self._fd)
        if not self._buffer:
            with contextlib.suppress(OSError, ValueError):
                # Writes close_notify; the peer's, which unwrap() then asks for, is not waited for.
                self._sock.unwrap()
            self._finish(None)

    def abort(self) -> None:
        """Close now; what is buffered is lost."""
        self._finish(None)

    def _last_words(self, error: BaseException) -> None:
        """Writing failed, the peer has closed: what it said before (a GOAWAY, answers) may lie unread, and decides
        what becomes of each request."""
        self._buffer.clear()
        if self._failed:
            return
        self._failed = True

        def read_first() -> None:
            if not self._lost and not self._closing:
                self._readable()
            self._fail(error)

        # Not at once: the connection is in the middle of its own flush.
        self._loop.call_soon(read_first)

    def _fail(self, error: BaseException | None) -> None:
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._buffer.clear()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._close_socket()
        if not self._loop.is_closed():
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _close_socket(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closing" if self._closing else "open"
        return f"<AdoptedTransport {state} buffered={len(self._buffer)}>"
