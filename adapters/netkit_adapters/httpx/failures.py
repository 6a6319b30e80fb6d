"""What a failure of httpx means to netkit, and what a decision of netkit looks like to httpx's callers.

Rules of this file:

- NOT_SENT is claimed only with evidence: the exception's type, or the stage that its traceback shows.
- An exception without a cause comes from a mock or a transport of the user's: nothing is known about the wire, so
  the request is never sent again.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from types import FrameType
from typing import Any

from netkit.errors import FailureKind, NetkitError, TransportError, Verdict
from netkit.http2 import Code
from netkit_adapters.httpx.stack import Stack

__all__ = ["classify", "to_native"]


def classify(stack: Stack, error: BaseException, *, processed: bool = False) -> TransportError | None:
    """The neutral error for what a transport or a body raised; None for what is no failure of the exchange.
    `processed` says that a response head had arrived."""
    if isinstance(error, stack.passed_on):
        return None
    found = next((stack.failures[kind] for kind in type(error).__mro__ if kind in stack.failures), None)
    if found is None:
        return None
    kind, verdict = found
    chain = list(_causes(error))
    if kind is FailureKind.CONNECT:
        kind = _connect_kind(chain)
    elif kind is FailureKind.PROTOCOL:
        kind = _protocol_kind(error, processed)
    elif kind is FailureKind.RESET and not any(isinstance(cause, ConnectionResetError) for cause in chain):
        kind = FailureKind.DISCONNECTED
    if processed or len(chain) == 1:
        verdict = Verdict.PROCESSED
    elif verdict is Verdict.AMBIGUOUS and _before_the_tunnel(error):
        kind, verdict = FailureKind.PROXY, Verdict.NOT_SENT
    failure = TransportError(type(error).__name__, kind=kind, verdict=verdict, native=error)
    if verdict is not Verdict.NOT_SENT:
        # Driven connections say it; of others it is not known.
        reused = next((cause.netkit_reused for cause in chain if hasattr(cause, "netkit_reused")), None)
        if reused is not None:
            failure.details["reused"] = reused
    return failure


def _connect_kind(chain: list[BaseException]) -> FailureKind:
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in chain):
        return FailureKind.CERTIFICATE
    if any(isinstance(cause, ssl.SSLError) for cause in chain):
        return FailureKind.TLS
    if any(isinstance(cause, socket.gaierror) for cause in chain):
        return FailureKind.DNS
    return FailureKind.CONNECT


def _protocol_kind(error: BaseException, processed: bool) -> FailureKind:
    if processed:
        return FailureKind.BODY
    # httpcore tells a closed connection from a malformed answer by its message alone.
    return FailureKind.DISCONNECTED if "disconnected without" in str(error) else FailureKind.PROTOCOL


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _before_the_tunnel(error: BaseException) -> bool:
    """Whether it failed while a proxy was asked for a tunnel: then the request itself was never started.

    httpcore has the same exceptions for both exchanges; which one it was stands in the traceback alone.
    """
    request: Any = None
    for frame in _frames(error):
        name = frame.f_code.co_name
        if name == "_init_socks5_connection":
            return True
        if name in ("handle_request", "handle_async_request"):
            request = frame.f_locals.get("request")
    return getattr(request, "method", None) == b"CONNECT"


def _frames(error: BaseException) -> Iterator[FrameType]:
    cause = error.__cause__
    step = cause.__traceback__ if cause is not None else None
    while step is not None:
        yield step.tb_frame
        step = step.tb_next


def _message(error: TransportError) -> str:
    """What it says, with the HTTP/2 error code where there was one."""
    text, code = str(error), error.details.get("code")
    return text if code is None or f"({code})" in text else f"{text}: {Code.name(code)}"


def to_native(stack: Stack, error: NetkitError) -> BaseException:
    """What the caller of the stack gets to see for `error`: the native exception; for what netkit itself decided one
    that is both; for what went wrong on an HTTP/2 connection the native type for it, with `error` as its cause."""
    if isinstance(error, TransportError) and error.native is not None:
        return error.native
    face = next((stack.faces[kind] for kind in type(error).__mro__ if kind in stack.faces), None)
    if face is None or isinstance(error, face):
        return error
    made: Any
    if isinstance(error, TransportError):
        if face is stack.faces[TransportError]:
            # A stream that its server reset is a matter of the protocol to httpx, a lost connection one of reading.
            spoken = error.kind is FailureKind.RESET and "code" in error.details
            kind = stack.kinds.get(FailureKind.PROTOCOL if spoken else error.kind, face)
            plain: Any = next(base for base in kind.__bases__ if not issubclass(base, NetkitError))
            made = plain(_message(error))
            made.__cause__ = error
            return made  # type: ignore[no-any-return]
        made = face(_message(error), kind=error.kind, verdict=error.verdict, **error.details)
        made.attempts = error.attempts
    else:
        made = face(str(error))
    made.__cause__ = error.__cause__ or error
    return made  # type: ignore[no-any-return]
