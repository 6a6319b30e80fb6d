"""Driving httpcore's connection pools: what netkit's pool options mean for httpx and httpx2.

Rules of this file:

- httpcore keeps, opens and hands out the sockets. The driver counts, asks the policy, orders idle connections so that
  the latest is reused first, and lets the pool drop what must not be reused.
- Driven are the pools of transports that the client made itself. Those that its user passed in are only counted.
- Limits that the user gave the client (`limits=`) are the user's: neither widened nor narrowed.
- Every use of a private attribute of httpcore stands in `core.py`; a pool of another layout is left alone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from netkit import fork
from netkit.pooling import ConnectionPolicy, PoolCounts, SocketSettings
from netkit.runtime import Asyncio
from netkit.stats import Counter
from netkit_adapters.httpx.core import CorePool, rescue
from netkit_adapters.httpx.driven import Driven
from netkit_adapters.httpx.loops import Loops, current_loop

if TYPE_CHECKING:
    from netkit_adapters.httpx.chain import Shapes

__all__ = ["HttpcorePool"]


class HttpcorePool:
    """`netkit.pooling.NativePool` for the transports of one client.

    `supplied` are the transports that the client's user passed in. `explicit_limits` says whether its user chose pool
    limits; None where nobody can tell: then limits other than the stack's defaults count as chosen.
    """

    supports = frozenset({"max_idle", "idle_timeout", "max_lifetime", "max_requests", "tcp_keepalive"})

    def __init__(
        self, shapes: Shapes, client: Any, *, explicit_limits: bool | None, supplied: tuple[Any, ...]
    ) -> None:
        self._shapes = shapes
        self._client = weakref.ref(client)
        self._explicit = explicit_limits
        self._supplied: weakref.WeakSet[Any] = weakref.WeakSet(t for t in supplied if type(t) in shapes.transports)
        self._settings: SocketSettings | None = None
        self._policy: ConnectionPolicy | None = None
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[Any, CorePool | None] = weakref.WeakKeyDictionary()
        self.loops = Loops(self)
        self.opened_total = Counter()
        self._stale = self._other = 0
        self._respected = False
        self._closings: set[Any] = set()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Start afresh: the parent's connections are forgotten here, without a word to their peers."""
        self._lock = threading.Lock()
        for pool in self._pools():
            pool.forget()
        self.loops.after_fork_in_child()

    # What the pool plugin says.

    def configure(self, settings: SocketSettings, policy: ConnectionPolicy) -> None:
        self._settings = settings
        self._policy = policy
        for transport in self.transports():
            self.adopt(transport)

    def adopt(self, transport: Any) -> None:
        """Drive the pool of `transport` from now on. Called before each use; the first time counts."""
        if transport in self._known or type(transport) not in self._shapes.transports:
            return
        with self._lock:
            if transport in self._known:
                return
            pool = CorePool.of(self._shapes, transport)
            self._known[transport] = pool
        if pool is not None and self._policy is not None and transport not in self._supplied:
            assert self._settings is not None
            explicit = self._explicit if self._explicit is not None else pool.has_chosen_limits()
            self._respected = self._respected or explicit
            pool.drive(self, self._settings, explicit)

    def adopt_twin(self, original: Any, loop: Any) -> Any:
        """A transport like `original` for `loop`, treated as the original is."""
        self.adopt(original)
        known = self._known[original]
        if known is None:
            return original
        twin = known.twin(original)
        if original in self._supplied:
            self._supplied.add(twin)
        self.adopt(twin)
        self.settle(twin, loop)
        return twin

    def settle(self, transport: Any, loop: Any) -> None:
        """Note that the connections of `transport` belong to `loop`; those of an earlier one are over."""
        self.adopt(transport)
        pool = self._known.get(transport)
        if pool is not None:
            if pool.loop is not None:
                pool.forget()
            pool.loop = loop

    def original_settings(self, transport: Any) -> dict[str, Any] | None:
        """The settings with which the client made `transport`; None for one that its user passed in, or that is of
        unknown layout."""
        if type(transport) not in self._shapes.transports or transport in self._supplied:
            return None
        self.adopt(transport)
        known = self._known.get(transport)
        return None if known is None else known.original_settings()

    def chosen_limit(self) -> int | None:
        """The most connections that the client's user allowed; None where no choice was made."""
        client = self._client()
        if client is None or type(client._transport) not in self._shapes.transports:
            return None
        transport = client._transport
        self.adopt(transport)
        known = self._known.get(transport)
        if known is None or not (known.has_chosen_limits() if self._explicit is None else self._explicit):
            return None
        limit: int = known.original_settings()["_max_connections"]
        return limit

    def keep(self, transport: Any, url: Any, stream: Any) -> None:
        """Have the pool of `transport` use `stream`, on which nothing was sent yet, for its next connection to the
        origin of `url`."""
        known = self._known.get(transport)
        if known is None or not known.keep(url, stream):
            stream.close()

    def part(self, transport: Any, url: Any) -> None:
        """Close what idles for the origin of `url`: the next request there gets another connection."""
        known = self._known.get(transport)
        if known is not None:
            known.part(url)

    async def async_part(self, transport: Any, url: Any) -> None:
        """As `part`, for an AsyncClient; `transport` is the running loop's."""
        known = self._known.get(transport)
        if known is not None:
            await known.async_part(url)

    def can_be_copied(self, transport: Any) -> bool:
        """Whether a loop of its own can have a copy of `transport`."""
        self.adopt(transport)
        return self._known.get(transport) is not None

    def restore(self) -> None:
        """Give the pools back as they were; connections that are open go on."""
        for pool in self._pools():
            pool.restore()
        self._policy = None

    # What driven pools and connections ask and tell.

    @property
    def max_idle(self) -> int | None:
        return None if self._settings is None else self._settings.max_idle

    def opened(self) -> None:
        self.opened_total.add()

    def refuses(self, connection: Driven, now: float) -> bool:
        """Whether the policy would not have an idle connection reused."""
        policy = self._policy
        if policy is None or connection.idle_since is None:
            return False
        # Under limits of the user's own the idle time is httpcore's to judge.
        idle = 0.0 if connection.respects_limits else now - connection.idle_since
        reason = policy.discard_reason(
            connection.origin, idle=idle, age=now - connection.born, requests=connection.requests
        )
        if reason is None:
            return False
        with self._lock:
            self._other += 1
        return True

    def expired(self, connection: Driven) -> None:
        """httpcore found an idle connection closed by its server, or past the user's own keepalive_expiry."""
        outlived = connection.outlived()
        with self._lock:
            self._other += outlived
            self._stale += not outlived
        if not outlived and self._policy is not None:
            self._policy.died(connection.origin, connection.idled())

    def surplus(self, count: int) -> None:
        with self._lock:
            self._other += count

    def answered(self, connection: Driven, idled: float | None, headers: list[tuple[bytes, bytes]]) -> None:
        policy = self._policy
        if policy is None:
            return
        if idled is not None:
            policy.reused(connection.origin, idled)
        for name, value in headers:
            if len(name) == 10 and name.lower() == b"keep-alive":
                seconds = _keep_alive_seconds(value)
                if seconds is not None:
                    policy.keep_alive_hint(connection.origin, seconds)

    def failed(self, connection: Driven, idled: float | None, error: Exception) -> None:
        core = self._shapes.stack.core
        lost = (core.ReadError, core.WriteError, core.RemoteProtocolError)
        if idled is not None and self._policy is not None and isinstance(error, lost):
            self._policy.died(connection.origin, idled)

    def rescue(self, stream: Any) -> None:
        """Free what a cancelled closing of a response's stream left behind."""
        closing = rescue(stream)
        if closing is None:
            return
        if current_loop() is None:
            # Torn down after its loop: there is nothing left to wait with.
            closing.close()
        else:
            self._closings = {known for known in self._closings if not known.done()}
            self._closings.add(Asyncio().spawn(closing, name="pool-close"))

    # What netkit shows and does.

    def counts(self) -> PoolCounts:
        open_, idle = 0, 0
        for pool in self._pools():
            alive, resting = pool.counts()
            open_ += alive
            idle += resting
        return PoolCounts(
            open=open_,
            idle=idle,
            in_use=open_ - idle,
            opened_total=self.opened_total.value,
            discarded_stale=self._stale,
            discarded_other=self._other,
        )

    def sweep(self) -> int:
        """Close idle connections that the policy would refuse; in a loop, those of this loop."""
        if self._policy is None:
            return 0
        return sum(pool.sweep() for pool in self._pools() if pool.loop is None or pool.loop is current_loop())

    def describe(self) -> dict[str, Any]:
        name = self._shapes.stack.name
        own = f"limits= of the client, which its user chose, wins over this ({name})"
        described = {
            "connect_timeout": f"does not apply: {name} gives every request a connect timeout",
            "acquire_timeout": f"does not apply to requests with a pool timeout of their own ({name} sets one)",
            "warm": "does not apply: httpcore opens a connection only for a request",
            "happy_eyeballs": "as httpcore does it: AsyncClient only",
        }
        if self._respected:
            described |= {"max_idle": own, "idle_timeout": own}
        stock = self._shapes.transports
        unknown = [t for t in self.transports() if type(t) not in stock or self._known.get(t) is None]
        if unknown:
            names = ", ".join(sorted({type(transport).__name__ for transport in unknown}))
            note = f"does not apply to {names}: not {name}'s own transport, or of unknown layout"
            described |= {option: note for option in self.supports if option not in described}
        if len(self._supplied):
            note = "does not apply to transports that were passed in"
            described |= {option: note for option in self.supports if option not in described}
        return described

    def close(self) -> None:
        """Close what was opened for httpcore and never used by it."""
        for pool in self._pools():
            pool.close_fresh()

    async def aclose(self) -> None:
        """Close what was opened in loops other than the first."""
        await self.loops.aclose()

    def transports(self) -> Iterator[Any]:
        """The transports that the client has at present."""
        client = self._client()
        if client is not None:
            yield client._transport
            yield from {id(t): t for t in client._mounts.values() if t is not None}.values()

    def _pools(self) -> Iterator[CorePool]:
        for transport in list(self.transports()):
            self.adopt(transport)
        with self._lock:
            known = list(self._known.values())
        yield from (pool for pool in known if pool is not None)

    def __repr__(self) -> str:
        return f"<HttpcorePool {self.counts()}>"


def _keep_alive_seconds(value: bytes) -> float | None:
    for part in value.split(b","):
        name, _, number = part.strip().partition(b"=")
        if name.lower() == b"timeout" and number.strip().isdigit():
            return float(number)
    return None
