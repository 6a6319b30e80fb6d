"""The seam between the HTTP/2 server and the library that knows the protocol: ngh2, or h2 where that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple, Protocol

__all__ = [
    "BodyBytes",
    "Engine",
    "EngineError",
    "Event",
    "Happened",
    "RequestHead",
    "RequestTrailers",
    "StreamOver",
    "open_engine",
]

RawHeaders = list[tuple[bytes, bytes]]


class EngineError(Exception):
    """The client broke the protocol; what `take` still gives says so to it."""


class RequestHead(NamedTuple):
    stream: int
    headers: tuple[tuple[bytes, bytes], ...]
    end: bool


class BodyBytes(NamedTuple):
    stream: int
    data: bytes
    end: bool


class RequestTrailers(NamedTuple):
    stream: int


class StreamOver(NamedTuple):
    """The client reset a stream (`by_client`), or the engine closed it for a fault of the client's."""

    stream: int
    code: int
    by_client: bool


class Happened(NamedTuple):
    """Something for the log: `kind` as in `EventRecord`."""

    kind: str
    stream: int | None = None
    code: int | None = None
    detail: dict[str, object] = {}


Event = RequestHead | BodyBytes | RequestTrailers | StreamOver | Happened


class Engine(Protocol):
    """One HTTP/2 connection in server role, without I/O. Calls for a stream that is gone do nothing."""

    def start(self, settings: Mapping[int, int], connection_window: int) -> None: ...
    def receive(self, data: bytes) -> list[Event]:
        """Raises EngineError."""
        ...

    def take(self) -> bytes:
        """Whole frames to send; a GOAWAY or SETTINGS of the faults may be put between two results."""
        ...

    def respond(self, stream: int, headers: RawHeaders, *, end: bool) -> None: ...
    def inform(self, stream: int, headers: RawHeaders) -> None: ...
    def send(self, stream: int, data: bytes, *, end: bool) -> None: ...
    def trail(self, stream: int, headers: RawHeaders) -> None: ...
    def reset(self, stream: int, code: int) -> None: ...
    def ping(self) -> None: ...
    def change_settings(self, settings: Mapping[int, int]) -> None: ...
    def credit(self, stream: int, size: int) -> None:
        """Give back flow-control credit for bytes that were consumed."""
        ...

    def is_over(self) -> bool:
        """True when the engine has said all and wants to hear nothing more: close the connection."""
        ...

    def queued(self, stream: int) -> int:
        """Body bytes that wait for the client's window."""
        ...


def open_engine(name: str) -> Engine:
    """The engine "ngh2", "h2", or "auto": ngh2 where it is installed.

    Raises:
        ImportError: it is not installed.
    """
    if name == "ngh2" or (name == "auto" and find_spec("ngh2") is not None):
        from .engine_ngh2 import Ngh2Engine

        return Ngh2Engine()
    from .engine_h2 import H2Engine

    return H2Engine()
