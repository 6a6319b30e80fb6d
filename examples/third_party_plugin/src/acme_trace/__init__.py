"""A trace header on every request (W3C Trace Context), so that a GPU server's spans join those of its caller.

Example, in a project's pyproject.toml::

    [tool.netkit.trace]
    sampled = false

Order: outside `retry`, one trace spans all attempts of a call; inside it, each attempt has a trace of its own.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from netkit import Context, Layer, Request, Response, Send, hookimpl

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """`header` carries the trace; `sampled` asks the server to record it."""

    header: str = "traceparent"
    sampled: bool = True


def make(options: Options, context: Context) -> Layer:
    flags = "01" if options.sampled else "00"

    async def trace(request: Request, send: Send) -> Response:
        if options.header in request.headers:  # the caller has a trace of its own
            return await send(request)
        parent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{flags}"
        return await send(request.replace(headers=request.headers.add(options.header, parent)))

    return trace


@hookimpl
def netkit_register(register) -> None:  # type: ignore[no-untyped-def]
    register("trace", make, options=Options, request_headers=("traceparent",), summary="adds a traceparent header")
