"""A request of aiohttp freed from the call that it was made for: its total time, its traces.

aiohttp's innermost handler is a closure over the call's timer and limits, and the request holds the same timer: when
the call ends or its time is up, whatever runs inside that timer is cancelled. What is to outlive its caller gets a
copy of both, without a timer; netkit's own limits (`limits.send_within`) then do their work.

Rule of this file: where the closure is not the one that it was written for (3.14's), only the request is freed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CellType, FunctionType
from typing import Any, Final

from aiohttp import ClientRequest, ClientResponse, ClientTimeout
from aiohttp.helpers import TimerNoop

from netkit.messages import Timeout

__all__ = ["UNLIMITED", "detached"]

UNLIMITED: Final = Timeout()
"""What the freed handler limits: nothing. Every limit of the neutral request is stricter, and applied."""

_NO_LIMITS: Final = ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)

Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


def detached(req: ClientRequest, handler: Handler, *, keep_traces: bool) -> tuple[ClientRequest, Handler]:
    """`req`, a copy that may be changed, and `handler`, both free of their call's clock, and of its traces."""
    timer = TimerNoop()
    req._timer = timer
    instead: dict[str, Any] = {"timer": timer, "real_timeout": _NO_LIMITS}
    if not keep_traces:
        req._traces = instead["traces"] = []
    req.response = None
    if req._continue is not None:
        req._continue = req.loop.create_future()
    return req, _freed(handler, instead)


def _freed(handler: Handler, instead: dict[str, Any]) -> Handler:
    if not isinstance(handler, FunctionType):
        return handler
    names = handler.__code__.co_freevars
    if not {"timer", "real_timeout"} <= set(names):
        return handler
    cells = tuple(
        CellType(instead[name]) if name in instead else cell
        for name, cell in zip(names, handler.__closure__ or (), strict=True)
    )
    return FunctionType(handler.__code__, handler.__globals__, handler.__name__, handler.__defaults__, cells)
