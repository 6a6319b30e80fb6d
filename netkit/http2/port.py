"""What an adapter gives the `http2` plugin: its stack's TLS and proxy settings, and responses made of exchanges.

Rules of this file:

- `target` answers from settings alone, without I/O, and fast: it is asked for each request.
- Where anything is not the stack's own and untouched (a mounted adapter, a mock, a SOCKS proxy), it answers None
  and the stack's transport is called: a mock never becomes real traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.options import H2Request, Http2Options
from netkit.http2.reactor import EngineStats
from netkit.messages import Request, Response

__all__ = ["Http2Port", "StackEngine", "could_not_connect"]


_DIAL_FAILURES: Final = frozenset(
    {FailureKind.DNS, FailureKind.CONNECT, FailureKind.TLS, FailureKind.CERTIFICATE, FailureKind.PROXY}
)


def could_not_connect(error: BaseException) -> bool:
    """Whether no connection could be made, other than for lack of time. Such a request goes on to the stack's own
    transport: it fails there in the stack's own words, or succeeds where only HTTP/2 was in the way."""
    return isinstance(error, TransportError) and error.verdict is Verdict.NOT_SENT and error.kind in _DIAL_FAILURES


class StackEngine(Protocol):
    """`Engine` or `SyncEngine`, as far as the plugin knows it."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class Http2Port(Protocol):
    """One session's side of HTTP/2."""

    missing: str | None
    """Why the installed version of the stack cannot carry HTTP/2, None where it can."""

    def engine(self, options: Http2Options, on_event: Callable[[str, dict[str, Any]], None]) -> StackEngine:
        """Make the engine of this kind of stack: for tasks, or for threads."""
        ...

    def target(self, request: Request, *, prior_knowledge: bool) -> H2Request | None:
        """The request as the engine takes it, or None where the stack's own transport must serve it.

        `prior_knowledge` admits http:// URLs and promises that the server speaks HTTP/2 without negotiation.
        """
        ...

    async def exchange(self, engine: Any, request: Request, target: H2Request) -> Response | None:
        """Send and wait for the head; None when the stack's own transport has to do it, nothing having been sent: the
        server speaks HTTP/1.1 only, or no connection could be made and the stack words that failure itself.

        Counts the attempt in the session's meter unless it returns None. Raises `TransportError`.
        """
        ...
