"""The first connection to an origin: opened once, and used by whichever protocol the server chose for it.

Rules of this file:

- One thread negotiates; the others of a cold burst wait for its outcome, each no longer than its connect timeout.
- h2: the engine takes the socket over. HTTP/1.1: urllib3's pool gets it. No handshake is made for nothing.
- Which protocol a server speaks is a fact of the server: it is remembered by host and port, not by TLS settings.
- A failure other than a timeout is left to urllib3, which tries again and words it; it is not remembered.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from netkit import fork
from netkit.errors import FailureKind, TransportError, Verdict

if TYPE_CHECKING:
    import ssl

    from netkit.http2 import H2Request, SyncEngine
    from netkit.messages import Request
    from netkit_adapters.requests.messages import Exchange

__all__ = ["Negotiation"]

REMEMBER: Final = 600.0
"""Seconds for which a server that chose HTTP/1.1 is not asked again."""

MAX_ORIGINS: Final = 4096


class Negotiation:
    """What is known of the origins of one session."""

    def __init__(self) -> None:
        self._http2: set[Any] = set()
        self._http1: dict[tuple[str, int], float] = {}
        self._locks: dict[Any, threading.Lock] = {}
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._locks = {}

    def speaks_http2(self, engine: SyncEngine, request: Request, target: H2Request) -> bool:
        """Whether the engine shall serve `target`; negotiates where that is not known yet.

        Raises `TransportError` (CONNECT_TIMEOUT, NOT_SENT).
        """
        key = target.key
        if key in self._http2:
            return True
        if self.knows_http1(target):
            return False
        limit = _limit(target, engine)
        lock = self._locks.setdefault(key, threading.Lock())
        if not lock.acquire(timeout=-1 if limit is None else limit):
            raise _timed_out(target, None)
        try:
            if key in self._http2:
                return True
            if self.knows_http1(target):
                return False
            return self._negotiate(engine, request, target, limit)
        finally:
            # Whoever still waits for it finds out what came of it; who comes later makes a new one.
            self._locks.pop(key, None)
            lock.release()

    def forget(self, target: H2Request) -> None:
        """The server took its offer of HTTP/2 back."""
        self._http2.discard(target.key)
        self._http1[(target.connect.host, target.connect.port)] = time.monotonic() + REMEMBER

    def knows_http1(self, target: H2Request) -> bool:
        until = self._http1.get((target.connect.host, target.connect.port))
        return until is not None and time.monotonic() < until

    def _bound(self) -> None:
        """Beyond `MAX_ORIGINS` all is forgotten: it costs a negotiation each, nothing else."""
        if len(self._http1) + len(self._http2) >= MAX_ORIGINS:
            self._http1.clear()
            self._http2.clear()

    def _negotiate(self, engine: SyncEngine, request: Request, target: H2Request, limit: float | None) -> bool:
        exchange: Exchange = request.native
        adapter, prepared, arguments = exchange.peek(request)
        driver = exchange.wiring.pool
        driver.adopt(adapter)
        verify, cert = arguments.get("verify", True), arguments.get("cert")
        stock: Any = adapter
        pool = stock.get_connection_with_tls_context(prepared, verify, proxies=None, cert=cert)
        connection = pool._new_conn()
        try:
            sock = _open(connection, target, limit)
        except NewConnectionError:
            return False  # refused, or no such name: urllib3 counts these among its timeouts
        except (TimeoutError, ConnectTimeoutError) as error:
            raise _timed_out(target, error) from error
        except (OSError, HTTPError):
            return False
        if sock.selected_alpn_protocol() == "h2":
            engine.adopt(target, sock)
            self._bound()
            self._http2.add(target.key)
            return True
        self._bound()
        self._http1[(target.connect.host, target.connect.port)] = time.monotonic() + REMEMBER
        sock.settimeout(None)
        connection.sock = sock
        connection.is_verified = bool(verify)
        driver.opened_elsewhere(pool, connection)
        return False


def _open(connection: Any, target: H2Request, limit: float | None) -> ssl.SSLSocket:
    """Connect as urllib3 does, then TLS with both protocols on offer."""
    connection.timeout = limit
    sock: socket.socket = connection._new_conn()
    try:
        sock.settimeout(limit)
        context = target.connect.ssl
        assert context is not None
        return context.wrap_socket(sock, server_hostname=target.connect.host.rstrip("."))
    except BaseException:
        sock.close()
        raise
    finally:
        connection.timeout = None


def _limit(target: H2Request, engine: SyncEngine) -> float | None:
    limit = target.connect_timeout
    return engine.options.connect_timeout if limit is None else limit


def _timed_out(target: H2Request, cause: BaseException | None) -> TransportError:
    error = TransportError(
        f"connection to {target.connect.host}:{target.connect.port} timed out",
        kind=FailureKind.CONNECT_TIMEOUT,
        verdict=Verdict.NOT_SENT,
    )
    error.__cause__ = cause
    return error
