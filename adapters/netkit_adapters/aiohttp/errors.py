"""What a failure of aiohttp means to netkit, and what a decision of netkit looks like to aiohttp's callers.

Rules of this file:

- NOT_SENT is claimed only with evidence: an exception that aiohttp raises before it writes, or a writer that wrote
  nothing. A server that disconnects an idle connection while a request is under way is AMBIGUOUS.
- Where someone put a stand-in in the place of the connector's `connect`, nothing is known of what reached whom: such
  a failure is never one to send again.
- What is no failure of an exchange (a bad URL, a bad header, a closed session) is not classified: it leaves as is.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from netkit import errors
from netkit.errors import FailureKind, NetkitError, TransportError, Verdict

if TYPE_CHECKING:
    from aiohttp import ClientRequest

__all__ = [
    "BatchError",
    "CircuitOpen",
    "DeadlineExceeded",
    "ImageError",
    "PoolTimeout",
    "QueueFull",
    "body_failure",
    "classify",
    "name_failure",
    "to_native",
]


class PoolTimeout(errors.PoolTimeout, aiohttp.ConnectionTimeoutError):
    """No free connection in time: caught as `aiohttp.ConnectionTimeoutError`, so also as ServerTimeoutError,
    asyncio.TimeoutError and ClientError."""


class QueueFull(errors.QueueFull, aiohttp.ConnectionTimeoutError):
    """Too many callers wait for a connection: caught as `aiohttp.ConnectionTimeoutError`."""


class CircuitOpen(errors.CircuitOpen, aiohttp.ClientConnectionError):
    """The breaker is open: caught as `aiohttp.ClientConnectionError`."""


class DeadlineExceeded(errors.DeadlineExceeded, aiohttp.ServerTimeoutError):
    """The call's time is spent: caught as `aiohttp.ServerTimeoutError` and asyncio.TimeoutError."""


class BatchError(errors.BatchError, aiohttp.ClientError):
    """A merged answer cannot be split: caught as `aiohttp.ClientError`."""


class ImageError(errors.ImageError, aiohttp.ClientError):
    """A picture cannot be sent: caught as `aiohttp.ClientError` and ValueError."""


_DECISIONS: Final[dict[type[NetkitError], type[NetkitError]]] = {
    errors.PoolTimeout: PoolTimeout,
    errors.QueueFull: QueueFull,
    errors.CircuitOpen: CircuitOpen,
    errors.DeadlineExceeded: DeadlineExceeded,
    errors.BatchError: BatchError,
    errors.ImageError: ImageError,
}

_NATIVE: Final[dict[FailureKind, type[aiohttp.ClientError]]] = {
    FailureKind.CONNECT_TIMEOUT: aiohttp.ConnectionTimeoutError,
    FailureKind.READ_TIMEOUT: aiohttp.SocketTimeoutError,
    FailureKind.WRITE_TIMEOUT: aiohttp.ServerTimeoutError,
    FailureKind.DISCONNECTED: aiohttp.ServerDisconnectedError,
    FailureKind.REFUSED: aiohttp.ServerDisconnectedError,
    FailureKind.RESET: aiohttp.ClientConnectionResetError,
    FailureKind.BODY: aiohttp.ClientPayloadError,
}
"""Native types of failures that arose outside aiohttp's own transport (HTTP/2); the rest is ClientConnectionError."""

_NO_FAILURE: Final = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, aiohttp.ContentTypeError)

_TABLE: Final[dict[type[BaseException], tuple[FailureKind, Verdict]]] = {
    aiohttp.ClientConnectorDNSError: (FailureKind.DNS, Verdict.NOT_SENT),
    aiohttp.ClientConnectorCertificateError: (FailureKind.CERTIFICATE, Verdict.NOT_SENT),
    aiohttp.ServerFingerprintMismatch: (FailureKind.CERTIFICATE, Verdict.NOT_SENT),
    aiohttp.ClientConnectorSSLError: (FailureKind.TLS, Verdict.NOT_SENT),
    aiohttp.ClientProxyConnectionError: (FailureKind.PROXY, Verdict.NOT_SENT),
    aiohttp.ClientHttpProxyError: (FailureKind.PROXY, Verdict.NOT_SENT),
    aiohttp.ClientConnectorError: (FailureKind.CONNECT, Verdict.NOT_SENT),
    aiohttp.ConnectionTimeoutError: (FailureKind.CONNECT_TIMEOUT, Verdict.NOT_SENT),
    aiohttp.SocketTimeoutError: (FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS),
    aiohttp.ServerTimeoutError: (FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS),
    aiohttp.ServerDisconnectedError: (FailureKind.DISCONNECTED, Verdict.AMBIGUOUS),
    aiohttp.ClientConnectionResetError: (FailureKind.RESET, Verdict.AMBIGUOUS),
    aiohttp.ClientPayloadError: (FailureKind.BODY, Verdict.PROCESSED),
    aiohttp.ClientOSError: (FailureKind.OTHER, Verdict.AMBIGUOUS),
    # A response head that cannot be parsed; bad statuses are raised far outside of the chain.
    aiohttp.ClientResponseError: (FailureKind.PROTOCOL, Verdict.AMBIGUOUS),
    aiohttp.ClientConnectionError: (FailureKind.OTHER, Verdict.AMBIGUOUS),
    aiohttp.ClientError: (FailureKind.OTHER, Verdict.AMBIGUOUS),
    asyncio.TimeoutError: (FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS),
    OSError: (FailureKind.OTHER, Verdict.AMBIGUOUS),
}
"""Looked up along an exception's bases, the most special first."""

