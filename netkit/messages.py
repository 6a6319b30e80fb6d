"""Requests and responses as every stack's layers see them.

Example::

    async def tenant(request, send):
        return await send(request.replace(headers=request.headers.set("X-Tenant", "a")))

Rules of this file:

- A `Request` never changes: a layer makes a changed copy, and an adapter rebuilds only what changed, so an
  unaffected request leaves byte for byte as its stack would have sent it.
- A `Response` lives until its body has ended, was closed, or was given up. Whoever holds something for the
  length of an exchange lets it go in `observe(on_end=…)`, not when the status arrives.
- A layer never iterates a body. It observes chunks, or awaits `read()` when it truly needs all of it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import msgspec

from netkit.errors import BodyClosed, TransportError
from netkit.headers import Headers
from netkit.urls import split_url

__all__ = [
    "NO_BODY",
    "OF_ONE_CALL",
    "Body",
    "BytesResponseBody",
    "Headers",
    "Pace",
    "Request",
    "Response",
    "ResponseBody",
    "Timeout",
]

log = logging.getLogger("netkit")

Chunks: TypeAlias = "bytes | Iterable[bytes] | AsyncIterable[bytes]"
OnChunk: TypeAlias = Callable[[bytes], bytes]
_new: Final = object.__new__
OnEnd: TypeAlias = Callable[[BaseException | None], None]


class Timeout(msgspec.Struct, frozen=True):
    """Limits of one attempt in seconds; None means no limit.

    `connect` covers DNS, TCP and TLS; `read` the longest silence while waiting for bytes; `write` the longest
    stall while sending; `pool` the wait for a free connection; `total` the whole attempt, where a stack has one.
    """

    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None
    total: float | None = None

    def at_most(self, seconds: float) -> Timeout:
        """A copy in which no limit exceeds `seconds`, for a layer that has no more time to give an attempt."""

        def cut(limit: float | None) -> float:
            return seconds if limit is None else min(limit, seconds)

        return Timeout(cut(self.connect), cut(self.read), cut(self.write), cut(self.pool), cut(self.total))


class Body:
    """A request body: bytes, something that can be opened again, or a one-shot stream.

    `size` is the length in bytes, None when unknown. `replayable` says whether `open()` may be called more than
    once and yields the same bytes each time; a one-shot body is never resent, coalesced or cached.
    """

    __slots__ = ("_factory", "content", "replayable", "size")

    def __init__(
        self, content: bytes | None, factory: Callable[[], Chunks] | None, size: int | None, replayable: bool
    ) -> None:
        self.content = content
        """The whole body where it is already in memory, else None."""
        self._factory = factory
        self.size = size
        self.replayable = replayable

    @classmethod
    def of(cls, content: bytes) -> Body:
        """A body held in memory."""
        return cls(content, None, len(content), True)

    @classmethod
    def reopenable(cls, factory: Callable[[], Chunks], size: int | None = None) -> Body:
        """A body that `factory` opens from its beginning for each attempt (a file seeks back to where it stood)."""
        return cls(None, factory, size, True)

    @classmethod
    def one_shot(cls, stream: Iterable[bytes] | AsyncIterable[bytes], size: int | None = None) -> Body:
        """A body that can be sent once: a generator, a pipe, a file that cannot seek."""
        return cls(None, lambda: stream, size, False)

    def open(self) -> Chunks:
        """The bytes, or a fresh iterable of chunks (synchronous or not, as its stack gave it)."""
        if self.content is not None:
            return self.content
        assert self._factory is not None
        return self._factory()

    def __repr__(self) -> str:
        kind = "bytes" if self.content is not None else "reopenable" if self.replayable else "one-shot"
        return f"<Body {kind} size={'unknown' if self.size is None else self.size}>"


NO_BODY: Final = Body.of(b"")

OF_ONE_CALL: Final = frozenset({"call", "deadline", "hops"})
"""Keys of a request's extensions that mean its caller's own call: not for what is sent on behalf of several."""


class _Fields:
    """A request's fields while it is made: plain attributes, since guarded ones cost ten times as much to set."""

    __slots__ = ("_headers", "body", "extensions", "method", "native", "timeout", "url")


