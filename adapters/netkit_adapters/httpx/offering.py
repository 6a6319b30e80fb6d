"""HTTP/2 offered with the very SSLContext that a client's HTTP/1.1 connections use.

Rules of this file:

- Nothing is copied: verification, CA store, client certificate and callbacks are those of the context itself, also
  where they cannot be read back.
- httpcore sets ALPN on the context before each of its own handshakes. The offer of h2 is made the same way, for one
  handshake, and taken back at once: an SSL object keeps what was set when it was made.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any

from netkit import fork

__all__ = ["Offering"]


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

    def __repr__(self) -> str:
        return f"<Offering h2 with {self._inner!r}>"
