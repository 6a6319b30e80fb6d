"""A connection's bytes on a socket: plain, through TLS of our own, or over a TLS socket that a stack opened itself.

Why not asyncio's: its TLS drops what the peer said when a write meets the peer's close, and with it the GOAWAY that
tells which requests may be sent again; and it costs a quarter of a megabyte for each connection.

Rules of this file:

- The socket is in non-blocking mode and this transport's alone; everything runs in one loop.
- When writing fails, what lies unread is read before the end is told.
- Over an `ssl.SSLSocket` OpenSSL may want to write in order to read and the other way round: both directions are
  tried whenever either is ready (only renegotiation, which TLS 1.3 does not have, would need more).
- `close()` sends what is buffered first, for at most `_LINGER` seconds; `abort()` does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from netkit.http2.connection import Connection
    from netkit.http2.tls import Tls

__all__ = ["SocketTransport"]

_HIGH_WATER: Final = 256 << 10
_LOW_WATER: Final = 64 << 10
_READ: Final = 64 << 10
_WRITE: Final = 112 << 10
"""Pieces in which TLS is fed and asked, since its buffers stay as large as they ever were; a connection writes as
much at once."""
_READS_PER_TURN: Final = 4
"""So that one busy connection does not keep a loop's others waiting."""
_LINGER: Final = 5.0
_AGAIN: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)
_OF_SOCKET: Final = frozenset({"socket", "peername", "sockname"})
_EXTRA: Final[dict[str, Callable[[Any], Any]]] = {
    "socket": lambda sock: sock,
    "peername": lambda sock: sock.getpeername(),
    "sockname": lambda sock: sock.getsockname(),
    "ssl_object": lambda tls: tls,
    "sslcontext": lambda tls: tls.context,
    "peercert": lambda tls: tls.getpeercert(),
    "cipher": lambda tls: tls.cipher(),
    "compression": lambda tls: tls.compression(),
}


def _ways(sock: socket.socket) -> tuple[Callable[[Any], int], Callable[[Any], int]]:
    """How to read into a buffer, and how to send. Of an `ssl.SSLSocket` the methods of its OpenSSL object: its own
    ask each time whether it is open, connected and in the right mode, which takes longer than to decrypt a record."""
    inner: Any = getattr(sock, "_sslobj", None)
    if not isinstance(sock, ssl.SSLSocket) or not hasattr(inner, "read") or not hasattr(inner, "write"):
        return sock.recv_into, sock.send
    read, suppress = inner.read, getattr(sock, "suppress_ragged_eofs", True)

    def read_into(buffer: Any) -> int:
        try:
            return read(len(buffer), buffer)  # type: ignore[no-any-return]
        except ssl.SSLEOFError:
            if not suppress:
                raise
            return 0

    return read_into, inner.write


