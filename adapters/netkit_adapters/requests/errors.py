"""What a failure of requests means to netkit, and what a decision of netkit looks like to requests' callers.

Rules of this file:

- NOT_SENT is claimed only with evidence: the exception's type, or the mark that the driven pool leaves on it.
- An exception without any trace of urllib3, a socket or TLS comes from a mock or a custom adapter: nothing is known
  about the wire, so it is never sent again.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPException, RemoteDisconnected
from typing import Any, Final

import requests
import urllib3.exceptions as urllib3
from requests import exceptions as native

from netkit import errors
from netkit.errors import FailureKind, NetkitError, TransportError, Verdict

__all__ = [
    "NOT_SENT_MARK",
    "REUSED_MARK",
    "BatchError",
    "CircuitOpen",
    "DeadlineExceeded",
    "ImageError",
    "PoolTimeout",
    "QueueFull",
    "classify",
    "to_native",
]

NOT_SENT_MARK: Final = "_netkit_not_sent"
"""Attribute that the driven pool sets on exceptions raised before the request's first byte."""

REUSED_MARK: Final = "_netkit_reused"
"""Attribute that it sets on those raised later: whether the connection had answered a request before."""


class PoolTimeout(errors.PoolTimeout, native.ConnectTimeout):
    """No free connection in time: caught as `requests.ConnectTimeout`, so also as Timeout and ConnectionError."""


class QueueFull(errors.QueueFull, native.ConnectTimeout):
    """Too many callers wait for a connection: caught as `requests.ConnectTimeout`."""


class CircuitOpen(errors.CircuitOpen, native.ConnectionError):
    """The breaker is open: caught as `requests.ConnectionError`."""


class DeadlineExceeded(errors.DeadlineExceeded, native.Timeout):
    """The call's time is spent: caught as `requests.Timeout`."""


class BatchError(errors.BatchError, native.RequestException):
    """A merged answer cannot be split: caught as `requests.RequestException`."""


class ImageError(errors.ImageError, native.RequestException):
    """A picture cannot be sent: caught as `requests.RequestException` and ValueError."""


_DECISIONS: Final[dict[type[NetkitError], type[NetkitError]]] = {
    errors.PoolTimeout: PoolTimeout,
    errors.QueueFull: QueueFull,
    errors.CircuitOpen: CircuitOpen,
    errors.DeadlineExceeded: DeadlineExceeded,
    errors.BatchError: BatchError,
    errors.ImageError: ImageError,
}

_NATIVE: Final[dict[FailureKind, type[native.RequestException]]] = {
    FailureKind.CONNECT_TIMEOUT: native.ConnectTimeout,
    FailureKind.TLS: native.SSLError,
    FailureKind.CERTIFICATE: native.SSLError,
    FailureKind.PROXY: native.ProxyError,
    FailureKind.READ_TIMEOUT: native.ReadTimeout,
    FailureKind.BODY: native.ChunkedEncodingError,
}
"""Native types of failures that arose outside requests' own transport (HTTP/2); the rest is ConnectionError."""


def to_native(error: NetkitError, request: requests.PreparedRequest | None) -> BaseException:
    """What the caller of requests gets to see for `error`."""
    if isinstance(error, TransportError) and error.native is not None:
        if error.details.get("shared") and isinstance(error.native, native.RequestException):
            # It was several callers' request that failed: each sees its own.
            error.native.request = request
        return error.native
    decided = _DECISIONS.get(type(error))
    if decided is not None:
        return _decision(decided, error, request)
    if not isinstance(error, TransportError):
        return error
    made = _NATIVE.get(error.kind, native.ConnectionError)(str(error), request=request)
    made.__cause__ = error
    return made


