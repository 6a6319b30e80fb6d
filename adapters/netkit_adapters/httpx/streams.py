"""Response bodies: each native stream with its observers, its one end, and its connection's release.

Rules of this file:

- Chunks pass one by one, as the stack delivers them; nothing is gathered unless a layer asks for it by `read()`.
- At the end of the body the native stream is closed first, then the end is told: who hears of it finds the
  connection free.
- An abandoned response is found by the garbage collector, in any thread and under any lock: its observers are told
  there, as on every stack, since callers may wait for what they hold; its connection is closed before the client's
  next attempt.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

from netkit.errors import BodyClosed, TransportError
from netkit.messages import OnChunk, OnEnd, Pace, ResponseBody
from netkit_adapters.httpx.failures import to_native
from netkit_adapters.httpx.loops import current_loop

if TYPE_CHECKING:
    from netkit_adapters.httpx.chain import Wiring

__all__ = ["AsyncBody", "NativeBody", "ReadBody", "SyncBody", "Synthetic"]

DRAIN_LIMIT: Final = 64 * 1024
"""Bytes of a declared remainder that `discard()` reads to keep a connection; more than that and it is closed."""


class NativeBody(ResponseBody):
    """What sync and async bodies share: the native stream, the headers that came with it, and its client's wiring."""

    __slots__ = ("_closed", "_headers", "_inner", "_kept", "_network", "_seen", "_wiring")

    def __init__(self, inner: Any, headers: Any, wiring: Wiring) -> None:
        # With what the base class sets: each level of constructors costs every request.
        self._on_chunk, self._on_end, self._on_release = [], [], []
        self.ended = self.released = False
        self.error = self.pace = None
        self._network: Any = None
        self._inner = inner
        self._headers = headers
        self._wiring = wiring
        self._closed = False
        self._kept: list[bytes] | None = None
        self._seen = 0

    def limit(self, pace: Pace) -> None:
        super().limit(pace)
        # httpcore decides on the limit of all waits for a body before the first: the stream below asks at each.
        network = self._network
        if self.pace is None or not self._is_alone():
            return
        read, asynchronous = network.read, self._wiring.asynchronous
        late = self._wiring.stack.core.ReadTimeout

        def paced(max_bytes: int, timeout: float | None = None) -> Any:
            left = pace.left()
            if left <= 0:
                if asynchronous:
                    return _fail(late("no time is left"))
                raise late("no time is left")
            return read(max_bytes, None if left == math.inf else left)

        network.read = paced

    def _is_alone(self) -> bool:
        """Whether it has its connection for itself: not over httpcore's own HTTP/2, nor a mock's."""
        connection = getattr(getattr(self._inner, "_httpcore_stream", None), "_stream", None)
        kind = type(getattr(connection, "_connection", None)).__name__
        return hasattr(self._network, "__dict__") and "11" in kind

    def unlimit(self) -> None:
        """The connection goes to others now."""
        if self.pace is not None and self._network is not None:
            getattr(self._network, "__dict__", {}).pop("read", None)

    def late(self, error: BaseException) -> TransportError | None:
        """What to end with instead of `error`, where that is a time-out by its pace."""
        if self.pace is None or not isinstance(error, self._wiring.stack.native.TimeoutException):
            return None
        return self.pace.failure()

    def failure(self, error: BaseException) -> BaseException:
        """The neutral error for `error`, itself where it is none of the exchange's."""
        late = self.late(error)
        if late is not None:
            late.__cause__ = error
            return late
        found = self._wiring.failed_body(error)
        if found is None:
            return error
        found.__cause__ = error
        return found

    def kept(self) -> Iterator[bytes]:
        """What a layer had read, through the observers that came after it."""
        for chunk in self._kept or ():
            passed = chunk
            for on_chunk in self._on_chunk[self._seen :]:
                passed = on_chunk(passed)
            yield passed

    def keep(self, chunks: list[bytes]) -> bytes:
        self._kept = chunks
        self._seen = len(self._on_chunk)
        return b"".join(chunks)

    def is_small(self) -> bool:
        length = self._headers.get("content-length", "")
        return length.isdigit() and int(length) <= DRAIN_LIMIT

    def __del__(self) -> None:
        if not self.ended:
            self._wiring.abandoned.append(self)
            # Callers that wait for what it holds are let in at once: whoever goes on closes it first.
            self.end(BodyClosed("abandoned"))


async def _fail(error: Exception) -> bytes:
    raise error


