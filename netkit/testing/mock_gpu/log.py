"""The log: every connection, request and protocol event that the server saw, with times.

Rules of this file:
- The server's loop thread writes; any thread reads. What readers get is frozen.
- Times are `time.monotonic()` seconds.
- Nothing here grows without bound: the oldest records go first, and `dropped` counts them.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from .exchange import Exchange

__all__ = ["ConnectionRecord", "EventRecord", "Log", "RequestRecord"]


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the server saw it, at the moment when the record was read.

    `headers` keeps wire order, and on HTTP/1.1 the case of the names; on HTTP/2 the pseudo headers are not in it.
    `body` is None where it was larger than the server keeps (`keep_body` bytes); hash and size are always whole.
    `outcome`: "open", "complete", "client_left" (EOF, TCP reset), "client_reset" (RST_STREAM, code in `reset_code`),
    "server_reset" (RST_STREAM sent), "server_closed" (the connection was cut by a fault or at stop).
    """

    id: int
    connection: int
    number: int
    """1 for the first request of its connection."""
    stream: int | None
    protocol: str
    """"HTTP/1.1", "HTTP/1.0" or "HTTP/2"."""
    method: str
    target: str
    path: str
    query: str
    authority: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    digest: str | None
    """The hash of a body that was not kept; else None. See `body_sha256`."""
    body_size: int
    body_complete: bool
    time: float
    first_byte: float | None
    """When the response head was written; None before."""
    ended: float | None
    status: int | None
    bytes_sent: int
    """Response body bytes, before chunking and encryption."""
    events_sent: int
    """Writes of a streamed body, 1 for a whole one."""
    outcome: str
    reset_code: int | None

    @property
    def body_sha256(self) -> str:
        """SHA-256 of the whole body, in hexadecimal."""
        return self.digest or hashlib.sha256(self.body or b"").hexdigest()

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever the case of its name; None if there is none."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: the body was not kept, or is not JSON.
        """
        if self.body is None:
            raise ValueError("this body was larger than the log keeps")
        return msgspec.json.decode(self.body)


class ConnectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted TCP connection. `protocol` is None until it is known (no byte, or a failed handshake)."""

    id: int
    time: float
    closed: float | None
    closed_by: str | None
    """"client", "client_reset", "server", "server_reset", or None while open."""
    peer: tuple[Any, ...]
    protocol: str | None
    tls: bool
    handshake_done: bool
    """True once TLS is up; True at once without TLS."""
    tls_error: str | None
    server_name: str | None
    client_certificate: bool
    requests: int
    open_requests: int
    peak_requests: int
    """Most requests open at the same moment on this connection."""
    bytes_in: int
    bytes_out: int


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened below or beside the requests.

    `kind`: "accepted", "tls_failed", "eof" (client's FIN), "reset" (client's RST), "closed", "fault",
    "handler_error", "protocol_error"; HTTP/2: "settings_received", "settings_sent", "settings_acked",
    "rst_received", "rst_sent", "goaway_received", "goaway_sent", "ping_received", "ping_sent", "ping_acked"
    (ours was answered), "ping_answered" (we answered), "window_received", "window_sent".
    """

    kind: str
    time: float
    connection: int
    stream: int | None = None
    code: int | None = None
    """Error code of a reset or GOAWAY."""
    detail: Mapping[str, Any] = {}
    """"last_stream" of a GOAWAY, "settings" of SETTINGS, "increment" of a window, "name" of a fault, "error" text."""


class Log:
    """`.connections`, `.requests`, `.events`: lists of frozen records, oldest first.

    Example: `gpu.log.wait(lambda log: len(log.requests) == 2)`.
    """

    def __init__(self, *, size: int = 100_000) -> None:
        self._size = size
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._listeners: set[Callable[[], None]] = set()
        self._waiting = 0
        self._version = 0
        self._requests: dict[int, Exchange | RequestRecord] = {}
        self._connections: dict[int, Callable[[], ConnectionRecord] | ConnectionRecord] = {}
        self._events: deque[EventRecord] = deque(maxlen=size)
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<Log connections={len(self._connections)} requests={len(self._requests)} events={len(self._events)}>"

    @property
    def requests(self) -> list[RequestRecord]:
        with self._lock:
            entries = list(self._requests.values())
        return [entry if isinstance(entry, RequestRecord) else entry.record() for entry in entries]

    @property
    def connections(self) -> list[ConnectionRecord]:
        with self._lock:
            entries = list(self._connections.values())
        return [entry if isinstance(entry, ConnectionRecord) else entry() for entry in entries]

    @property
    def events(self) -> list[EventRecord]:
        with self._lock:
            return list(self._events)

    def of_kind(self, kind: str, *, connection: int | None = None) -> list[EventRecord]:
        """The events of one kind, of one connection where its id is given."""
        return [e for e in self.events if e.kind == kind and connection in (None, e.connection)]

    def clear(self) -> None:
        """Forget what has ended. Open connections and requests stay, so that their end is still recorded."""
        with self._lock:
            self._requests = {k: v for k, v in self._requests.items() if not isinstance(v, RequestRecord)}
            self._connections = {k: v for k, v in self._connections.items() if not isinstance(v, ConnectionRecord)}
            self._events.clear()
            self.dropped = 0

    def wait(self, predicate: Callable[[Log], object], timeout: float = 10.0) -> None:
        """Block this thread until `predicate(log)` is true. It is called in this thread, after each change.

        Raises:
            TimeoutError: not true within `timeout` seconds; the message shows the log's tail.
        """
        deadline = time.monotonic() + timeout
        while True:
            version = self._version
            if predicate(self):  # without the lock: it may ask the server for more than the log
                return
            with self._changed:
                self._waiting += 1
                try:
                    if self._version == version and not self._changed.wait(deadline - time.monotonic()):
                        raise TimeoutError(self._missed(timeout))
                finally:
                    self._waiting -= 1

    async def wait_async(self, predicate: Callable[[Log], object], timeout: float = 10.0) -> None:
        """The same for a task of any event loop."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def listener() -> None:
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:  # the waiter's loop is gone, and its finally never ran
                self._listeners.discard(listener)

        with self._lock:
            self._listeners.add(listener)
        try:
            async with asyncio.timeout(timeout):
                while not predicate(self):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise TimeoutError(self._missed(timeout)) from None
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _missed(self, timeout: float) -> str:
        tail = [f"{r.method} {r.target} {r.status} {r.outcome}" for r in self.requests[-5:]]
        kinds = [e.kind for e in self.events[-10:]]
        return f"the log did not show it within {timeout} s; {self!r}; last requests {tail}; last events {kinds}"

    # What follows is written by the server's loop thread.

    def _opened(self, exchange: Exchange) -> None:
        with self._lock:
            self._requests[exchange.id] = exchange
            if len(self._requests) > self._size:
                self._requests.pop(next(iter(self._requests)))
                self.dropped += 1
            self._tell()

    def _ended(self, exchange: Exchange) -> None:
        with self._lock:
            if exchange.id in self._requests:
                self._requests[exchange.id] = exchange.record()
            self._tell()

    def _accepted(self, identity: int, snapshot: Callable[[], ConnectionRecord]) -> None:
        with self._lock:
            self._connections[identity] = snapshot
            if len(self._connections) > self._size:
                self._connections.pop(next(iter(self._connections)))
                self.dropped += 1
            self._tell()

    def _lost(self, identity: int, record: ConnectionRecord) -> None:
        with self._lock:
            if identity in self._connections:
                self._connections[identity] = record
            self._tell()

    def _event(
        self,
        kind: str,
        connection: int,
        stream: int | None = None,
        code: int | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        event = EventRecord(
            kind=kind, time=time.monotonic(), connection=connection, stream=stream, code=code, detail=detail or {}
        )
        with self._lock:
            self._events.append(event)
            self._tell()

    def _tell(self) -> None:
        self._version += 1
        if self._waiting:
            self._changed.notify_all()
        for listener in tuple(self._listeners):
            listener()
