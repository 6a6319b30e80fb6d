"""Closing what idles for too long: one watcher that exists only while connections are open.

Why a watcher: a server that closes an idle connection leaves a dead socket here until someone looks. Why not a thread
per session: a program with a hundred sessions would have a hundred threads that do nothing. So in threads one
watcher serves the whole process, in loops one serves each session and loop (a loop's sockets are its own); each ends
by itself when no connection is open, and at the latest when its last session is closed or forgotten.

Rules of this file:

- The watcher holds sessions weakly.
- It closes nothing itself: the stack's pool does, in its own way.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final, Protocol

from netkit import fork
from netkit.runtime import Runtime, Spawned

__all__ = ["Sweeper", "Swept", "sweeper_for"]

GRACE: Final = 5.0
"""Seconds that a watcher may be late before it counts as gone with its loop."""


class Swept(Protocol):
    """What a watcher looks after."""

    sweep_interval: float

    def sweep(self) -> bool:
        """Close what is stale; whether connections are open still."""
        ...


class Sweeper:
    """Starts a watcher when there is something to watch, and ends it when there is not."""

    def __init__(self) -> None:
        self._start()
        fork.register(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._watched: weakref.WeakSet[Swept] = weakref.WeakSet()
        self._due: dict[int, float] = {}
        self._running: dict[int, Spawned] = {}

    def after_fork_in_child(self) -> None:
        """The parent's watcher is not here; the next call starts one."""
        self._start()

    def poke(self, pool: Swept, runtime: Runtime) -> None:
        """A connection is in use: make sure that somebody will look after it. Called now and then."""
        key = 0 if runtime.name == "threads" else threading.get_ident()
        now = runtime.now()
        if now < self._due.get(key, 0.0) and pool in self._watched:
            return
        with self._lock:
            self._watched.add(pool)
            if now < self._due.get(key, 0.0):
                return
            due = self._due[key] = now + pool.sweep_interval + GRACE
        # Not under the lock: a green thread runs as soon as it is started, and takes the lock itself.
        watcher = runtime.spawn(self._watch(key, runtime), name="pool-sweep")
        with self._lock:
            if self._due.get(key, 0.0) >= due:
                self._running[key] = watcher
                return
        watcher.cancel()  # it is over already, or the last session was forgotten meanwhile

    def forget(self, pool: Swept) -> None:
        """A session was closed; with the last one the watcher goes."""
        with self._lock:
            self._watched.discard(pool)
            if self._watched:
                return
            self._due.clear()
            # A task may be cancelled from its own loop only; the others see at their next look that they are done.
            mine = [self._running.pop(key, None) for key in (0, threading.get_ident())]
        for watcher in mine:
            if watcher is not None:
                watcher.cancel()

    async def _watch(self, key: int, runtime: Runtime) -> None:
        mine = self._due.get(key)
        try:
            while True:
                interval = min((pool.sweep_interval for pool in list(self._watched)), default=None)
                if interval is None:
                    return
                with self._lock:
                    if self._due.get(key) != mine:
                        return
                    mine = self._due[key] = runtime.now() + interval + GRACE
                await runtime.sleep(interval)
                self._sweep()
        finally:
            with self._lock:
                if self._due.get(key) == mine:
                    self._due.pop(key, None)
                    self._running.pop(key, None)

    def _sweep(self) -> None:
        # In a function of its own: a variable of the loop above would keep the last pool alive through the sleep.
        for pool in list(self._watched):
            if not pool.sweep():
                self._watched.discard(pool)

    def __repr__(self) -> str:
        return f"<Sweeper watched={len(self._watched)} running={len(self._running)}>"


_of_threads = Sweeper()


def sweeper_for(runtime: Runtime) -> Sweeper:
    """The process's own for threads; a new one for each session of a loop."""
    return _of_threads if runtime.name == "threads" else Sweeper()