class Request(_Fields):
    """One request as it would go on the wire; immutable, `replace()` makes a changed copy.

    `timeout` holds the limits of one attempt. `extensions` carries what does not fit, keyed and documented in
    docs/writing-a-plugin.md; `native` is the adapter's own and not for layers.
    """

    __slots__ = ()

    _headers: Headers | Callable[[], Headers]
    method: str
    url: str
    body: Body
    timeout: Timeout
    extensions: Mapping[str, Any]
    native: Any

    def __new__(
        cls,
        method: str,
        url: str,
        headers: Headers | Callable[[], Headers] | Iterable[tuple[str, str]] = (),
        body: Body = NO_BODY,
        timeout: Timeout = Timeout(),  # noqa: B008 - immutable
        extensions: Mapping[str, Any] | None = None,
        native: Any = None,
    ) -> Request:
        made: Any = _new(_Fields)
        made.method = method
        made.url = url
        made._headers = headers if callable(headers) or isinstance(headers, Headers) else Headers(headers)
        made.body = body
        made.timeout = timeout
        made.extensions = {} if extensions is None else extensions
        made.native = native
        made.__class__ = cls
        request: Request = made
        return request

    @property
    def headers(self) -> Headers:
        """The headers in wire order. Adapters hand them over unconverted; the first reader pays for it."""
        headers = self._headers
        if isinstance(headers, Headers):
            return headers
        loaded = headers()
        object.__setattr__(self, "_headers", loaded)
        return loaded

    @property
    def channel(self) -> tuple[str, ...]:
        """What tells two ways to one URL apart: TLS verification, client certificate, proxy. Equal for equal ways;
        () where nothing but the URL decides. Whoever shares or keeps an answer makes it part of the key. It may hold
        a proxy's password: for digests only."""
        describe: Callable[[], tuple[str, ...]] | None = getattr(self.native, "channel", None)
        return () if describe is None else describe()

    def detach(self, *, keep_call: bool = False) -> Request:
        """A copy that no longer belongs to its caller's call, to be sent through `runtime.spawn` for several callers.

        It can be sent although the call has ended, was cancelled or ran out of time; its attempts count for the
        session, and for no call. `timeout` stays, and is all that limits it. The body must be in memory.

        `keep_call`: it still is the caller's own call, which others may share: attempts count for it, and the stack's
        own observers of the call (traces) see it.
        """
        request = self
        if not keep_call:
            request = self.replace(extensions={k: v for k, v in self.extensions.items() if k not in OF_ONE_CALL})
        detach: Callable[[Request, bool], Request] | None = getattr(self.native, "detach", None)
        return request if detach is None else detach(request, keep_call)

    def replace(self, **changes: Any) -> Request:
        """A copy with `changes` to method, url, headers, body, timeout or extensions."""
        unknown = changes.keys() - {"method", "url", "headers", "body", "timeout", "extensions"}
        if unknown:
            raise TypeError(f"Request has no field {min(unknown)!r}")
        return Request(
            changes.get("method", self.method),
            changes.get("url", self.url),
            changes.get("headers", self._headers),
            changes.get("body", self.body),
            changes.get("timeout", self.timeout),
            changes.get("extensions", self.extensions),
            self.native,
        )

    def extend(self, **extensions: Any) -> Request:
        """A copy with these extensions added."""
        return self.replace(extensions={**self.extensions, **extensions})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Request is immutable: use replace({name}=…)")

    def __repr__(self) -> str:
        scheme, _, host, target = split_url(self.url)
        return f"<Request {self.method} {scheme}://{host}{target.partition('?')[0]}>"


class Pace(Protocol):
    """How long a body may keep its reader waiting. Asked by adapters before each wait and after each time-out."""

    read: float | None
    """The call's own limit of silence in seconds, None where it has none. `left` takes it into account."""

    def left(self) -> float:
        """Seconds that the wait beginning now may last; infinite without a limit, 0 or less when time is up."""
        ...

    def failure(self) -> TransportError | None:
        """What to end the body with, now that a wait has lasted for that long or no time is left; None where it is
        the call's own limit, whose error is the stack's."""
        ...


