"""What a rule sees of a stack: one neutral session, whatever is below.

Rules of this file:

- Every method is a coroutine. A synchronous stack's never suspends, so `run_sync` drives the same rule in a thread.
- Nothing is hidden: what the stack raises passes as it is, and `native` is the stack's own object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

__all__ = ["CallOptions", "Credentials", "Face", "Observation", "OpenOptions", "Session", "Stream", "Upload"]


class Credentials(NamedTuple):
    """How a call authenticates itself."""

    scheme: Literal["basic", "digest"]
    user: str
    password: str


class Upload(NamedTuple):
    """One part of a multipart body."""

    name: str
    content: bytes
    content_type: str


class CallOptions(TypedDict, total=False):
    """What a call may say; a face passes it on in its stack's own terms.

    `content` is the body, or a function that opens a fresh iterator of chunks (a one-shot body to the stack).
    `timeout` in seconds bounds each wait for the server. `verify`, `cert` and `proxy` only where the face lists
    them in `per_call`.
    """

    headers: Mapping[str, str]
    content: bytes | Callable[[], Iterable[bytes]]
    json: Any
    form: Mapping[str, str]
    files: Mapping[str, Upload]
    auth: Credentials
    follow: bool
    timeout: float
    verify: bool | str
    cert: str
    proxy: str


class OpenOptions(TypedDict, total=False):
    """What a session may be opened with. `verify` is a switch or the path of a CA file, `cert` the path of one PEM
    file with certificate and key, `proxy` a URL."""

    verify: bool | str
    cert: str
    proxy: str


@dataclass(frozen=True)
class Observation:
    """What a caller got: every header pair as it came, the decoded body, and what the stack says about the call."""

    status: int
    headers: tuple[tuple[str, str], ...]
    content: bytes
    url: str
    http_version: str
    history: tuple[tuple[int, str], ...] = ()
    """Status and URL of each answer that led here, oldest first."""
    cookies: Mapping[str, str] = field(default_factory=dict)
    """The session's cookies after the call."""
    elapsed: timedelta | None = None
    """None where the stack does not measure it."""

    def values(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.content)


class Stream(ABC):
    """An answer whose body is still on its way."""

    status: int
    _buffer: bytes = b""

    @abstractmethod
    async def chunk(self) -> bytes:
        """The next piece as the stack hands it out; empty at the end."""

    @abstractmethod
    async def close(self) -> None:
        """Leave it."""

    async def event(self) -> bytes:
        """The next server-sent event, without the blank line; empty at the end."""
        while b"\n\n" not in self._buffer:
            piece = await self.chunk()
            if not piece:
                rest, self._buffer = self._buffer, b""
                return rest
            self._buffer += piece
        event, _, self._buffer = self._buffer.partition(b"\n\n")
        return event


class Session(ABC):
    """One session or client of a stack."""

    native: Any

    @abstractmethod
    async def request(self, method: str, url: str, **options: Any) -> Observation:
        """One call, body read. Takes `CallOptions`."""

    @abstractmethod
    async def open_stream(self, method: str, url: str, **options: Any) -> Stream:
        """One call whose body the caller reads. Takes `CallOptions`."""

    @abstractmethod
    async def close(self) -> None:
        """The stack's own close."""

    @asynccontextmanager
    async def stream(self, method: str, url: str, **options: Any) -> AsyncIterator[Stream]:
        """`open_stream`, closed at the end."""
        stream = await self.open_stream(method, url, **options)
        try:
            yield stream
        finally:
            await stream.close()


@dataclass(frozen=True)
class Face:
    """One way to use a stack: `name` ("httpx-async"), `stack` ("httpx"), and how to open a session.

    `open(build, options)`: `build` is "native" for the stack's own class, else keyword arguments for netkit's.
    """

    name: str
    stack: str
    is_async: bool
    per_call: frozenset[str]
    """Which of "verify", "cert", "proxy" a single call may set."""
    opener: Callable[[type[Any], Mapping[str, Any], OpenOptions], Session]
    native_class: Callable[[], type[Any]]
    netkit_class: Callable[[], type[Any]]

    def open(self, plugins: Mapping[str, Any] | None, options: OpenOptions) -> Session:
        """A session of netkit's class with exactly these plugins; of the stack's own class for None."""
        from netkit.config import Config

        if plugins is None:
            return self.opener(self.native_class(), {}, options)
        return self.opener(self.netkit_class(), {"plugins": plugins, "config": Config()}, options)

    def __str__(self) -> str:
        return self.name
