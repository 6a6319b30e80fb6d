"""One client in several event loops: each loop has connections of its own.

A connection belongs to the loop that opened it; httpcore's pools know nothing of loops, so a client kept over two
`asyncio.run()` calls meets sockets of a loop that is closed.

Rules of this file:

- The first loop uses the client's own transports; a second one beside it gets copies with empty pools. When the
  first is over, the next takes its place.
- Only the stack's own transports are copied; what the user passed in of another class is used as it is.
- A loop closes its own connections before it ends: asyncio closes open async generators then, and one stands guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from netkit.runtime import Asyncio

if TYPE_CHECKING:
    from netkit_adapters.httpx.pool import HttpcorePool

__all__ = ["Loops", "current_loop"]


def current_loop() -> Any:
    """What tells one running loop from another: asyncio's loop or trio's token; None outside of both."""
    loop = asyncio._get_running_loop()
    if loop is not None:
        return loop
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


def _is_over(loop: Any) -> bool:
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.is_closed()
    try:
        loop.run_sync_soon(_nothing)
    except Exception:  # noqa: BLE001 - trio.RunFinishedError, without importing trio
        return True
    return False


_NOWHERE: Final = object()


def _nothing() -> None:
    pass


async def _guard(transport: Any) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await transport._pool.aclose()


class Loops:
    """Which transport stands for which in which loop, for the transports of one client."""

    def __init__(self, pool: HttpcorePool) -> None:
        self._pool = weakref.ref(pool)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._here: dict[tuple[int, Any], Any] = {}
        self._originals: dict[int, Any] = {}
        self._guards: dict[tuple[int, Any], AsyncGenerator[None]] = {}
        self._home: Any = _NOWHERE

    def after_fork_in_child(self) -> None:
        """The parent's loops do not run here."""
        _left_behind.extend(self._guards.values())
        self._start()

    def find(self, transport: Any) -> Any:
        """The transport to use for `transport` in the running loop; None where that is still to be settled."""
        return self._here.get((id(transport), current_loop()))

    def is_home(self) -> bool:
        """Whether the running loop is the one that the client's own transports themselves are in use in."""
        return self._home is current_loop()

    async def come_home(self) -> bool:
        """As `is_home`, for the first call of a loop: the client's transports are settled in it, if none is
        elsewhere."""
        loop, pool = current_loop(), self._pool()
        if pool is None:
            return False
        own = [transport for transport in pool.transports() if pool.can_be_copied(transport)]
        here = [self.find(transport) or await self.settle(transport) for transport in own]
        if any(found is not transport for found, transport in zip(here, own, strict=True)):
            return False
        self._home = loop
        return True

    async def settle(self, transport: Any) -> Any:
        """As `find`, for the first call of a loop."""
        loop, pool = current_loop(), self._pool()
        if pool is None or not pool.can_be_copied(transport):
            return transport
        key = (id(transport), loop)
        with self._lock:
            for known in [known for known in self._here if _is_over(known[1])]:
                self._guards.pop(known, None)
                del self._here[known]
            taken = any(found is transport for found in self._here.values())
            if taken:
                here = pool.adopt_twin(transport, loop)
            else:
                here = transport
                pool.settle(transport, loop)
            self._originals[id(transport)] = transport
            self._here[key] = here
        if isinstance(loop, asyncio.AbstractEventLoop):
            guard = self._guards[key] = _guard(here)
            await anext(guard)
        return here

    async def aclose(self) -> None:
        """Close the connections of every loop: at once in this one, soon in others that run."""
        here, loop = self._here, current_loop()
        guards, self._guards, self._here = self._guards, {}, {}
        self._home = _NOWHERE
        for key, transport in here.items():
            guard = guards.get(key)
            if key[1] is loop:
                await (guard.aclose() if guard is not None else transport.aclose())
            elif isinstance(key[1], asyncio.AbstractEventLoop) and guard is not None:
                with contextlib.suppress(RuntimeError):  # it ended just now, and closed them
                    key[1].call_soon_threadsafe(_close_soon, guard)


def _close_soon(guard: AsyncGenerator[None]) -> None:
    """In the loop of `guard`: only there is anything made that has to be awaited."""
    _runtime.spawn(_close(guard), name="pool-close")


async def _close(guard: AsyncGenerator[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop, which ends, is closing it already
        await guard.aclose()


_runtime: Final = Asyncio()
_left_behind: list[Any] = []
