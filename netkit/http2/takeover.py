"""An asyncio transport that a stack opened, continued as the engine's own.

Rules of this file:

- The TLS state is asked for by the private names that CPython's asyncio has kept since 3.11. Where they are not there
  (uvloop), or something waits to be written, the transport stays and only its protocol changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from netkit.http2.tls import Tls
from netkit.http2.transport import SocketTransport

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["take_over"]


def take_over(loop: asyncio.AbstractEventLoop, transport: Any, connection: Connection, received: bytes) -> None:
    """Let `connection` speak where `transport` did. `received` is what the stack has already been given."""
    tls = _tls_of(transport)
    if tls is not None:
        sock = transport.get_extra_info("socket").dup()
        transport.set_protocol(asyncio.Protocol())  # which is told of the end, and does not care
        transport.abort()
        SocketTransport(loop, sock, connection, tls, received)
        return
    transport.set_protocol(connection)
    connection.connection_made(transport)
    while received:
        buffer = connection.get_buffer(-1)
        piece, received = received[: len(buffer)], received[len(buffer) :]
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))


def _tls_of(transport: Any) -> Tls | None:
    """The state of a TLS transport that may be taken from it; None where it may not."""
    if transport.get_write_buffer_size():
        return None
    try:
        protocol = transport._ssl_protocol
        return Tls(transport.get_extra_info("ssl_object"), protocol._incoming, protocol._outgoing)
    except AttributeError:
        return None
