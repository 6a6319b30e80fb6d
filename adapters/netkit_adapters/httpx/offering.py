"""HTTP/2 offered with the very SSLContext that a client's HTTP/1.1 connections use.

Rules of this file:

- Nothing is copied: verification, CA store, client certificate and callbacks are those of the context itself, also
  where they cannot be read back.
- httpcore sets ALPN on the context before each of its own handshakes. The offer of h2 is made the same way, for one
  handshake, and taken back at once: an SSL object keeps what was set when it was made.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

from netkit import fork

__all__ = ["Offering", "can_offer"]


def can_offer(context: Any, *, asynchronous: bool) -> bool:
    """Whether the engine's way to make TLS objects, `wrap_bio`, does all that the stack's own way does: a class of
    the user's may check more in `wrap_socket`, which httpcore calls for threads."""
    if not isinstance(context, ssl.SSLContext):
        return False
    kind = type(context)
    own_socket = kind.wrap_socket is not _plain.wrap_socket or context.sslsocket_class is not ssl.SSLSocket
    own_object = kind.wrap_bio is not _plain.wrap_bio or context.sslobject_class is not ssl.SSLObject
    return asynchronous or own_object or not own_socket


_plain = ssl.SSLContext


class Offering(ssl.SSLContext):
    """Makes TLS objects of `inner` that offer HTTP/2 and HTTP/1.1; `usual` is what `inner` offers otherwise."""

    _inner: ssl.SSLContext
    _usual: list[str]

    def __new__(cls, inner: ssl.SSLContext, usual: list[str]) -> Offering:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        self._inner = inner
        self._usual = usual
        self._lock = threading.Lock()
        fork.register(self)
        return self

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        inner = self._inner
        with self._lock:
            inner.set_alpn_protocols(["h2", "http/1.1"])
            try:
                return inner.wrap_bio(*args, **kwargs)
            finally:
                inner.set_alpn_protocols(self._usual)

    def wrap_socket(  # type: ignore[override] # what httpcore calls it with
        self, sock: socket.socket, *, server_hostname: str | bytes | None = None
    ) -> ssl.SSLSocket:
        inner = self._inner
        with self._lock:
            inner.set_alpn_protocols(["h2", "http/1.1"])
            try:
                secure = inner.wrap_socket(sock, server_hostname=server_hostname, do_handshake_on_connect=False)
            finally:
                inner.set_alpn_protocols(self._usual)
        try:
            secure.do_handshake()
        except BaseException:
            secure.close()
            raise
        return secure

    def __repr__(self) -> str:
        return f"<Offering h2 with {self._inner!r}>"
