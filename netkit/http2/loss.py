"""Why a connection was lost, in the words of netkit's errors."""

from __future__ import annotations

from typing import Any

from netkit.errors import FailureKind
from netkit.http2.protocol import Code, MachineError

__all__ = ["explain"]


def explain(cause: BaseException | None) -> tuple[FailureKind, str, dict[str, Any]]:
    """Kind, message and details for the streams of a connection that `cause` ended (None: the server closed it)."""
    if isinstance(cause, MachineError) and cause.code == Code.NO_ERROR:
        return FailureKind.DISCONNECTED, str(cause), {"code": cause.code}
    if isinstance(cause, MachineError):
        return FailureKind.PROTOCOL, str(cause), {"code": cause.code}
    if isinstance(cause, TimeoutError):
        return FailureKind.DISCONNECTED, f"the connection is dead: {cause}", {}
    if cause is None or isinstance(cause, EOFError):
        return FailureKind.DISCONNECTED, "the server closed the connection", {}
    return FailureKind.RESET, f"the connection was lost: {type(cause).__name__}", {}
