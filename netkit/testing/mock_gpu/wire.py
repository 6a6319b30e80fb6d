"""The wire: bytes of one TCP connection, with TLS, artificial distance, and every way to break.

TLS runs over memory buffers here and not in asyncio, for three reasons: a failed handshake must be logged, delays and
throttling must act on what is on the wire, and a connection must be able to end with or without close_notify.

Rules of this file:
- What has been closed, reset or swallowed by the black hole never calls its receiver again.
- Every end goes through `_end`, so that `closed_by` is said once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from .delay import DelayLine

if TYPE_CHECKING:
    from .options import Options

__all__ = ["Receiver", "Wire", "redirect"]

_READ = 16 * 1024  # one TLS record; more would be allocated anew for each read


class Receiver(Protocol):
    """Whoever speaks the protocol above the wire."""

    def accepted(self) -> None: ...
    def released(self) -> None: ...
    def connected(self, alpn: str | None) -> None: ...
    def receive(self, data: bytes) -> None: ...
    def writable(self) -> None: ...
    def ended(self, by: str) -> None: ...
    def note(self, kind: str, detail: dict[str, Any]) -> None: ...


class Wire(asyncio.Protocol):
    """One accepted connection, as `Receiver` sees it."""

    def __init__(self, options: Options, context: ssl.SSLContext | None, receiver: Receiver) -> None:
        self._options = options
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._cipher_in, self._cipher_out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._cipher_in, self._cipher_out, server_side=True)
        self._shaken = context is None
        self._in: DelayLine | None = None
        self._out: DelayLine | None = None
        self._swallowing = False
        self._full = False
        self._held = False
        self._asleep = False
        self._early: list[bytes] = []
        self._deaf = False
        self._transport: asyncio.Transport | None = None
        self._client_gone = False
        self.closed_by: str | None = None
        self.bytes_in = self.bytes_out = 0
        self.descriptor = -1

    def __repr__(self) -> str:
        state = self.closed_by or ("swallowing" if self._swallowing else "open")
        return f"<Wire {state} in={self.bytes_in} out={self.bytes_out}>"

    @property
    def handshake_done(self) -> bool:
        return self._shaken

    @property
    def is_closed(self) -> bool:
        return self.closed_by is not None

    @property
    def is_full(self) -> bool:
        """True while kernel or delay line hold all that they should: write later, when `writable` is called."""
        return self._full or (self._out is not None and self._out.queued > 64 * 1024)

    @property
    def tls(self) -> ssl.SSLObject | None:
        return self._tls

    @property
    def peer(self) -> tuple[Any, ...]:
        return tuple(self._transport.get_extra_info("peername") or ()) if self._transport else ()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.descriptor = transport.get_extra_info("socket").fileno()
        latency, bandwidth = self._options.rtt_ms / 2000, self._options.bandwidth
        if latency or bandwidth:
            # The kernel has answered the TCP handshake in no time. The first bytes pay for that round trip.
            start = self._loop.time() + 2 * latency
            self._in = DelayLine(self._loop, latency=latency, bandwidth=bandwidth, not_before=start)
            self._out = DelayLine(self._loop, latency=latency, bandwidth=bandwidth)
        self._receiver.accepted()
        if self._tls is None and not self._asleep and not self.is_closed:
            self._receiver.connected(None)

    def data_received(self, data: bytes) -> None:
        if self._swallowing or self.is_closed:
            return
        if self._asleep:  # uvloop begins to read after connection_made, paused or not
            self._early.append(data)
            return
        self.bytes_in += len(data)
        if self._in is None:
            self._arrive(data)
            return
        piece = self._in.piece or len(data)
        for start in range(0, len(data), piece):
            part = data[start : start + piece]
            self._in.push(len(part), lambda part=part: self._arrive(part))  # type: ignore[misc]
        self._balance_reading()

    def eof_received(self) -> bool:
        if self._swallowing or self.is_closed:
            return True
        self._through(self._in, self._client_ended)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        for line in (self._in, self._out):
            if line is not None:
                line.stop()
        if not self.is_closed and exc is not None:
            self._receiver.note("reset", {"error": str(exc)})
            self._end("client_reset")
        self._end("client" if self._client_gone else "server")
        self._transport = None
        self._receiver.released()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if not self.is_closed and not self._swallowing:
            self._receiver.writable()

    # Called by the protocol above.

    def write(self, data: bytes) -> None:
        """Send plain bytes; TLS is put around them here."""
        if self.is_closed or self._swallowing or not data:
            return
        if self._tls is None:
            self._send(data)
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self._receiver.note("protocol_error", {"error": str(error)})
            self.reset()
            return
        self._send(self._cipher_out.read())

    def hold_reading(self, hold: bool) -> None:
        """Stop or go on reading from the socket, so that a client's upload waits in its own buffers."""
        if hold is not self._held:
            self._held = hold
            self._balance_reading()

    def stop_reading(self) -> None:
        """Read nothing more from the socket, for good; writing goes on."""
        self._deaf = True
        self._balance_reading()

    def sleep(self, seconds: float) -> None:
        """Before the first byte: act as if the connection were accepted `seconds` later."""
        if not self._asleep:
            self._asleep = True
            self._balance_reading()
            self._loop.call_later(seconds, self._awake)

    def swallow(self) -> None:
        """Become a black hole: read nothing, write nothing, answer nothing, keep the socket open."""
        self._swallowing = True
        for line in (self._in, self._out):
            if line is not None:
                line.stop()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def close(self, *, notify: bool = True) -> None:
        """End in order: flush, TLS close_notify (unless `notify` is False), then FIN."""
        if self.is_closed:
            return
        self._notify(notify)
        self._end("server")
        self._through(self._out, self._close_transport)

    def half_close(self, *, notify: bool = True) -> None:
        """Send close_notify (unless `notify` is False) and FIN, but go on reading."""
        if self.is_closed or self._transport is None:
            return
        self._notify(notify)
        self._through(self._out, self._send_fin)

    def reset(self) -> None:
        """End with a TCP RST (SO_LINGER 0); bytes not yet sent are lost."""
        if self.is_closed:
            return
        self._end("server_reset")
        self._through(self._out, self._reset_transport)

    def abort(self) -> None:
        """Let go of the socket at once, black hole or not."""
        self._end("server")
        for line in (self._in, self._out):
            if line is not None:
                line.stop()
        if self._transport is not None:
            self._transport.abort()

    def disown(self) -> None:
        """In a forked child: let the descriptor point nowhere, so that only the parent holds the connection."""
        if self._transport is not None:
            redirect(self.descriptor)

    # Inside.

    def _awake(self) -> None:
        self._asleep = False
        if not self.is_closed and not self._swallowing:
            if self._tls is None:
                self._receiver.connected(None)
            self._balance_reading()
            early, self._early = self._early, []
            for data in early:
                self.data_received(data)

    def _arrive(self, data: bytes) -> None:
        if self._swallowing or self.closed_by is not None:
            return
        if self._in is not None:
            self._balance_reading()
        if self._tls is None:
            self._receiver.receive(data)
            return
        self._cipher_in.write(data)
        if not self._shaken and not self._shake():
            return
        self._read_plain(self._tls)

    def _shake(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send(self._cipher_out.read())
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._send(self._cipher_out.read())
            self._receiver.note("tls_failed", {"error": str(error)})
            self.close(notify=False)
            return False
        self._shaken = True
        self._send(self._cipher_out.read())
        self._receiver.connected(self._tls.selected_alpn_protocol())
        return True

    def _read_plain(self, tls: ssl.SSLObject) -> None:
        pieces = []
        ended = False
        try:
            while True:
                piece = tls.read(_READ)
                if not piece:
                    ended = True  # close_notify
                    break
                pieces.append(piece)
                if not self._cipher_in.pending and not tls.pending():
                    break  # the next read could only say so, by a costly exception
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            ended = True
        except ssl.SSLError as error:
            # With TLS 1.3 a client that distrusts our certificate says so after the handshake is over here.
            self._receiver.note("tls_failed", {"error": str(error)})
            self.close(notify=False)
            return
        if pieces:
            self._receiver.receive(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._cipher_out.pending:
            self._send(self._cipher_out.read())
        if ended and not self.is_closed:
            self._client_ended()

    def _send(self, data: bytes) -> None:
        if not data or self._transport is None:
            return
        self.bytes_out += len(data)
        if self._out is None:
            self._transport.write(data)
            return
        piece = self._out.piece or len(data)
        for start in range(0, len(data), piece):
            part = data[start : start + piece]
            self._out.push(len(part), lambda part=part: self._deliver(part))  # type: ignore[misc]

    def _deliver(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        full = self._out is not None and self._out.queued + len(data) > 64 * 1024
        self._transport.write(data)
        if full and not self.is_full and not self.is_closed:
            self._receiver.writable()

    def _through(self, line: DelayLine | None, action: Callable[[], None]) -> None:
        if line is None:
            action()
        else:
            line.push(0, action)

    def _client_ended(self) -> None:
        if self._swallowing or self.is_closed or self._client_gone:
            return
        self._client_gone = True
        self._receiver.note("eof", {})
        self._end("client")
        self._through(self._out, self._close_transport)

    def _end(self, by: str) -> None:
        if self.closed_by is None:
            self.closed_by = by
            self._receiver.ended(by)

    def _notify(self, notify: bool) -> None:
        if notify and self._tls is not None and self._shaken and not self._swallowing:
            try:
                self._tls.unwrap()
            except ssl.SSLError:  # "want read": the client's close_notify is not waited for
                pass
            self._send(self._cipher_out.read())

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _send_fin(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def _reset_transport(self) -> None:
        if self._transport is not None:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()

    def _balance_reading(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._swallowing:
            return
        if self._held or self._asleep or self._deaf or (self._in is not None and self._in.queued > 512 * 1024):
            self._transport.pause_reading()
        elif not self._transport.is_reading():
            self._transport.resume_reading()


def redirect(descriptor: int) -> None:
    """Make a descriptor point to the null device; whoever holds its number may close it without harm."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, descriptor, inheritable=False)
    finally:
        os.close(null)
