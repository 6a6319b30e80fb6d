"""netkit's own decisions as exceptions of httpx: each is the netkit error and one that httpx's callers catch."""

from __future__ import annotations

from typing import Final

import httpx

from netkit import errors
from netkit.errors import FailureKind

__all__ = [
    "FACES",
    "KINDS",
    "BatchError",
    "CircuitOpen",
    "ConnectError",
    "ConnectTimeout",
    "DeadlineExceeded",
    "ImageError",
    "PoolTimeout",
    "ProxyError",
    "QueueFull",
    "ReadError",
    "ReadTimeout",
    "RemoteProtocolError",
    "TransportError",
    "WriteError",
    "WriteTimeout",
]


class TransportError(errors.TransportError, httpx.TransportError):
    """An exchange failed outside httpx's own transport."""


class PoolTimeout(errors.PoolTimeout, httpx.PoolTimeout):
    """No free connection in time."""


class QueueFull(errors.QueueFull, httpx.PoolTimeout):
    """Too many callers wait for a connection."""


class CircuitOpen(errors.CircuitOpen, httpx.ConnectError):
    """The breaker is open: caught as `httpx.ConnectError`."""


class DeadlineExceeded(errors.DeadlineExceeded, httpx.TimeoutException):
    """The call's time is spent: caught as `httpx.TimeoutException`."""


class BatchError(errors.BatchError, httpx.RequestError):
    """A merged answer cannot be split: caught as `httpx.RequestError`."""


class ImageError(errors.ImageError, httpx.RequestError):
    """A picture cannot be sent: caught as `httpx.RequestError` and ValueError."""


class ConnectError(errors.TransportError, httpx.ConnectError):
    """No connection: DNS, TCP or TLS."""


class ConnectTimeout(errors.TransportError, httpx.ConnectTimeout):
    """No connection in time."""


class ProxyError(errors.TransportError, httpx.ProxyError):
    """The proxy gave no tunnel."""


class WriteError(errors.TransportError, httpx.WriteError):
    """The request could not be sent to its end."""


class WriteTimeout(errors.TransportError, httpx.WriteTimeout):
    """The request could not be sent in time."""


class ReadError(errors.TransportError, httpx.ReadError):
    """The connection was lost before the answer's end."""


class ReadTimeout(errors.TransportError, httpx.ReadTimeout):
    """The answer fell silent."""


class RemoteProtocolError(errors.TransportError, httpx.RemoteProtocolError):
    """The server broke the protocol, or hung up."""


FACES: Final[dict[type, type]] = {
    errors.TransportError: TransportError,
    errors.PoolTimeout: PoolTimeout,
    errors.QueueFull: QueueFull,
    errors.CircuitOpen: CircuitOpen,
    errors.DeadlineExceeded: DeadlineExceeded,
    errors.BatchError: BatchError,
    errors.ImageError: ImageError,
}
"""netkit error → what callers of httpx see."""

KINDS: Final[dict[FailureKind, type]] = {
    FailureKind.DNS: ConnectError,
    FailureKind.CONNECT: ConnectError,
    FailureKind.TLS: ConnectError,
    FailureKind.CERTIFICATE: ConnectError,
    FailureKind.CONNECT_TIMEOUT: ConnectTimeout,
    FailureKind.PROXY: ProxyError,
    FailureKind.WRITE: WriteError,
    FailureKind.WRITE_TIMEOUT: WriteTimeout,
    FailureKind.READ_TIMEOUT: ReadTimeout,
    FailureKind.RESET: ReadError,
    FailureKind.DISCONNECTED: RemoteProtocolError,
    FailureKind.PROTOCOL: RemoteProtocolError,
    FailureKind.BODY: RemoteProtocolError,
    FailureKind.REFUSED: RemoteProtocolError,
}
"""Kind of a failure outside httpx's own transport (HTTP/2) → what callers of httpx see."""
