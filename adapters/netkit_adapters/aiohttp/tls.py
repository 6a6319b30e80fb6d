"""A caller's TLS settings with HTTP/2 on offer, without touching the caller's context.

Rules of this file:

- ALPN belongs to a context, and aiohttp's HTTP/1.1 connections use the caller's: it is never changed, and what it
  offers cannot be read. So the offer is made by a context of netkit's own.
- Trust store and client certificate cannot be read either. They are not copied: each handshake is handed over to the
  caller's context before its first byte, as servers do for SNI (SSL_set_SSL_CTX), and uses what is in it then.
- A context of another class (truststore's, a test's) has ways of its own to verify: aiohttp must use it itself.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any, Final

from netkit import fork

__all__ = ["Offers"]

_COPIED: Final = ("hostname_checks_common_name", "minimum_version", "maximum_version", "options", "verify_flags")
"""What a handshake takes from the context that it began with, other than whether and whom to verify."""

MAX_CONTEXTS: Final = 64


class _Offering(ssl.SSLContext):
    """Begins each handshake with the offer of HTTP/2, and goes on as `settings` says."""

    settings: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        settings = self.settings
        # In this order: a context that checks host names refuses to verify nothing.
        self.check_hostname = False
        self.verify_mode = settings.verify_mode
        self.check_hostname = settings.check_hostname
        for name in _COPIED:
            setattr(self, name, getattr(settings, name))
        wrapped = super().wrap_bio(*args, **kwargs)
        wrapped.context = settings
        return wrapped


class Offers:
    """The offering contexts of one session, one for each context of its user."""

    def __init__(self) -> None:
        self._made: dict[int, _Offering] = {}
        self._lock = threading.Lock()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def of(self, settings: ssl.SSLContext) -> ssl.SSLContext | None:
        """The context to dial with; None where only aiohttp itself can use `settings`."""
        made = self._made.get(id(settings))
        if made is not None:
            return made
        if type(settings) is not ssl.SSLContext or settings.__dict__:
            return None
        if settings.protocol is not ssl.PROTOCOL_TLS_CLIENT:
            return None
        with self._lock:
            if len(self._made) >= MAX_CONTEXTS:
                self._made.clear()
            made = _Offering(ssl.PROTOCOL_TLS_CLIENT)
            made.settings = settings
            made.set_alpn_protocols(["h2", "http/1.1"])
            self._made[id(settings)] = made
        return made