class SocketTransport:
    """The part of `asyncio.Transport` that a connection uses, over a connected socket.

    `tls` None: what is written is what the socket sends. `early` is what arrived before the protocol was there.
    Calls the protocol as asyncio does: `connection_made` at once, then `get_buffer`/`buffer_updated`,
    `pause_writing`/`resume_writing`, `eof_received`, and `connection_lost` once, at the end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: Connection,
        tls: Tls | None = None,
        early: bytes = b"",
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol = protocol
        self._tls = tls
        self._wrapped = isinstance(sock, ssl.SSLSocket)
        self._read, self._write = _ways(sock)
        self._buffer = bytearray()
        self._writing = False
        self._paused = False
        self._closing = False
        self._lost = False
        self._failed = False
        self._read_error: OSError | None = None
        self._linger: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol.connection_made(self)
        if not self._closing:
            # Whoever opened it has a context that must not live as long as the connection.
            Context().run(loop.add_reader, self._fd, self._readable)
            if tls is not None or early:
                loop.call_soon(self._begin, early)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The names that asyncio's transports know."""
        tls = self._tls.object if self._tls is not None else self._sock if self._wrapped else None
        ask = _EXTRA.get(name) if name in _OF_SOCKET or tls is not None else None
        if ask is None:
            return default
        try:
            return ask(self._sock if name in _OF_SOCKET else tls)
        except OSError:
            return default

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    # --- reading

    def _begin(self, early: bytes) -> None:
        """What came with the end of the handshake, or behind a proxy's answer."""
        while early and not self._closing:
            buffer = self._protocol.get_buffer(-1)
            piece, early = early[: len(buffer)], early[len(buffer) :]
            buffer[: len(piece)] = piece
            self._deliver(len(piece))
        if self._tls is not None and not self._closing:
            self._decrypted(self._protocol.get_buffer(-1))

    def _readable(self) -> None:
        if self._writing and self._wrapped and not self._failed:
            self._send()
        for _ in range(_READS_PER_TURN):
            if self._closing:
                return
            buffer = self._protocol.get_buffer(-1)
            try:
                size = self._receive(buffer) if self._wrapped else self._read(buffer[:_READ])
            except _AGAIN:
                return
            except OSError as error:
                self._finish(None if isinstance(error, ssl.SSLEOFError) else error)
                return
            if not size:
                self._end()
                return
            if self._tls is None:
                self._deliver(size)
            else:
                self._tls.feed(buffer[:size])
                self._decrypted(buffer)
            if size < _READ:
                return  # whatever has come meanwhile makes the descriptor readable again
        if self._wrapped and not self._closing and self._sock.pending():  # type: ignore[attr-defined]
            # What OpenSSL holds already does not.
            self._loop.call_soon(self._readable)

    def _receive(self, buffer: memoryview) -> int:
        """A stack's own TLS socket gives one record at a time: join those that are there."""
        if self._read_error is not None:
            raise self._read_error
        read = self._read
        size = read(buffer)
        if size:
            try:
                while len(buffer) - size >= _READ and (more := read(buffer[size:])):
                    size += more
            except _AGAIN:
                pass
            except OSError as error:
                # The kernel tells it once; what came before goes to the protocol first.
                self._read_error = error
                self._loop.call_soon(self._readable)
        return size

    def _decrypted(self, buffer: memoryview) -> None:
        tls = self._tls
        assert tls is not None
        while not self._closing:
            try:
                size = tls.read_into(buffer)
            except (OSError, ValueError) as error:
                self._say()
                self._finish(error)
                return
            if tls.speaks:
                self._say()
            if size:
                self._deliver(size)
            if tls.ended:
                self._end()
            if size < len(buffer):
                return

    def _deliver(self, size: int) -> None:
        try:
            self._protocol.buffer_updated(size)
        except Exception as error:  # noqa: BLE001 - as asyncio: what the protocol raises ends its connection
            self._finish(error)

    def _end(self) -> None:
        # After a write that failed this is no end that the peer made: the kernel told the reset there.
        if not self._closing and not self._failed:
            self._protocol.eof_received()
            self.close()

    # --- writing

    def write(self, data: bytes) -> None:
        if self._closing or self._failed or not data:
            return
        tls = self._tls
        if tls is None:
            self._push(data)
            return
        try:
            if len(data) <= _WRITE:
                self._push(tls.encrypt(data))
            else:
                view = memoryview(data)
                for start in range(0, len(data), _WRITE):
                    self._push(tls.encrypt(view[start : start + _WRITE]))
        except ssl.SSLError as error:
            self._last_words(error)

    def _say(self) -> None:
        """What TLS itself has to tell the peer."""
        if self._tls is not None and not self._failed and (data := self._tls.unsent()):
            self._push(data)

    def _push(self, data: Any) -> None:
        """Send now what the socket takes, and keep the rest."""
        if self._failed:
            return
        if not self._writing and not self._wrapped:
            try:
                sent = self._write(data)
            except _AGAIN:
                sent = 0
            except OSError as error:
                self._last_words(error)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self._buffer += data
        if self._wrapped and not self._writing:
            self._send()
        else:
            self._more_to_send()

    def _send(self) -> None:
        buffer = self._buffer
        try:
            while buffer:
                sent = self._write(buffer)
                del buffer[:sent]
        except _AGAIN:
            pass
        except OSError as error:
            self._last_words(error)
            return
        self._more_to_send()

    def _more_to_send(self) -> None:
        """Wait for the socket while something is buffered, and tell the protocol when that is much."""
        size = len(self._buffer)
        if (size > 0) != self._writing:
            self._writing = size > 0
            if self._writing:
                Context().run(self._loop.add_writer, self._fd, self._writable)
            else:
                self._loop.remove_writer(self._fd)
        if size > _HIGH_WATER and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        elif size <= _LOW_WATER and self._paused:
            self._paused = False
            self._protocol.resume_writing()

    def _writable(self) -> None:
        self._send()
        if self._closing and not self._buffer:
            self._finish(None)

    # --- the end

    def close(self) -> None:
        """Send what is buffered, say goodbye, and close."""
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._fd)
        if self._tls is not None:
            if not self._failed:
                self._push(self._tls.goodbye())
        elif self._wrapped and not self._buffer:
            with contextlib.suppress(OSError, ValueError):
                # Writes close_notify; the peer's, which unwrap() then asks for, is not waited for.
                self._sock.unwrap()  # type: ignore[attr-defined]
        if not self._buffer:
            self._finish(None)
        else:
            self._linger = Context().run(self._loop.call_later, _LINGER, self.abort)

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
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

        def read_first() -> None:
            self._readable()
            while not self._closing and self._unread():
                self._readable()
            self._finish(error)

        # Not at once: the connection is in the middle of its own flush.
        self._loop.call_soon(read_first)

    def _unread(self) -> bool:
        """Whether the socket still holds something that the peer said."""
        if self._wrapped:
            return bool(self._sock.pending())  # type: ignore[attr-defined]
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _finish(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._buffer.clear()
        if self._linger is not None:
            self._linger.cancel()
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
        return f"<SocketTransport {state} buffered={len(self._buffer)}>"
