"""What the pool plugin and a stack's own connection pool have to say to each other.

Rules of this file:

- The stack's pool keeps the sockets; the policy only answers questions about them. netkit writes no HTTP/1.1 client.
- A driver asks `ConnectionPolicy` at check-out and check-in, in the caller's thread or task; answers never block.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from netkit.stats import Counter

__all__ = ["ConnectionPolicy", "NativePool", "PoolCounts", "SocketSettings", "shorter_lifetime"]


class PoolCounts(msgspec.Struct, frozen=True):
    """A snapshot of a native pool. `opened_total` and the `discarded_*` counters never fall."""

    open: int = 0
    idle: int = 0
    in_use: int = 0
    opened_total: int = 0
    discarded_stale: int = 0
    discarded_other: int = 0


class SocketSettings(msgspec.Struct, frozen=True):
    """How sockets are opened: `connect_timeout` in seconds where the caller gave none (None: the stack's own),
    socket options as (level, option, value), the number of idle connections kept per origin, and how many to open
    ahead (more than 0 only where the pool's `supports` names "warm")."""

    connect_timeout: float | None
    socket_options: tuple[tuple[int, int, int], ...]
    max_idle: int
    warm: int = 0


class ConnectionPolicy(Protocol):
    """Answers of the pool plugin; pure decisions on numbers that the driver measured."""

    def discard_reason(self, origin: str, *, idle: float, age: float, requests: int) -> str | None:
        """Why an idle connection must not be reused ("idle", "lifetime", "max_requests"), or None. Seconds."""
        ...

    def idle_limit(self, origin: str) -> float:
        """How many seconds a connection to `origin` may lie idle at present."""
        ...

    def keep_alive_hint(self, origin: str, timeout: float) -> None:
        """The server said `Keep-Alive: timeout=…`."""
        ...

    def reused(self, origin: str, idle: float) -> None:
        """A connection that had been idle for `idle` seconds answered."""
        ...

    def died(self, origin: str, idle: float) -> None:
        """A connection that had been idle for `idle` seconds was found closed or reset."""
        ...


class NativePool(Protocol):
    """A stack's own pool, as its adapter lets netkit drive it."""

    supports: frozenset[str]
    """Names of `pool` options that this stack honours natively through the driver."""

    opened_total: Counter
    """Connections opened. It may outlive the pool, so it refers to nothing."""

    def configure(self, settings: SocketSettings, policy: ConnectionPolicy) -> None:
        """Apply settings to connections opened from now on, and ask `policy` from now on."""
        ...

    def counts(self) -> PoolCounts: ...

    def sweep(self) -> int:
        """Close idle connections that the policy would not reuse; returns how many."""
        ...

    def describe(self) -> dict[str, Any]:
        """What `netkit config` shows: option → how it is applied, or why it does not apply here."""
        ...


def shorter_lifetime(lifetime: float | None, balance: Any) -> float | None:
    """How long a connection may live, in seconds: `lifetime`, or `max_connection_age` of the balance plugin's options
    (None: it is off) where that is less. None: without limit."""
    age: float | None = getattr(balance, "max_connection_age", None)
    return lifetime if age is None else age if lifetime is None else min(lifetime, age)