class ResponseBody(ABC):
    """The body side of a response, implemented by adapters; keeps the observers and the one end of its life.

    Observers run in the order in which they were added: innermost layer first.
    """

    __slots__ = ("_on_chunk", "_on_end", "_on_release", "ended", "error", "pace", "released")

    decoded: ClassVar[bool] = False
    """Whether `read()` gives what Content-Encoding (gzip) stood for, as requests and aiohttp do, and not the body as
    it came. `response.extensions["encoded"]` overrules it."""

    def __init__(self) -> None:
        self.pace: Pace | None = None
        """Set by `limit`."""
        self._on_chunk: list[OnChunk] = []
        self._on_end: list[OnEnd] = []
        self._on_release: list[Callable[[], None]] = []
        self.ended = False
        self.released = False
        self.error: BaseException | None = None

    def observe(self, on_chunk: OnChunk | None = None, on_end: OnEnd | None = None) -> None:
        """Register `on_chunk(chunk) -> chunk`, `on_end(error | None)`; each end is told exactly once.

        Chunks are the body as the stack delivers it, after transfer decoding; content decoding (gzip) has
        already been done only where the stack does it while parsing (aiohttp). `error` is None for a complete
        body, `BodyClosed` when the caller left early, else the failure. A body that has ended tells at once.
        """
        if on_chunk is not None:
            self._on_chunk.append(on_chunk)
            self._observed()
        if on_end is not None:
            if self.ended:
                on_end(self.error)
            else:
                self._on_end.append(on_end)
                self._observed()

    def on_release(self, callback: Callable[[], None]) -> None:
        """Call back once, when the exchange no longer occupies its connection (at the latest at the end)."""
        if self.released:
            callback()
        else:
            self._on_release.append(callback)
            self._observed()

    def limit(self, pace: Pace) -> None:
        """Have `pace` bound each wait for a piece of the body, in place of the call's own limits."""
        if not self.ended:
            self.pace = pace
            self._observed()

    def _observed(self) -> None:
        """Called when an observer was added: the adapter starts to watch the native body."""

    def chunk(self, data: bytes) -> bytes:
        """Adapters pass each chunk through here on its way to the caller."""
        for on_chunk in self._on_chunk:
            data = on_chunk(data)
        return data

    def release(self) -> None:
        """Adapters call this when the connection is free for the next request. Later calls do nothing."""
        if not self.released:
            self.released = True
            callbacks, self._on_release = self._on_release, []
            for callback in callbacks:
                _tell(callback)

    def end(self, error: BaseException | None = None) -> None:
        """Adapters call this at body end, failure or close. Later calls do nothing."""
        if not self.ended:
            self.ended = True
            self.error = error
            self.release()
            callbacks, self._on_end = self._on_end, []
            for on_end in callbacks:
                _tell(on_end, error)

    @abstractmethod
    async def read(self) -> bytes:
        """All of it, kept so that the caller can still read it. Raises `TransportError`."""

    @abstractmethod
    async def discard(self) -> None:
        """Throw the rest away so that the connection can serve the next request; closes it if that is cheaper."""


def _tell(callback: Callable[..., object], *args: Any) -> None:
    try:
        callback(*args)
    except Exception:
        # One observer's fault must not keep the others from letting go of what they hold.
        log.exception("netkit: an observer of a response failed")


class BytesResponseBody(ResponseBody):
    """The body of a response that netkit made itself."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content

    async def read(self) -> bytes:
        return self.content

    async def discard(self) -> None:
        self.end(BodyClosed("discarded"))


class Response:
    """An answer: status, headers, body, and the native response where there is one.

    `extensions` may hold `http_version` ("HTTP/1.1", "HTTP/2"), `connection_id`, `stream_id`, `attempts`,
    `coalesced`, `cached`; adapters put them on the native response where it has a place for them.
    """

    __slots__ = ("_headers", "body", "extensions", "native", "status")

    def __init__(
        self,
        status: int,
        headers: Headers | Callable[[], Headers],
        body: ResponseBody,
        *,
        extensions: dict[str, Any] | None = None,
        native: Any = None,
    ) -> None:
        self.status = status
        self._headers = headers
        self.body = body
        self.extensions: dict[str, Any] = {} if extensions is None else extensions
        self.native = native

    @classmethod
    def of(
        cls,
        status: int,
        headers: Headers | Iterable[tuple[str, str]] = (),
        content: bytes = b"",
        **extensions: Any,
    ) -> Response:
        """An answer that a layer gives by itself; the adapter makes a native response of it."""
        headers = headers if isinstance(headers, Headers) else Headers(headers)
        return cls(status, headers, BytesResponseBody(content), extensions=extensions)

    @property
    def headers(self) -> Headers:
        """The headers in wire order."""
        headers = self._headers
        if not isinstance(headers, Headers):
            headers = self._headers = headers()
        return headers

    def observe(self, on_chunk: OnChunk | None = None, on_end: OnEnd | None = None) -> None:
        """See `ResponseBody.observe`."""
        self.body.observe(on_chunk, on_end)

    async def read(self) -> bytes:
        """The whole body, still readable by the caller afterwards."""
        return await self.body.read()

    async def discard(self) -> None:
        """Give the answer up: its connection is freed, or closed where draining would cost more."""
        await self.body.discard()

    def __repr__(self) -> str:
        state = "ended" if self.body.ended else "open"
        return f"<Response {self.status} {state}>"
