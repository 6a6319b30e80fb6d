"""The pool transport: a slot before each exchange, given back when its connection is free.

Rule of this file: a slot that was taken is released on every way out: failure, cancellation, body end, close.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
import weakref
from typing import Any, Final

from netkit import ConfigError, Context, PoolTimeout, Request, Response, Send, fork
from netkit.knobs import Knob
from netkit.pooling import PoolCounts, SocketSettings, shorter_lifetime
from netkit.stats import Meter, PoolStats
from netkit_plugins.pool.idle import IdlePolicy
from netkit_plugins.pool.options import PoolOptions
from netkit_plugins.pool.slots import SlotQueue, Slots
from netkit_plugins.pool.sockets import socket_options
from netkit_plugins.pool.sweep import sweeper_for

__all__ = ["PoolLayer"]

OF_THE_QUEUE: Final = ("max_connections", "max_connections_total", "acquire_timeout", "max_queue")
OF_THE_STACK: Final = (
    "max_idle",
    "idle_timeout",
    "max_lifetime",
    "max_requests",
    "connect_timeout",
    "tcp_keepalive",
    "warm",
)

POKE_INTERVAL: Final = 1.0

NATIVE_LIMITS: Final = {"httpx": 100, "httpx2": 100, "aiohttp": 100}
"""Connections that a stack allows by itself; requests opens as many as there are callers."""

MAX_IDLE: Final = 1000
"""Idle connections kept to one origin where nothing limits how many are in use."""

_configured: weakref.WeakKeyDictionary[Meter, PoolOptions] = weakref.WeakKeyDictionary()
"""The options by which a session's native pool is driven: those of the first plan, not of a route or an override."""


class PoolLayer:
    """One per session and set of options."""

    def __init__(self, options: PoolOptions, context: Context) -> None:
        lifetime = shorter_lifetime(options.max_lifetime, context.settings("balance"))
        options = dataclasses.replace(options, max_lifetime=lifetime)
        self._options = options
        self._context = context
        limit = options.max_connections
        self._limit = NATIVE_LIMITS.get(context.stack, sys.maxsize) if limit is None else limit
        queued = sys.maxsize if options.max_queue is None else options.max_queue
        self._queue = SlotQueue(self._limit, options.max_connections_total, queued)
        self._native = context.pool
        self._now = context.runtime.now
        self._timed_out = 0
        self._lock = threading.Lock()
        self._next_poke = 0.0
        self._sweeper = None if self._native is None else sweeper_for(context.runtime)
        self.policy = IdlePolicy(options, context.runtime.now, salt=random.getrandbits(32))
        self.sweep_interval = (
            2.0 if isinstance(options.idle_timeout, str) else min(5.0, max(0.25, options.idle_timeout / 2))
        )
        self._configure()
        fork.register(self)

    async def __call__(self, request: Request, send: Send) -> Response:
        slots = self._queue.take(request.url)
        if slots is None:
            slots = await self._wait(request)
        try:
            if self._sweeper is not None and self._now() >= self._next_poke:
                self._next_poke = self._now() + POKE_INTERVAL
                self._sweeper.poke(self, self._context.runtime)
            response = await send(request)
        except BaseException:
            slots.release()
            raise
        response.body.on_release(slots.release)
        return response

    async def _wait(self, request: Request) -> Slots:
        """A slot of `request`'s origin, after those who asked before."""
        limit = self._options.acquire_timeout if request.timeout.pool is None else request.timeout.pool
        event = self._context.runtime.event()
        ticket = self._queue.join(request.url, event.set)
        try:
            await event.wait(limit)
        except BaseException:
            slots = self._queue.leave(ticket)
            if slots is not None:
                slots.release()
            raise
        slots = self._queue.leave(ticket)
        if slots is None:
            with self._lock:
                self._timed_out += 1
            origin = ticket.slots.origin
            raise PoolTimeout(
                f"no connection to {origin} became free within {limit:g} s: {ticket.slots.in_use} in use, "
                f"{len(ticket.slots.waiting)} callers waiting"
            )
        return slots

    def _configure(self) -> None:
        native = self._native
        if self._options.warm and (native is None or "warm" not in native.supports):
            raise ConfigError(
                f"pool.warm = {self._options.warm}: {self._context.stack} opens a connection only for a request, and "
                "netkit sends none that nobody made; leave warm at 0"
            )
        if native is None or self._context.meter in _configured:
            return
        _configured[self._context.meter] = self._options
        options = self._options
        native.configure(
            SocketSettings(
                connect_timeout=options.connect_timeout,
                socket_options=socket_options(options),
                max_idle=min(self._limit, MAX_IDLE) if options.max_idle is None else options.max_idle,
                warm=options.warm,
            ),
            self.policy,
        )

    def sweep(self) -> bool:
        """Close what is stale; whether connections are open still."""
        assert self._native is not None
        self._native.sweep()
        if self._native.counts().open > 0:
            return True
        # The watcher leaves: the next exchange must call it again.
        self._next_poke = 0.0
        return False

    def stats(self) -> PoolStats:
        """The stack's counts where it has a pool that can be read, else those of the slots."""
        counts = PoolCounts(open=self._queue.in_use, in_use=self._queue.in_use)
        if self._native is not None:
            counts = self._native.counts()
        return PoolStats(
            open=counts.open,
            idle=counts.idle,
            in_use=counts.in_use,
            queued=self._queue.queued,
            opened_total=counts.opened_total,
            discarded_stale=counts.discarded_stale,
            timeouts=self._timed_out,
        )

    def describe(self) -> dict[str, Any]:
        """For `netkit config`: option → how it is applied on this stack, or that it is not."""
        native = self._native
        found: dict[str, Any] = dict.fromkeys(OF_THE_QUEUE, "netkit's queue in front of the stack's pool")
        for name in OF_THE_STACK:
            if native is None:
                found[name] = "does not apply: this transport is not the stack's own"
            elif name in native.supports:
                found[name] = "the stack's own pool"
            else:
                found[name] = "does not apply on this stack"
        return {**found, **(native.describe() if native is not None else {})}

    def knobs(self) -> list[Knob]:
        """Where nothing limits connections there is nothing to move."""
        if self._limit == sys.maxsize:
            return []
        return [
            Knob(
                "max_connections",
                get=lambda: self._queue.limit,
                set=lambda value: self._queue.resize(int(value)),
                lowest=max(1, self._limit // 4),
                highest=self._limit * 4,
                patience=self._options.acquire_timeout,
            )
        ]

    def close(self) -> None:
        if self._sweeper is not None:
            self._next_poke = 0.0
            self._sweeper.forget(self)

    def after_fork_in_child(self) -> None:
        """No watcher came along, and another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._next_poke = 0.0

    def __repr__(self) -> str:
        return f"<PoolLayer {self._queue!r} {self.policy!r}>"
