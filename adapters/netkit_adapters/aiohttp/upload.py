"""Request bodies on HTTP/2: aiohttp's payloads write themselves, into a stream instead of a socket.

Rules of this file:

- A payload is not touched before the server is known to speak HTTP/2.
- It is written as aiohttp does it, in one task in its caller's context, which waits while the stream is full.
- What stops an upload is told as aiohttp tells it.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.compression_utils import ZLibCompressor

from netkit.http2.upload import HIGH, Fed

if TYPE_CHECKING:
    from aiohttp import ClientRequest

    from netkit.http2.connection import Connection
    from netkit.http2.exchange import Stream

__all__ = ["PayloadBody"]


class PayloadBody(Fed):
    """The body of `req` as the engine takes it."""

    __slots__ = ("_context", "_req", "_stream", "_waiter", "task", "writer")

    def __init__(self, req: ClientRequest) -> None:
        super().__init__(_nothing, lambda: PayloadBody(req))
        self._req = req
        self._context = contextvars.copy_context()
        self._stream: Stream | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        """The upload; None before it has begun."""
        self.writer = _StreamWriter(self, req)

    def attach(self, connection: Connection, stream: Stream) -> None:
        super().attach(connection, stream)
        self._stream = stream
        before = self._req._writer
        self.task = connection.loop.create_task(self._write(before), context=self._context)
        self._req._writer = self.task

    async def _write(self, before: asyncio.Task[None] | None) -> None:
        req, writer = self._req, self.writer
        assert req._body is not None
        if before is not None:
            # An attempt that was refused: it lets go of the payload first.
            await asyncio.wait((before,))
        try:
            await req._body.write_with_length(writer, req._get_content_length())
            await writer.write_eof()
        except OSError as error:
            if error.errno is None and isinstance(error, TimeoutError):
                self.broken(error)
            else:
                self.broken(
                    _because(aiohttp.ClientOSError(error.errno, f"Can not write request body for {req.url}"), error)
                )
        except Exception as error:  # noqa: BLE001 - the payload is the caller's code
            message = f"Failed to send bytes into the underlying connection {self._stream!r}: {error!r}"
            self.broken(_because(aiohttp.ClientConnectionError(message), error))

    async def room(self) -> None:
        """Wait while as much is queued as may be."""
        stream, joiner = self._stream, self._joiner
        assert stream is not None
        while joiner is not None and joiner.active and stream.queued >= HIGH:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def __call__(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        super().close()
        task = self.task
        if task is not None and not task.done() and task is not asyncio.current_task(task.get_loop()):
            task.cancel()


def _nothing() -> None:
    pass


def _because(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class _StreamWriter(AbstractStreamWriter):
    """What a payload writes into; compresses where the request asks for that."""

    transport = None

    def __init__(self, body: PayloadBody, req: ClientRequest) -> None:
        self._body = body
        self._req = req
        compress: Any = req.compress
        self._compressor = ZLibCompressor(encoding=compress) if compress else None
        self.output_size = 0

    async def write(self, chunk: Any) -> None:
        if self._req._traces:
            await self._req._on_chunk_request_sent(self._req.method, self._req.url, bytes(chunk))
        data = bytes(chunk)
        if self._compressor is not None:
            data = await self._compressor.compress(data)
        if data:
            self.output_size += len(data)
            self._body.push([data], False)
            await self._body.room()

    async def write_eof(self, chunk: bytes = b"") -> None:
        if chunk:
            await self.write(chunk)
        rest = b"" if self._compressor is None else self._compressor.flush()
        self.output_size += len(rest)
        self._body.push([rest] if rest else [], True)

    async def drain(self) -> None:
        await self._body.room()

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        self._compressor = ZLibCompressor(encoding=encoding)

    def enable_chunking(self) -> None:
        pass

    async def write_headers(self, status_line: str, headers: Any) -> None:
        pass