class SyncBody(NativeBody):
    """A body read by a thread; the per-stack class adds the native stream type."""

    __slots__ = ()

    def __iter__(self) -> Iterator[bytes]:
        if self._kept is not None:
            yield from self.kept()
            return
        try:
            for chunk in self._inner:
                yield self.chunk(chunk)
        except GeneratorExit:
            # The reader paused for good; the response's own close, or the collector, ends it.
            raise
        except BaseException as error:
            late = self.late(error)
            self.end(late or self.failure(error))
            if late is not None:
                raise to_native(self._wiring.stack, late) from error
            raise
        self._close()
        self.end()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self.unlimit()
            close = getattr(self._inner, "close", None)
            if close is not None:
                close()

    def close(self) -> None:
        try:
            self._close()
        finally:
            if not self.ended:
                self.end(BodyClosed("closed"))

    async def read(self) -> bytes:
        if self._kept is not None:
            return b"".join(self._kept)
        try:
            chunks = [self.chunk(chunk) for chunk in self._inner]
            self._close()
        except BaseException as error:
            failure = self.failure(error)
            try:
                self._close()
            finally:
                self.end(failure)
            if failure is error:
                raise
            raise failure from error
        content = self.keep(chunks)
        self.end()
        return content

    async def discard(self) -> None:
        if self.is_small() and not self.ended:
            try:
                for _ in self._inner:
                    pass
            except Exception:  # noqa: BLE001 - whoever discards wants no news of it; the connection closes below
                pass
        self.close()


class AsyncBody(NativeBody):
    """A body read by a task; the per-stack class adds the native stream type."""

    __slots__ = ("_loop",)

    def __init__(self, inner: Any, headers: Any, wiring: Wiring) -> None:
        super().__init__(inner, headers, wiring)
        self._loop = current_loop()

    def is_here(self) -> bool:
        """Whether the running loop is the one whose connection this body comes from."""
        return self._loop is current_loop()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._kept is not None:
            for chunk in self.kept():
                yield chunk
            return
        inner = self._inner.__aiter__()
        try:
            async for chunk in inner:
                yield self.chunk(chunk)
        except GeneratorExit:
            raise
        except BaseException as error:
            late = self.late(error)
            self.end(late or self.failure(error))
            if late is not None:
                raise to_native(self._wiring.stack, late) from error
            raise
        finally:
            if isinstance(inner, AsyncGenerator):
                await inner.aclose()
        await self._close()
        self.end()

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self.unlimit()
            close = getattr(self._inner, "aclose", None)
            if close is not None:
                try:
                    await close()
                except BaseException:
                    # httpcore shields its closing from anyio's cancellation, not from a task's: it stops half-way.
                    self._wiring.pool.rescue(self._inner)
                    raise

    async def aclose(self) -> None:
        try:
            await self._close()
        finally:
            if not self.ended:
                self.end(BodyClosed("closed"))

    async def read(self) -> bytes:
        if self._kept is not None:
            return b"".join(self._kept)
        try:
            chunks = [self.chunk(chunk) async for chunk in self._inner]
            await self._close()
        except BaseException as error:
            failure = self.failure(error)
            try:
                await self._close()
            finally:
                self.end(failure)
            if failure is error:
                raise
            raise failure from error
        content = self.keep(chunks)
        self.end()
        return content

    async def discard(self) -> None:
        if self.is_small() and not self.ended:
            try:
                async for _ in self._inner:
                    pass
            except Exception:  # noqa: BLE001 - whoever discards wants no news of it; the connection closes below
                pass
        await self.aclose()


class ReadBody(ResponseBody):
    """The body of a native response that came complete (mock transports make them): all of it is there at once.

    Observers are told at once; what they make of the chunk cannot change the response any more.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self.end()

    def observe(self, on_chunk: OnChunk | None = None, on_end: OnEnd | None = None) -> None:
        if on_chunk is not None:
            for chunk in self._stream:
                on_chunk(chunk)
        if on_end is not None:
            on_end(None)

    async def read(self) -> bytes:
        return b"".join(self._stream)

    async def discard(self) -> None:
        pass


class Synthetic:
    """The stream of a native response made from a layer's own answer; serves both worlds."""

    def __init__(self, body: ResponseBody, content: bytes) -> None:
        self._body = body
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self._body.chunk(self._content)
        self._body.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body.chunk(self._content)
        self._body.end()

    def close(self) -> None:
        if not self._body.ended:
            self._body.end(BodyClosed("closed"))

    async def aclose(self) -> None:
        self.close()
