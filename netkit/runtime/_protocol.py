"""The contract that every runtime keeps."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

__all__ = ["Event", "Runtime", "Spawned"]

T = TypeVar("T")


class Event(Protocol):
    """A flag that one or more callers wait for. Once set it stays set."""

    def set(self) -> None:
        """Wake every waiter. Safe from any thread and any loop, also from one that is not the waiter's."""
        ...

    def is_set(self) -> bool: ...

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until set, at most `timeout` seconds (None: without limit). Returns whether it is set."""
        ...


class Spawned(Protocol):
    """Work that outlives the call that started it."""

    def cancel(self) -> None:
        """Ask it to stop. In threads this reaches the work at its next wait through the runtime."""
        ...

    def done(self) -> bool: ...


class Runtime(Protocol):
    """How a layer waits. One instance serves a whole session."""

    @property
    def name(self) -> str:
        """ "threads", "asyncio" or "scripted"."""
        ...

    def now(self) -> float:
        """Monotonic seconds. Wall-clock jumps do not show."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`; 0 or less lets others run first where there are others."""
        ...

    def event(self) -> Event: ...

    def wake(self, events: Sequence[Event]) -> None:
        """Set all of `events`, which belong to different callers. In threads one wakes the next, so that they do not
        all ask for the interpreter at once."""
        ...

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[Any]:
        """`async with runtime.timeout(2.0):` ends with TimeoutError when what is inside takes longer.

        In a loop whatever is awaited is cancelled. In threads waits through the runtime end, and waits for HTTP/2;
        blocking sockets do not, they need limits of their own.
        """
        ...

    def place(self) -> object:
        """Where the present caller waits: its event loop, or one object for all threads. Callers in equal places can
        be served by one piece of spawned work; hold it no longer than they wait."""
        ...

    def undisturbed(self) -> bool:
        """Whether nothing but its own code can end what the present caller does: in a thread, unless it is the main
        one, which gets the signals, or does spawned work. Such a caller may itself do what serves others too; a task,
        which can be cancelled at every await, has to spawn it."""
        ...

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        """Run blocking or CPU-heavy work off the caller's loop. In threads the caller itself runs it."""
        ...

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], *, name: str, context: contextvars.Context | None = None
    ) -> Spawned:
        """Start work that must outlive its caller (a batch flush). Its exceptions are logged, never lost.

        `context` is what it runs in: a copy of its one caller's, or None for an empty one, since what serves several
        callers must not go on in the context of whoever came first.
        """
        ...
