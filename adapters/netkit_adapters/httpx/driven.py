"""httpcore connections that tell the driver what happens to them, and ask it before they are used again.

Built on httpcore's public seam alone: `ConnectionPool.create_connection` may return any `ConnectionInterface`.

Rules of this file:

- Everything but the life of the connection is the connection's own, its repr included.
- The pool looks at a connection with its lock held: nothing here waits or does I/O.
"""

from __future__ import annotations

import contextlib
import socket
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from netkit.runtime import checkpoint, interruptible

if TYPE_CHECKING:
    from netkit_adapters.httpx.pool import HttpcorePool

__all__ = ["AsyncDriven", "ClosingBackend", "Driven", "SyncDriven", "socket_of"]

_now = time.monotonic


class Driven:
    """A connection of a driven pool. `idle_since` is None while it is in use; `keepalive_expiry` is what httpcore
    itself enforces, in seconds; `respects_limits` says that it is its user's own choice."""

    def __init__(
        self, driver: HttpcorePool, inner: Any, origin: str, keepalive_expiry: float | None, respects_limits: bool
    ) -> None:
        self._netkit_driver = driver
        self._netkit_inner = inner
        self.origin = origin
        self.keepalive_expiry = keepalive_expiry
        self.respects_limits = respects_limits
        self.born = _now()
        self.idle_since: float | None = None
        self.requests = 0
        self.started = False
        self.lost = False
        self.discarded = False

    @property
    def rank(self) -> float:
        """Order of reuse: the connection that idles for the shortest time comes first."""
        return 0.0 if self.idle_since is None else -self.idle_since

    def is_idle(self) -> bool:
        idle: bool = self._netkit_inner.is_idle()
        if not idle or not self.requests:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = _now()
        return idle

    def has_expired(self) -> bool:
        if self.lost:
            return True
        idle = self.is_idle()
        if self._netkit_inner.has_expired():
            if idle and not self.discarded:
                self.discarded = True
                self._netkit_driver.expired(self)
            return True
        if idle and (self.outlived() or self._netkit_driver.refuses(self, _now())):
            self.discarded = True
            return True
        return False

    def idled(self) -> float:
        """Seconds for which it has been idle."""
        return 0.0 if self.idle_since is None else _now() - self.idle_since

    def outlived(self) -> bool:
        """Whether it has idled for longer than httpcore's own limit."""
        return self.keepalive_expiry is not None and self.idled() > self.keepalive_expiry

    def _begins(self) -> float | None:
        """It is used now; returns how long it idled before, None where it was not idle."""
        self.started = True
        since, self.idle_since = self.idle_since, None
        return None if since is None else _now() - since

    # Interface methods that the native base classes define, and so `__getattr__` would not see.

    def info(self) -> str:
        return str(self._netkit_inner.info())

    def can_handle_request(self, origin: Any) -> bool:
        return bool(self._netkit_inner.can_handle_request(origin))

    def is_available(self) -> bool:
        return bool(self._netkit_inner.is_available())

    def is_closed(self) -> bool:
        return bool(self._netkit_inner.is_closed())

    def is_connected(self) -> bool:
        return bool(self._netkit_inner.is_connected())

    def can_multiplex(self) -> bool:
        return bool(self._netkit_inner.can_multiplex())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_netkit"):
            raise AttributeError(name)
        return getattr(self._netkit_inner, name)

    def __repr__(self) -> str:
        return repr(self._netkit_inner)


class SyncDriven(Driven):
    """For threads; the per-stack class adds httpcore's interface."""

    _reader: object = None

    def handle_request(self, request: Any) -> Any:
        is_new = not self.started
        # httpcore may give an idle connection to several requests; those who come too late look for another one.
        token = object()
        if is_new or self._netkit_inner.is_idle():
            self._reader = token
        idled = self._begins()
        entered = False
        try:
            with interruptible(partial(self._shut, token)) as spawned:
                entered = True
                if is_new and spawned:
                    native = request.extensions
                    trace = partial(_check_once_connected, native.get("trace"))
                    request.extensions = {**native, "trace": trace}
                response = self._netkit_inner.handle_request(request)
        except Exception as error:
            error.netkit_reused = self.requests > 0  # type: ignore[attr-defined]
            self._netkit_driver.failed(self, idled, error)
            raise
        except BaseException:
            # Cancelled before it was even connected: httpcore would keep it, connecting, for ever.
            self.lost = self.lost or (is_new and not entered)
            raise
        self.requests += 1
        self._netkit_driver.answered(self, idled, response.headers)
        return response

    def _shut(self, token: object) -> None:
        """Wake whoever reads from it, from another thread; the socket stays theirs to close."""
        if token is not self._reader:
            return
        with contextlib.suppress(Exception):
            # Not an SSLSocket's own shutdown, which takes its state away from under the reader.
            socket.socket.shutdown(socket_of(self._netkit_inner), socket.SHUT_RDWR)

    def close(self) -> None:
        self._netkit_inner.close()


def _check_once_connected(
    trace: Callable[[str, dict[str, Any]], object] | None, name: str, info: dict[str, Any]
) -> Any:
    """httpcore's trace of a request on a new connection, in front of the user's own: what was cancelled while there
    was no socket to shut ends before anything is sent."""
    if name.endswith(".send_request_headers.started"):
        checkpoint()
    return None if trace is None else trace(name, info)


def socket_of(connection: Any) -> Any:
    """The socket under a sync connection, through however many layers of connections."""
    inner = connection
    while (deeper := getattr(inner, "_connection", None)) is not None:
        inner = deeper
    return inner._network_stream.get_extra_info("socket")


class AsyncDriven(Driven):
    """For tasks; the per-stack class adds httpcore's interface."""

    _busy = 0

    async def handle_async_request(self, request: Any) -> Any:
        idled = self._begins()
        self._busy += 1
        try:
            response = await self._netkit_inner.handle_async_request(request)
        except Exception as error:
            error.netkit_reused = self.requests > 0  # type: ignore[attr-defined]
            self._netkit_driver.failed(self, idled, error)
            raise
        except BaseException:
            # Cancelled between handshake and first byte, httpcore 1.0 leaves it open, neither idle nor usable.
            self.lost = self._busy == 1 and not self.requests
            raise
        finally:
            self._busy -= 1
        self.requests += 1
        self._netkit_driver.answered(self, idled, response.headers)
        return response

    async def aclose(self) -> None:
        await self._netkit_inner.aclose()


class ClosingBackend:
    """A network backend whose sockets are closed when their TLS handshake is cancelled; httpcore's leave them open.

    The per-stack class adds httpcore's interface.
    """

    def __init__(self, inner: Any) -> None:
        self._netkit_inner = inner

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> Any:
        stream = await self._netkit_inner.connect_tcp(*args, **kwargs)
        with contextlib.suppress(AttributeError, TypeError):  # a stream of the user's own that allows neither
            stream.start_tls = partial(_start_tls_or_close, weakref.ref(stream))
        return stream

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> Any:
        return await self._netkit_inner.connect_unix_socket(*args, **kwargs)

    async def sleep(self, seconds: float) -> None:
        await self._netkit_inner.sleep(seconds)


async def _start_tls_or_close(stream_of: weakref.ref[Any], *args: Any, **kwargs: Any) -> Any:
    stream: Any = stream_of()
    native: Any = type(stream)
    try:
        return await native.start_tls(stream, *args, **kwargs)
    except BaseException:
        await stream.aclose()
        raise