def _decision(made_as: type[Any], error: NetkitError, request: requests.PreparedRequest | None) -> BaseException:
    if isinstance(error, TransportError):
        made = made_as(str(error), kind=error.kind, verdict=error.verdict, **error.details)
        made.attempts = error.attempts
    else:
        made = made_as(str(error))
    made.request = request
    made.__cause__ = error.__cause__
    made.__suppress_context__ = True
    return made  # type: ignore[no-any-return]


def classify(error: BaseException, *, processed: bool = False) -> TransportError | None:
    """The neutral error for what `adapter.send` or a body raised; None for what is not a failure of the exchange
    (a bad URL, a bad header, a programming error). `processed` says that a response head had arrived."""
    if isinstance(error, (native.InvalidURL, native.InvalidSchema, native.MissingSchema, native.InvalidHeader)):
        return None
    if not isinstance(error, (native.RequestException, urllib3.HTTPError, OSError, HTTPException)):
        return None
    chain = list(_causes(error))
    kind, verdict = _judge(error, chain)
    if processed:
        verdict = Verdict.PROCESSED
    unsent = not processed and any(getattr(cause, NOT_SENT_MARK, False) for cause in chain)
    if unsent:
        verdict = Verdict.NOT_SENT
    failure = TransportError(f"{type(error).__name__}", kind=kind, verdict=verdict, native=error)
    if unsent:
        failure.details["body_started"] = False  # http.client iterates a body after it has sent the head
    reused = next((cause for cause in chain if hasattr(cause, REUSED_MARK)), None)
    if reused is not None:
        failure.details["reused"] = getattr(reused, REUSED_MARK)
    return failure


def _judge(error: BaseException, chain: list[BaseException]) -> tuple[FailureKind, Verdict]:
    def has(*types: type[BaseException]) -> bool:
        return any(isinstance(cause, types) for cause in chain)

    if has(urllib3.ResponseError):
        # `Retry(status_forcelist=…)` of the user's adapter has had its tries, and answers to all of them.
        return FailureKind.OTHER, Verdict.PROCESSED
    if has(ssl.SSLCertVerificationError):
        return FailureKind.CERTIFICATE, Verdict.NOT_SENT
    if has(urllib3.ProxyError) or isinstance(error, native.ProxyError):
        return FailureKind.PROXY, Verdict.NOT_SENT
    if has(urllib3.NameResolutionError, socket.gaierror):
        return FailureKind.DNS, Verdict.NOT_SENT
    if has(urllib3.NewConnectionError):
        return FailureKind.CONNECT, Verdict.NOT_SENT
    if isinstance(error, native.ConnectTimeout) or has(urllib3.ConnectTimeoutError):
        return FailureKind.CONNECT_TIMEOUT, Verdict.NOT_SENT
    if has(urllib3.EmptyPoolError):
        return FailureKind.POOL, Verdict.NOT_SENT
    if isinstance(error, native.ReadTimeout) or has(urllib3.ReadTimeoutError, TimeoutError):
        return FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS
    if has(RemoteDisconnected):
        return FailureKind.DISCONNECTED, Verdict.AMBIGUOUS
    if has(ConnectionResetError):
        return FailureKind.RESET, Verdict.AMBIGUOUS
    if has(BrokenPipeError):
        return FailureKind.WRITE, Verdict.AMBIGUOUS
    if has(ssl.SSLError, urllib3.SSLError):
        return FailureKind.TLS, Verdict.AMBIGUOUS
    if has(urllib3.IncompleteRead, urllib3.DecodeError):
        return FailureKind.BODY, Verdict.PROCESSED
    if has(HTTPException, urllib3.ProtocolError):
        return FailureKind.PROTOCOL, Verdict.AMBIGUOUS
    if len(chain) > 1 or not isinstance(error, native.RequestException):
        return FailureKind.OTHER, Verdict.AMBIGUOUS
    return FailureKind.OTHER, Verdict.PROCESSED


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything beneath it: causes, contexts, wrapped arguments and urllib3's `reason`."""
    seen: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        current = queue.pop(0)
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        queue += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]
