"""The one idea: a layer is an async function around `send`, and both worlds run it.

Example::

    async def shout(request, send):
        response = await send(request)
        print(request.method, response.status)
        return response

    send = compose([shout], terminal)
    response = await send(request)        # an async stack
    response = run_sync(send(request))    # a sync stack: stepped once, never suspended
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import CoroutineType
from typing import Any, TypeAlias, TypeVar

from netkit.errors import PluginError
from netkit.messages import Request, Response

__all__ = ["Layer", "Send", "compose", "run_sync"]

Send: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]
Layer: TypeAlias = Callable[[Request, Send], Coroutine[Any, Any, Response]]

T = TypeVar("T")


def compose(layers: Sequence[Layer], terminal: Send) -> Send:
    """Nest `layers`, outermost first, around `terminal`. Called once per session, not per request."""
    send = terminal
    for layer in reversed(layers):
        send = _bind(layer, send)
    return send


def _bind(layer: Layer, send: Send) -> Send:
    return lambda request: layer(request, send)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a chain in the calling thread by stepping it once.

    The threads runtime blocks instead of suspending, so the first step is the last. If the coroutine does
    suspend, some layer awaited what its runtime does not own: raises `PluginError` that names it.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    layer, what = _culprit(coroutine, awaited)
    try:
        coroutine.close()
    except Exception:  # noqa: BLE001
        # It suspended again, or failed, while it cleaned up: the error below says what matters.
        pass
    raise PluginError(
        f"layer {layer} awaited {what}, which the threads runtime cannot wait for; "
        "a layer may await only send, the response, and its runtime"
    )


def _culprit(coroutine: Coroutine[Any, Any, Any], awaited: Any) -> tuple[str, str]:
    """The deepest coroutine of a suspended chain that was given a request, and what it waits for in the end."""
    inside: list[Any] = [coroutine]
    while isinstance(inside[-1].cr_await, CoroutineType):
        inside.append(inside[-1].cr_await)
    layer = next((found for found in reversed(inside) if _has_request(found)), inside[-1])
    if layer is inside[-1]:
        return _name(layer), repr(type(awaited).__name__)
    return _name(layer), _name(inside[-1])


def _has_request(coroutine: Any) -> bool:
    frame = coroutine.cr_frame
    if frame is None:
        return False
    given = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return any(isinstance(frame.f_locals.get(name), Request) for name in given)


def _name(coroutine: Any) -> str:
    module = coroutine.cr_frame.f_globals.get("__name__", "?") if coroutine.cr_frame else "?"
    return f"{module}.{coroutine.__qualname__}"
