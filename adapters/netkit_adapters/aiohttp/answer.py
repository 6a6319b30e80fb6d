"""A real `aiohttp.ClientResponse` for the answer of an exchange.

Rules of this file:

- An answer that has arrived whole is there whole: no connection, no timer, nothing to wait for.
- All private use of aiohttp's responses and streams for HTTP/2 stands here and in `stream`; `SUPPORTED` says whether
  it fits.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientRequest, ClientResponse, hdrs
from aiohttp.compression_utils import HAS_BROTLI
from aiohttp.http import HttpVersion
from aiohttp.http_parser import DeflateBuffer
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from netkit.headers import Headers
from netkit.messages import Response
from netkit_adapters.aiohttp.body import CLOSED
from netkit_adapters.aiohttp.native import native_response
from netkit_adapters.aiohttp.stream import ExchangeReader, StreamBody, StreamConnection

if TYPE_CHECKING:
    from netkit.http2 import Exchange

__all__ = ["SUPPORTED", "respond"]

HTTP2: Final = HttpVersion(2, 0)
_EMPTY: Final = frozenset({hdrs.METH_HEAD})
_REASONS: Final = {int(status): status.phrase for status in HTTPStatus}
_ENCODINGS: Final = frozenset({"gzip", "deflate", "zstd"} | ({"br"} if HAS_BROTLI else set()))


def _fits() -> bool:
    """Whether aiohttp's private layout is the one that this file was written for (3.14's)."""
    made = frozenset(inspect.signature(ClientResponse.__init__).parameters)
    slots = frozenset(getattr(StreamReader, "__slots__", ()))
    return (
        made >= {"writer", "continue100", "timer", "request_info", "traces", "loop", "session", "stream_writer"}
        and slots >= {"_buffer", "_buffer_offset", "_cursor", "_eof", "_eof_callbacks", "_size", "_timer", "_waiter"}
        and "max_decompress_size" in inspect.signature(DeflateBuffer.__init__).parameters
        and hasattr(ClientResponse, "_response_eof")
        and hasattr(ClientResponse, "_raw_cookie_headers")
        and CLOSED is not None
    )


SUPPORTED: Final = _fits()


def respond(
    exchange: Exchange,
    req: ClientRequest,
    *,
    writer: asyncio.Task[None] | None,
    stream_writer: Any,
    auto_decompress: bool,
    read_bufsize: int,
) -> Response:
    """The neutral response to `req`, with the native one inside it."""
    native = native_response(req, writer=writer, stream_writer=stream_writer)
    request: Any = req
    request.response = native
    fields = exchange.headers
    try:
        headers = CIMultiDict([(name.decode(), value.decode()) for name, value in fields])
    except UnicodeDecodeError:
        headers = CIMultiDict([(_text(name), _text(value)) for name, value in fields])
    status = exchange.status
    native.version = HTTP2
    native.status = status
    native.reason = _REASONS.get(status, "")
    native._headers = CIMultiDictProxy(headers)
    native._raw_headers = tuple(fields)
    if "set-cookie" in headers:
        native._raw_cookie_headers = tuple(headers.getall("set-cookie"))
    body = StreamBody(native)
    if exchange.ended and exchange.error is None and not exchange.chunks:
        native.content = EMPTY_PAYLOAD
        native._closed = True
        native._cleanup_writer()
        body.end()
    else:
        _attach(native, body, exchange, req, auto_decompress, read_bufsize)
    return Response(
        status,
        lambda: Headers(native.headers.items()),
        body,
        extensions={
            "http_version": "HTTP/2",
            "connection_id": exchange.connection_id,
            "stream_id": exchange.stream_id,
        },
        native=native,
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _attach(
    native: ClientResponse,
    body: StreamBody,
    exchange: Exchange,
    req: ClientRequest,
    auto_decompress: bool,
    read_bufsize: int,
) -> None:
    """Give `native` its stream; one that has arrived whole is there whole, and has no connection any more."""
    reader = native.content = ExchangeReader(exchange, body, read_bufsize, req)
    encoding = native._headers.get("content-encoding") if auto_decompress else None
    if encoding is not None and req.method not in _EMPTY and (encoding := encoding.lower()) in _ENCODINGS:
        reader._decoder = DeflateBuffer(reader, encoding, max_decompress_size=read_bufsize)
    elif exchange.ended and exchange.error is None:
        size = sum(map(len, exchange.chunks))
        if size <= reader._high_water:
            reader._buffer.extend(exchange.chunks)
            exchange.chunks.clear()
            if exchange.held:
                exchange.connection.consumed(exchange, size)  # type: ignore[union-attr]
            reader._size = reader.total_bytes = size
            reader._eof = True
    if reader._eof or (exchange.ended and exchange.error is None):
        native._closed = True
        native._cleanup_writer()
        body.release()
        return
    native._closed = False
    native._connection = StreamConnection(exchange, req)
    reader._eof_callbacks.append(native._response_eof)
    reference = weakref.ref(reader)

    def arrived(error: BaseException | None) -> None:
        waiting = reference()
        if waiting is not None:
            waiting.arrived(error)

    exchange.on_end(arrived)
