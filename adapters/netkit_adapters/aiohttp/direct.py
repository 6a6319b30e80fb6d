"""Sending a small body that is in memory at once, head and body in one write.

aiohttp sends every body in a task beside the one that waits for the answer. On Python 3.11 that is one more turn of
the loop for each POST; later versions start the task eagerly and still pay for it. A few KiB in memory are written
in one step that cannot wait, so the caller's own task takes it.

Rules of this file:

- Only what cannot wait and is not watched goes this way. Traces, upload trackers, 100-continue, compression, chunks,
  proxies, a length that the user set: all of that is aiohttp's, and so is a connection that is going down.
- The bytes on the wire are aiohttp's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import ClientConnectionError, ClientRequest, ClientResponse, client_reqrep, hdrs, http_writer
from aiohttp.http import HttpVersion11
from aiohttp.payload import BytesPayload, JsonPayload, StringPayload

from netkit_adapters.aiohttp.native import TAKES_WRITER, Written, native_response

if TYPE_CHECKING:
    from aiohttp.connector import Connection

__all__ = ["DirectRequest", "send_directly"]

MOST: Final = 32768
"""Bytes of a body that is written at once. aiohttp's writer waits for the socket beyond 64 KiB."""

_IN_MEMORY: Final = frozenset({BytesPayload, JsonPayload, StringPayload})
_send: Final = ClientRequest.send
_write: Final = ClientRequest.write_bytes
_writer: Final = client_reqrep.StreamWriter  # type: ignore[attr-defined]
_NEEDED: Final = frozenset({"_body", "_continue", "response", "close", "terminate"})

SUPPORTED: Final = (
    frozenset(dir(ClientRequest)) >= _NEEDED and hasattr(http_writer, "_serialize_headers") and TAKES_WRITER
)
"""Whether aiohttp's private layout is the one that this file was written for (3.14's)."""


def send_directly(req: ClientRequest) -> None:
    """Have `req`, which is on its way to the wire, sent by this module; not where its class is somebody's own, or a
    mocking library has taken hold of how requests are sent."""
    if (
        type(req) is ClientRequest
        and type(req._body) in _IN_MEMORY
        and SUPPORTED
        and ClientRequest.send is _send
        and ClientRequest.write_bytes is _write
        and client_reqrep.StreamWriter is _writer  # type: ignore[attr-defined]
        and "send" not in req.__dict__
        and "write_bytes" not in req.__dict__
    ):
        req.__class__ = DirectRequest


class DirectRequest(ClientRequest):
    """A native request whose class was changed on its way to the wire; see this module."""

    async def send(self, conn: Connection) -> ClientResponse:
        body = self._body
        protocol = conn.protocol
        transport = None if protocol is None else protocol.transport
        headers = self.headers
        if (
            type(body) not in _IN_MEMORY  # A middleware may have changed it.
            or type(body._value) is not bytes  # type: ignore[union-attr]
            or not 0 < body._size <= MOST  # type: ignore[union-attr, operator]
            or transport is None
            or transport.is_closing()
            or protocol.writing_paused  # type: ignore[union-attr]
            or self._continue is not None
            or self._traces
            or getattr(self, "_upload_tracker", None) is not None
            or self.compress
            or self.chunked is not None
            or self.proxy
            or self.version is not HttpVersion11
            or headers.get(hdrs.CONTENT_LENGTH) != str(body._size)  # type: ignore[union-attr]
            or hdrs.CONTENT_TYPE not in headers
            or conn._connector.force_close
            or self.method == hdrs.METH_CONNECT
        ):
            return await super().send(conn)
        head = http_writer._serialize_headers(f"{self.method} {self.url.raw_path_qs} HTTP/1.1", headers)
        try:
            transport.write(head + body._value)  # type: ignore[union-attr]
        except Exception as error:
            conn.close()
            raise ClientConnectionError(f"Failed to send bytes into the underlying connection: {error!r}") from error
        protocol.start_timeout()  # type: ignore[union-attr]
        native: ClientResponse = native_response(self, stream_writer=Written(len(head) + body._size))  # type: ignore[union-attr, operator]
        self.response = native
        return native
