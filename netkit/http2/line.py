"""A socket while it is being made ready for a protocol: awaited step by step, by one task.

Rules of this file:

- Nobody but the awaiting task touches the socket; cancelled between two steps it is in no one's hands.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final

from netkit.http2.tls import Tls

__all__ = ["Line"]

_READ: Final = 64 << 10
_HANDSHAKE_LIMIT: Final = 60.0
"""Seconds that a peer may take for TLS, where the caller sets no limit for the whole connect."""


class Line:
    """`tls` is what it is secured with, if it is; `early` is what the peer said ahead of the protocol."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.tls: Tls | None = None
        self.early = b""
        self._loop = loop
        self._sock = sock

    async def send(self, data: bytes) -> None:
        """All of `data`."""
        await self._loop.sock_sendall(self._sock, data if self.tls is None else self.tls.encrypt(data))

    async def receive(self) -> bytes:
        """What has come, at least a byte of it; b"" at the end."""
        if self.early:
            early, self.early = self.early, b""
            return early
        tls = self.tls
        buffer = memoryview(bytearray(_READ))
        while True:
            if tls is not None and (size := tls.read_into(buffer)):
                return bytes(buffer[:size])
            data = await self._loop.sock_recv(self._sock, _READ)
            if tls is None or not data:
                return data
            tls.feed(data)
            if tls.ended:
                return b""

    async def secure(self, context: ssl.SSLContext, server_hostname: str) -> None:
        """TLS from here on, inside the one that there may be. Raises `ssl.SSLError`, OSError, TimeoutError."""
        tls = Tls.client(context, server_hostname)
        async with asyncio.timeout(_HANDSHAKE_LIMIT):
            while True:
                try:
                    done = tls.handshake()
                except ssl.SSLError:
                    self._alert(tls)
                    raise
                if said := tls.unsent():
                    await self.send(said)
                if done:
                    break
                tls.feed(await self.receive())
        tls.below, self.tls = self.tls, tls

    def _alert(self, tls: Tls) -> None:
        """Tell the peer why, as far as the socket takes it at once."""
        with suppress(OSError):
            said = tls.unsent()
            self._sock.send(said if self.tls is None else self.tls.encrypt(said))

    def __repr__(self) -> str:
        return f"<Line {'plain' if self.tls is None else self.tls!r}>"
