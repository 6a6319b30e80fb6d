"""The TLS contexts that requests would use, with HTTP/2 on offer.

Rules of this file:

- A context is made from what requests would use for (verify, cert), and its key is part of the pool's key:
  `verify=False` never serves `verify=True`, nor an old CA file a new one.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from typing import Any, Final

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.util.ssl_ import create_urllib3_context

from netkit import fork

__all__ = ["Trust"]

MAX_CONTEXTS: Final = 64
MAX_FILES: Final = 256


class Trust:
    """TLS contexts for each (verify, cert) that a session was asked to use; made anew when a file has changed."""

    def __init__(self) -> None:
        self._contexts: dict[Any, ssl.SSLContext] = {}
        self._lock = threading.Lock()
        fork.register(self)

    def key(self, verify: Any, cert: Any) -> Any:
        """What a connection under these settings must not be shared beyond: the settings, and the state of the files
        that they name. Raises OSError when one is not there."""
        location = DEFAULT_CA_BUNDLE_PATH if verify is True else verify
        if cert is None and isinstance(location, str):
            return bool(verify), location, None, _stamp(location)
        stamps = [_stamp(name) for name in (location, *_files(cert)) if isinstance(name, str)]
        return bool(verify), location, cert, *stamps

    def context(self, key: Any) -> ssl.SSLContext:
        """The context for a key. Raises OSError or ssl.SSLError for files that are no certificates."""
        context = self._contexts.get(key)
        if context is None:
            verify, location, cert = key[:3]
            with self._lock:
                if len(self._contexts) >= MAX_CONTEXTS:
                    self._contexts.clear()
                context = self._contexts[key] = _context(location if verify else None, cert)
        return context

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()


def _files(cert: Any) -> tuple[Any, ...]:
    return cert if isinstance(cert, tuple) else (cert,)


STAMP_SECONDS: Final = 0.02
"""For so long a file's state is not looked at again."""
_stamps: dict[str, tuple[float, tuple[int, int]]] = {}


def _stamp(path: str) -> tuple[int, int]:
    """When a file was changed last, and its size; looked at again after `STAMP_SECONDS`. Many threads that ask the
    system for each request hold one another up, and what a file says matters to new connections only."""
    now = time.monotonic()
    known = _stamps.get(path)
    if known is not None and now < known[0]:
        return known[1]
    status = os.stat(path)
    if len(_stamps) >= MAX_FILES:
        _stamps.clear()
    stamp = status.st_mtime_ns, status.st_size
    _stamps[path] = now + STAMP_SECONDS, stamp
    return stamp


def _context(location: str | None, cert: Any) -> ssl.SSLContext:
    context = create_urllib3_context()
    if location is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = True
        if os.path.isdir(location):
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location)
    if cert:
        context.load_cert_chain(*_files(cert))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context
