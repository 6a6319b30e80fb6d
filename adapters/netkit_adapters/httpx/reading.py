"""Answers that have arrived whole are read in one step.

The stacks' own reading passes a body through four generators and a decoder; a small answer over HTTP/2 is here in one
piece when its head is. Only `send(stream=False)`, which reads at once, comes here; everything encoded, still arriving
or of another class is read by the stack.

Rules of this file:

- The response is left as the stack's own reading leaves it. That this is so is tried at import; where it is not, this
  is never done.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netkit_adapters.httpx.stack import Stack

__all__ = ["Reading"]


class Reading:
    """How one stack's responses are read, as it was at import. `exchanged` are the bodies, for threads and tasks."""

    def __init__(self, stack: Stack, exchanged: tuple[type, type]) -> None:
        native = stack.native
        self._response: Any = native.Response
        self._reads = (native.Response.read, native.Response.aread)
        self._closes = (native.Response.close, native.Response.aclose)
        self._sends = tuple(getattr(client, "send", None) for client in (stack.client, stack.async_client))
        client: Any = import_module(f"{stack.name}._client")
        self._bound = tuple(getattr(client, f"Bound{world}Stream", None) for world in ("Sync", "Async"))
        self._exchanged: Any = exchanged
        self._works = None not in self._bound and self._is_right(stack)

    def applies(self, send: Any, *, asynchronous: bool) -> bool:
        """Whether `send`, bound to its client, is the stack's own, and so is what it does then."""
        response = self._response
        return (
            self._works
            and getattr(send, "__func__", None) is self._sends[asynchronous]
            and (response.aread if asynchronous else response.read) is self._reads[asynchronous]
            and (response.aclose if asynchronous else response.close) is self._closes[asynchronous]
        )

    def take(self, response: Any, *, asynchronous: bool) -> bool:
        """Read the whole body of `response`, whose stream is then to be closed. False: the stack has to read it."""
        stream = response.stream
        if type(response) is not self._response or type(stream) is not self._bound[asynchronous]:
            return False
        body: Any = stream._stream
        if (
            type(body) is not self._exchanged[asynchronous]
            or not body.is_whole()
            or response.is_closed
            or _is_encoded(response.headers.raw)
        ):
            return False
        self._fill(response, body.take())
        return True

    @staticmethod
    def _fill(response: Any, content: bytes) -> None:
        response.is_stream_consumed = True
        response._num_bytes_downloaded = len(content)
        response._content = content
        response.is_closed = True

    def _is_right(self, stack: Stack) -> bool:
        """Whether a response filled here looks as one that the stack has read."""
        read, filled = (self._response(200, stream=stack.byte_stream(b"abc")) for _ in range(2))
        read.read()
        self._fill(filled, b"abc")
        ours, own = filled.__dict__, read.__dict__
        return {k: v for k, v in own.items() if k not in ("_decoder", "stream", "headers")} == {
            k: v for k, v in ours.items() if k not in ("stream", "headers")
        }


def _is_encoded(fields: list[tuple[bytes, bytes]]) -> bool:
    for name, _ in fields:  # noqa: SIM110 - a generator costs more than what it asks
        if len(name) == 16 and name.lower() == b"content-encoding":
            return True
    return False
