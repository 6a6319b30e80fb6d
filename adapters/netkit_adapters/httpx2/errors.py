"""netkit's own decisions as exceptions of httpx2: each is the netkit error and one that httpx2's callers catch."""

from __future__ import annotations

from typing import Final

import httpx2

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


class TransportError(errors.TransportError, httpx2.TransportError):
    """An exchange failed outside httpx2's own transport."""


class PoolTimeout(errors.PoolTimeout, httpx2.PoolTimeout):
    """No free connection in time."""


class QueueFull(errors.QueueFull, httpx2.PoolTimeout):
    """Too many callers wait for a connection."""


class CircuitOpen(errors.CircuitOpen, httpx2.ConnectError):
    """The breaker is open: caught as `httpx2.ConnectError`."""


class DeadlineExceeded(errors.DeadlineExceeded, httpx2.TimeoutException):
    """The call's time is spent: caught as `httpx2.TimeoutException`."""


class BatchError(errors.BatchError, httpx2.RequestError):
    """A merged answer cannot be split: caught as `httpx2.RequestError`."""


class ImageError(errors.ImageError, httpx2.RequestError):
    """A picture cannot be sent: caught as `httpx2.RequestError` and ValueError."""


class ConnectError(errors.TransportError, httpx2.ConnectError):
    """No connection: DNS, TCP or TLS."""


class ConnectTimeout(errors.TransportError, httpx2.ConnectTimeout):
    """No connection in time."""


class ProxyError(errors.TransportError, httpx2.ProxyError):
    """The proxy gave no tunnel."""


class WriteError(errors.TransportError, httpx2.WriteError):
    """The request could not be sent to its end."""


class WriteTimeout(errors.TransportError, httpx2.WriteTimeout):
    """The request could not be sent in time."""


class ReadError(errors.TransportError, httpx2.ReadError):
    """The connection was lost before the answer's end."""


class ReadTimeout(errors.TransportError, httpx2.ReadTimeout):
    """The answer fell silent."""


class RemoteProtocolError(errors.TransportError, httpx2.RemoteProtocolError):
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
"""netkit error → what callers of httpx2 see."""

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
"""Kind of a failure outside httpx2's own transport (HTTP/2) → what callers of httpx2 see."""
