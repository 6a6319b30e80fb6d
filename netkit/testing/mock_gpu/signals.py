"""A signal: an event that any thread and any event loop can wait for.

Faults and tests live on different sides of the server's loop. A `threading.Event` would block that loop, an
`asyncio.Event` belongs to one loop; this one serves both.
"""

from __future__ import annotations

import asyncio
import threading

__all__ = ["Signal"]


class Signal:
    """Level-triggered, thread-safe. `wait` blocks a thread, `wait_async` suspends a task of any loop."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<Signal {'set' if self.is_set() else 'clear'}>"

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Let every present and future waiter go on. May be called from anywhere, any number of times."""
        with self._lock:
            self._event.set()
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                continue

    def clear(self) -> None:
        """Make the next `wait` block again."""
        self._event.clear()

    def wait(self, timeout: float | None = 10.0) -> None:
        """Block the calling thread until set.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: it was not set in time.
        """
        if not self._event.wait(timeout):
            raise TimeoutError(f"not signalled within {timeout} s")

    async def wait_async(self, timeout: float | None = 10.0) -> None:
        """The same for a task of any event loop; other tasks of that loop go on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.append((loop, future))
        try:
            async with asyncio.timeout(timeout):
                await future
        finally:
            with self._lock:
                if (loop, future) in self._waiters:
                    self._waiters.remove((loop, future))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
