"""Making an `aiohttp.ClientResponse` for a request: the one place that knows what its constructor takes."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final

from aiohttp import ClientRequest, ClientResponse

__all__ = ["TAKES_WRITER", "Written", "native_response"]

TAKES_WRITER: Final = "stream_writer" in inspect.signature(ClientResponse.__init__).parameters
"""From aiohttp 3.14 on."""


class Written:
    """What a response asks of the writer of a request that has been sent: how many bytes that were."""

    __slots__ = ("output_size",)

    transport: Final = None

    def __init__(self, output_size: int = 0) -> None:
        self.output_size = output_size


_NOTHING: Final = Written()


def native_response(
    req: ClientRequest, *, writer: asyncio.Task[None] | None = None, stream_writer: Any = None
) -> ClientResponse:
    """A response to `req` that has no head yet. `writer` is the task that still sends the body, `stream_writer` what
    it sends through, or a `Written`; None: nothing was written."""
    extra: dict[str, Any] = {}
    if TAKES_WRITER:
        extra["stream_writer"] = _NOTHING if stream_writer is None else stream_writer
    return req.response_class(
        req.method,
        req.original_url,
        writer=writer,
        continue100=None,
        timer=req._timer,
        request_info=req.request_info,
        traces=req._traces,
        loop=req.loop,
        session=req._session,
        **extra,
    )
