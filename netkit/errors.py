"""The error tree, and the verdict that says whether a failed request may be sent again.

::

    NetkitError
    ├── ConfigError               (also ValueError) a setting is wrong; names file, key and the closest match
    ├── PluginError               a plugin is missing, broken, or awaited something foreign
    ├── TransportError            a request failed; carries kind, verdict and the native cause
    │   ├── PoolTimeout           no free connection within acquire_timeout
    │   │   └── QueueFull         more than max_queue callers wait already
    │   ├── CircuitOpen           the breaker refuses; carries the time until the next probe
    │   └── DeadlineExceeded      the call's own time budget is spent
    ├── BatchError                a merged answer cannot be split safely
    └── ImageError                a picture cannot be read or is too large

Rules of this file:

- Inside the chain every failure of an exchange is a `TransportError`; the native exception is its `__cause__`.
- Adapters translate at the edge: callers see their stack's own exception, or, where netkit itself decided,
  a class that is both the netkit error and the stack's native type.
- No message contains a header value, a body, or a URL's query or password.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = [
    "BatchError",
    "BodyClosed",
    "CircuitOpen",
    "ConfigError",
    "DeadlineExceeded",
    "FailureKind",
    "ImageError",
    "NetkitError",
    "PluginError",
    "PoolTimeout",
    "QueueFull",
    "TransportError",
    "Verdict",
]


class Verdict(Enum):
    """How far a failed request can have got; decides whether it may be sent again (RFC 9110 section 9.2.2)."""

    NOT_SENT = "not_sent"
    """No byte of it left this process on a usable connection: any method may be sent again."""
    REFUSED = "refused"
    """The server promised not to process it (RFC 9113 section 8.7): any method may be sent again."""
    AMBIGUOUS = "ambiguous"
    """It may or may not have run: only idempotent, keyed or `pure` requests may be sent again."""
    PROCESSED = "processed"
    """An answer began: never sent again behind the caller's back."""


class FailureKind(Enum):
    """What failed, in the terms all stacks share."""

    DNS = "dns"
    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    CERTIFICATE = "certificate"
    PROXY = "proxy"
    POOL = "pool"
    WRITE = "write"
    WRITE_TIMEOUT = "write_timeout"
    READ_TIMEOUT = "read_timeout"
    DISCONNECTED = "disconnected"
    RESET = "reset"
    PROTOCOL = "protocol"
    BODY = "body"
    REFUSED = "refused"
    CIRCUIT = "circuit"
    DEADLINE = "deadline"
    OTHER = "other"


class NetkitError(Exception):
    """Parent of everything netkit itself raises."""


class ConfigError(NetkitError, ValueError):
    """A setting is wrong. The message is one line: where, which key, what is wrong, the closest valid name."""


class PluginError(NetkitError):
    """A plugin cannot be loaded, broke a contract, or awaited what its runtime does not own."""


class TransportError(NetkitError):
    """One exchange failed.

    `kind` says what failed, `verdict` whether the request can have reached the server, `attempts` how many
    times it was sent before netkit gave up. `native` is the exception that the caller has to see instead, where the
    stack itself raised one; what lies beneath (an OSError, a TLS error) is the `__cause__`.
    """

    kind: FailureKind = FailureKind.OTHER
    verdict: Verdict = Verdict.AMBIGUOUS
    attempts: int = 0

    def __init__(
        self,
        message: str = "",
        *,
        kind: FailureKind | None = None,
        verdict: Verdict | None = None,
        native: BaseException | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind
        if verdict is not None:
            self.verdict = verdict
        self.native = native
        self.details = details
        """What else is known, by name: `code` (an HTTP/2 error code), `reason`, `retry_after` in seconds."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Native causes often hold sockets or requests: the message and the verdict survive pickling, they do not.
        return (
            type(self),
            (str(self),),
            {"kind": self.kind, "verdict": self.verdict, "attempts": self.attempts},
        )


class PoolTimeout(TransportError):
    """No connection became free within `pool.acquire_timeout` seconds. Nothing was sent."""

    kind = FailureKind.POOL
    verdict = Verdict.NOT_SENT


class QueueFull(PoolTimeout):
    """More than `pool.max_queue` callers already wait for a connection. Nothing was sent."""


class CircuitOpen(TransportError):
    """The breaker is open. `retry_after` is the time in seconds until it admits the next probe."""

    kind = FailureKind.CIRCUIT
    verdict = Verdict.NOT_SENT

    @property
    def retry_after(self) -> float:
        return float(self.details.get("retry_after", 0.0))


class DeadlineExceeded(TransportError):
    """The call's time budget is spent; `details["reason"]` says which budget."""

    kind = FailureKind.DEADLINE


class BatchError(NetkitError):
    """The answer to a merged request does not account for each of its inputs exactly once."""


class ImageError(NetkitError, ValueError):
    """A picture in a request cannot be read, is too large, or cannot be written in the wanted format."""


class BodyClosed(NetkitError):
    """Handed to `on_end` when the caller left a response before its end. Not a failure of the server."""
