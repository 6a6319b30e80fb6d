"""One open connection as tests hold it, from any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["ConnectionHandle"]


class ConnectionHandle:
    """One open connection, from any thread: each method acts in the server's loop and returns when it is done."""

    def __init__(self, connection: Connection, call: Callable[[Callable[[], None]], None]) -> None:
        self._connection = connection
        self._call = call

    def __repr__(self) -> str:
        return f"<ConnectionHandle {self._connection!r}>"

    def close(self) -> None:
        """close_notify and FIN."""
        self._call(self._connection.close)

    def half_close(self) -> None:
        """FIN, and go on reading."""
        self._call(self._connection.half_close)

    def reset(self) -> None:
        """TCP RST."""
        self._call(self._connection.reset)

    def black_hole(self) -> None:
        """Read and write nothing any more."""
        self._call(self._connection.black_hole)

    def write_raw(self, data: bytes) -> None:
        """Bytes past the protocol (TLS is still put around them)."""
        self._call(lambda: self._connection.write_raw(data))

    def goaway(self, code: int = 0, last_stream: int | None = None, *, debug: bytes = b"") -> None:
        """HTTP/2 GOAWAY; `last_stream` None means the last one received."""
        self._call(lambda: self._connection.goaway(code, last_stream, debug=debug))

    def settings(self, settings: Mapping[int, int]) -> None:
        """HTTP/2 SETTINGS by number, for instance `{3: 1}` for MAX_CONCURRENT_STREAMS."""
        self._call(lambda: self._connection.settings(settings))

    def ping(self) -> None:
        """HTTP/2 PING; the answer shows in the log as "ping_acked"."""
        self._call(self._connection.ping)
