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
    culprit = _innermost(coroutine)
    try:
        coroutine.close()
    except Exception:  # noqa: BLE001
        # It suspended again, or failed, while it cleaned up: the error below says what matters.
        pass
    raise PluginError(
        f"{culprit} awaited {type(awaited).__name__!r}, which the threads runtime cannot wait for; "
        "a layer may await only send, the response, and its runtime"
    )


def _innermost(coroutine: Coroutine[Any, Any, Any]) -> str:
    """The name of the deepest coroutine function in a suspended chain."""
    found: Any = coroutine
    while isinstance(found.cr_await, CoroutineType):
        found = found.cr_await
    module = found.cr_frame.f_globals.get("__name__", "?") if found.cr_frame else "?"
    return f"layer {module}.{found.__qualname__}"
