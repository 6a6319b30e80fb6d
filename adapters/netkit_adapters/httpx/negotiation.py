"""The first connection of a Client to an origin: opened once, and used by whichever protocol the server chose for it.

Rules of this file:

- One thread negotiates; the others of a cold burst wait for its outcome, each no longer than its connect timeout.
- h2: the engine takes the socket over. HTTP/1.1: httpcore's pool gets it. No handshake is made for nothing.
- A failure other than a timeout is left to httpcore, which tries again and words it; it is not remembered.

An AsyncClient's first connection is the engine's own: asyncio's transports are none that httpcore could go on with.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from netkit import fork
from netkit.errors import FailureKind, TransportError, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from netkit.http2 import H2Request, SyncEngine
    from netkit_adapters.httpx.stack import Stack

__all__ = ["Negotiation"]

MAX_ORIGINS: Final = 4096


class Negotiation:
    """Which origins of one client are known to speak HTTP/2."""

    def __init__(self, stack: Stack, knows_http1: Callable[[H2Request], bool]) -> None:
        self._stack = stack
        self._knows_http1 = knows_http1
        self._http2: set[Any] = set()
        self._locks: dict[Any, threading.Lock] = {}
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._locks = {}

    def knows_http2(self, target: H2Request) -> bool:
        return target.key in self._http2

    def negotiate(self, engine: SyncEngine, target: H2Request, pool: Any, keep: Callable[[Any], None]) -> bool | None:
        """Whether the server speaks HTTP/2; None where that could not be found out. `keep` gets the network stream of
        a server that chose HTTP/1.1. Raises `TransportError` (CONNECT_TIMEOUT, NOT_SENT)."""
        limit = target.connect_timeout
        lock = self._locks.setdefault(target.key, threading.Lock())
        if not lock.acquire(timeout=-1 if limit is None or limit > threading.TIMEOUT_MAX else limit):
            raise _timed_out(target, None)
        try:
            if self.knows_http2(target):
                return True
            if self._knows_http1(target):
                return False
            return self._open(engine, target, pool, keep)
        finally:
            # Whoever still waits for it finds out what came of it; who comes later makes a new one.
            self._locks.pop(target.key, None)
            lock.release()

    def _open(self, engine: SyncEngine, target: H2Request, pool: Any, keep: Callable[[Any], None]) -> bool | None:
        core, connect = self._stack.core, target.connect
        limit = None if target.connect_timeout == float("inf") else target.connect_timeout
        try:
            stream = pool._network_backend.connect_tcp(
                connect.host, connect.port, timeout=limit, socket_options=pool._socket_options
            )
            stream = stream.start_tls(connect.ssl, server_hostname=connect.host, timeout=limit)
        except core.ConnectTimeout as error:
            raise _timed_out(target, error) from error
        except (core.NetworkError, OSError):
            return None
        sock = stream.get_extra_info("socket")
        if sock.selected_alpn_protocol() != "h2":
            keep(stream)
            return False
        engine.adopt(target, sock)
        if len(self._http2) >= MAX_ORIGINS:
            self._http2.clear()
        self._http2.add(target.key)
        return True


def _timed_out(target: H2Request, cause: BaseException | None) -> TransportError:
    error = TransportError(
        f"connection to {target.connect.host}:{target.connect.port} timed out",
        kind=FailureKind.CONNECT_TIMEOUT,
        verdict=Verdict.NOT_SENT,
    )
    error.__cause__ = cause
    return error