_RESETS: Final = frozenset({errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ESHUTDOWN})


def classify(
    error: BaseException, *, processed: bool = False, req: ClientRequest | None = None
) -> TransportError | None:
    """The neutral error for what aiohttp raised; None for what is no failure of the exchange.

    `processed` says that a response head had arrived; `req` is the request that was being sent.
    """
    if isinstance(error, _NO_FAILURE):
        return None
    if req is not None and isinstance(error, TimeoutError) and getattr(req._timer, "_cancelled", False):
        # ClientTimeout.total is spent: for the whole call, so nothing may be tried again.
        return errors.DeadlineExceeded(
            "ClientTimeout.total", verdict=Verdict.AMBIGUOUS, native=error, reason="ClientTimeout.total"
        )
    found = next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), None)
    if found is None:
        return None
    kind, verdict = found
    if kind is FailureKind.OTHER:
        if isinstance(error, OSError) and error.errno in _RESETS:
            kind = FailureKind.RESET
        elif isinstance(error, aiohttp.ClientConnectionError) and error.__cause__ is not None:
            # aiohttp wraps whatever stopped the upload.
            kind = FailureKind.WRITE
    details: dict[str, Any] = {}
    if isinstance(error, aiohttp.ClientHttpProxyError):
        details["status"] = error.status
    if processed or (req is not None and _has_stand_in(req)):
        verdict = Verdict.PROCESSED
    elif verdict is Verdict.AMBIGUOUS and req is not None:
        if _wrote_nothing(error, req):
            verdict = Verdict.NOT_SENT
        elif getattr(req._session, "_retry_connection", None) is False:
            # aiohttp's own switch, in the user's hand (its TestClient uses it): no request is ever replayed.
            verdict = Verdict.PROCESSED
    return TransportError(type(error).__name__, kind=kind, verdict=verdict, native=error, **details)


def _has_stand_in(req: ClientRequest) -> bool:
    """Whether `connect` of this very connector is not its class's own: a mock, as in many a test."""
    connector = getattr(req._session, "_connector", None)
    return "connect" in getattr(connector, "__dict__", ())


def _wrote_nothing(error: BaseException, req: ClientRequest) -> bool:
    """Whether the connection was found closed at the first write; aiohttp then has no response object yet."""
    return type(error) is aiohttp.ClientConnectionResetError and req.response is None


def body_failure(error: BaseException) -> aiohttp.ClientError:
    """What a reader of an HTTP/2 answer gets to see: what aiohttp's readers get on HTTP/1.1."""
    if isinstance(error, TransportError) and error.kind is FailureKind.READ_TIMEOUT:
        return aiohttp.SocketTimeoutError(_READ_TIMEOUT)
    return aiohttp.ClientPayloadError(f"Response payload is not completed: {error!r}")


def name_failure(error: TransportError, req: ClientRequest) -> None:
    """Give a failure of HTTP/2 before the answer the exception that aiohttp raises on HTTP/1.1."""
    if type(error) is not TransportError or isinstance(error.native, aiohttp.ClientError | OSError):
        return
    named: BaseException
    if error.kind is FailureKind.CONNECT_TIMEOUT:
        named = aiohttp.ConnectionTimeoutError(f"Connection timeout to host {req.url}")
    elif error.kind is FailureKind.READ_TIMEOUT:
        named = aiohttp.SocketTimeoutError(_READ_TIMEOUT)
    elif error.kind is FailureKind.RESET:
        named = aiohttp.ClientOSError(errno.ECONNRESET, str(error))
    elif error.kind is FailureKind.PROTOCOL:
        named = aiohttp.ClientResponseError(req.request_info, (), status=400, message=str(error))
    else:
        named = _NATIVE.get(error.kind, aiohttp.ClientConnectionError)(str(error))
    named.__cause__ = error.__cause__
    error.native = named
    if error.verdict is Verdict.AMBIGUOUS and getattr(req._session, "_retry_connection", None) is False:
        error.verdict = Verdict.PROCESSED


_READ_TIMEOUT: Final = "Timeout on reading data from socket"


def to_native(error: NetkitError) -> BaseException:
    """What the caller of aiohttp gets to see for `error`."""
    if isinstance(error, TransportError) and error.native is not None:
        return error.native
    decided = _DECISIONS.get(type(error))
    if decided is None:
        if not isinstance(error, TransportError):
            return error
        made: Any = _NATIVE.get(error.kind, aiohttp.ClientConnectionError)(str(error))
        made.__cause__ = error
        return made  # type: ignore[no-any-return]
    if isinstance(error, TransportError):
        made = decided(str(error), kind=error.kind, verdict=error.verdict, **error.details)  # type: ignore[call-arg]
        made.attempts = error.attempts
    else:
        made = decided(str(error))
    made.__cause__ = error.__cause__
    made.__suppress_context__ = True
    return made  # type: ignore[no-any-return]
