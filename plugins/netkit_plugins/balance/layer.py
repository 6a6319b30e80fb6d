"""The balance layer: one choice before a call, one judgement after it.

Rules of this file:

- A call is under way at its replica from the choice to the end of its body; every way out says so once.
- Choosing takes one short lock and no clock but the runtime's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from netkit import Request, Response, Send, fork
from netkit.blame import judge_end, judge_error
from netkit.errors import ConfigError, TransportError
from netkit.events import EndpointEjected
from netkit.plugins import Context
from netkit.retry_after import requested_delay
from netkit_plugins.balance.addresses import REFRESH, Addresses
from netkit_plugins.balance.choice import PICKS, by_affinity, candidates
from netkit_plugins.balance.options import BalanceOptions
from netkit_plugins.balance.replica import Replica, ReplicaStats
from netkit_plugins.balance.reports import utilisation_of
from netkit_plugins.balance.service import Service, Target

__all__ = ["BalanceLayer", "BalanceStats"]

LONGEST_REST: Final = 60.0
"""Seconds for which a replica is left alone at most because it asked for it (Retry-After)."""
MAX_KEY: Final = 1024


class BalanceStats(msgspec.Struct, frozen=True):
    """`endpoints` by URL; `ejections` so far; `all_out`: calls made while every replica was out."""

    endpoints: dict[str, ReplicaStats]
    ejections: int
    all_out: int


class BalanceLayer:
    """One per session and set of options."""

    def __init__(self, options: BalanceOptions, context: Context) -> None:
        if not options.endpoints:
            raise ConfigError('balance.endpoints is empty: name at least one, such as ["https://gpu-1:8000"]')
        self._options = options
        self._context = context
        self._now = context.runtime.now
        self._service = Service(options)
        resolves = options.resolve or options.max_connection_age is not None
        self._addresses = [
            Addresses(Target(endpoint), options.max_connection_age or REFRESH) for endpoint in options.replicas()
        ]
        self._names = [each for each in self._addresses if resolves and not each.fixed]
        self._pick = PICKS[options.policy]
        self._random = Random()
        # Entered again by a collector that runs inside it and ends a body.
        self._lock = threading.RLock()
        self._targets: dict[str, Target] = {}
        self._replicas: dict[str, Replica] = {}
        self._ejections = self._all_out = 0
        self._take_over()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """The parent's calls under way are not this process's: where they end here too, they end with the replicas
        that they began with."""
        self._lock = threading.RLock()
        self._random = Random()
        self._replicas = {key: replica.afresh() for key, replica in self._replicas.items()}

    async def __call__(self, request: Request, send: Send) -> Response:
        rest = self._service.rest_of(request.url)
        if rest is None:
            return await send(request)
        if self._names:
            await self._refresh()
        replica, target = self._choose(request)
        chosen: Callable[[str], None] | None = request.extensions.get("on_endpoint")
        started = self._now()
        try:
            if chosen is not None:
                chosen(replica.key)
            response = await send(target.addressed(request, rest))
        except TransportError as error:
            error.details.setdefault("endpoint", replica.key)
            self._end(replica, judge_error(error))
            raise
        except BaseException:
            self._end(replica, None)
            raise
        response.extensions["endpoint"] = replica.key
        if response.status == 429 or response.status >= 500:
            response.extensions["other_endpoints"] = self._others_in(replica)
        _Watch(self, replica, started).follow(response)
        return response

    # Choosing

    def _choose(self, request: Request) -> tuple[Replica, Target]:
        avoid = request.extensions.get("avoid_endpoints", ())
        key = self._affinity(request) if self._options.policy == "affinity" else None
        now = self._now()
        with self._lock:
            among = candidates(list(self._replicas.values()), now, avoid)
            replica = self._pick(among, now, self._random) if key is None else by_affinity(among, key)
            if replica.is_out(now):
                self._all_out += 1
            replica.begin()
            return replica, self._targets[replica.key]

    def _others_in(self, replica: Replica) -> int:
        now = self._now()
        return sum(not other.is_out(now) for other in list(self._replicas.values()) if other is not replica)

    def _affinity(self, request: Request) -> str | None:
        name = self._options.affinity_key
        if not name.startswith("body."):
            value = request.headers.get(name)
            return None if value is None else value[:MAX_KEY]
        content = request.body.content
        if content is None:
            return None
        try:
            fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        found = fields.get(name.removeprefix("body."))
        return None if found is None else bytes(found)[:MAX_KEY].decode("utf-8", "replace")

    # Judging

    def _judge(self, replica: Replica, failed: bool | None) -> None:
        """`failed`: True is the replica's fault, False is a success, None says nothing."""
        with self._lock:
            if failed is False:
                replica.succeed()
            seconds = self._failed(replica) if failed else None
        self._tell(replica, seconds, "failures")

    def _end(self, replica: Replica, failed: bool | None) -> None:
        """A call is over."""
        with self._lock:
            replica.finish()
        self._judge(replica, failed)

    def _failed(self, replica: Replica) -> float | None:
        options = self._options
        now = self._now()
        if replica.fail() < options.eject_after or not options.eject_after or replica.is_out(now):
            return None
        if all(other.is_out(now) for other in self._replicas.values() if other is not replica):
            # The last one: better a bad replica than none.
            return None
        self._ejections += 1
        return replica.eject(now, options.eject_time, options.eject_time_max)

    def _rest(self, replica: Replica, seconds: float) -> None:
        seconds = min(seconds, LONGEST_REST)
        with self._lock:
            is_new = not replica.is_out(self._now())
            replica.rest(self._now(), seconds)
        self._tell(replica, seconds if is_new else None, "asked")

    def _tell(self, replica: Replica, seconds: float | None, reason: str) -> None:
        if seconds is not None and self._context.emit:
            self._context.emit(
                EndpointEjected(time=self._now(), endpoint=replica.key, seconds=seconds, reason=reason)
            )

    # Names

    async def _refresh(self) -> None:
        now = self._now()
        for addresses in self._names:
            if addresses.is_due(now) and await addresses.refresh(self._context.runtime):
                self._take_over()

    def _take_over(self) -> None:
        """The replicas of all addresses that are known now; those known before keep what was learnt of them."""
        with self._lock:
            targets = {target.key: target for each in self._addresses for target in each.targets}
            self._targets = targets
            before = self._replicas
            fewest = min((known.calls / known.weight for known in before.values()), default=0.0)
            self._replicas = {
                key: before.get(key) or _newcomer(key, target.endpoint.weight, fewest)
                for key, target in targets.items()
            }

    def stats(self) -> BalanceStats:
        now = self._now()
        with self._lock:
            return BalanceStats(
                endpoints={key: replica.stats(now) for key, replica in self._replicas.items()},
                ejections=self._ejections,
                all_out=self._all_out,
            )

    def __repr__(self) -> str:
        return f"<BalanceLayer {list(self._replicas.values())}>"


def _newcomer(key: str, weight: float, calls_by_weight: float) -> Replica:
    """It starts level with the others: round-robin must not give it all calls until it has caught up."""
    replica = Replica(key, weight)
    replica.calls = int(calls_by_weight * weight)
    return replica


class _Watch:
    """Follows one answer to the end of its body. It does not hold the answer, which holds it."""

    __slots__ = ("_failed", "_layer", "_replica", "_started")

    def __init__(self, layer: BalanceLayer, replica: Replica, started: float) -> None:
        self._layer = layer
        self._replica = replica
        self._started = started
        self._failed: bool | None = False

    def follow(self, response: Response) -> None:
        layer, replica = self._layer, self._replica
        if response.status == 429 or response.status >= 500:
            asked = requested_delay(response.headers, time.time()) if response.status in (429, 503) else None
            # Too many requests are the callers' doing: the replica is left alone for as long as it asked.
            self._failed = None
            if response.status >= 500:
                layer._judge(replica, True)
            if asked:
                layer._rest(replica, asked)
            response.observe(on_end=self._end)
            return
        utilisation = utilisation_of(response.headers)
        if utilisation is not None:
            with layer._lock:
                replica.report(utilisation, layer._now())
        response.observe(self._first, self._end)

    def _first(self, chunk: bytes) -> bytes:
        if chunk and self._started >= 0:
            self._measured()
        return chunk

    def _measured(self) -> None:
        now = self._layer._now()
        with self._layer._lock:
            self._replica.first_byte(now - self._started, now)
        self._started = -1.0

    def _end(self, error: BaseException | None) -> None:
        if self._failed is not False:
            self._layer._end(self._replica, self._failed)
            return
        if self._started >= 0 and error is None:
            # A body without a byte: its end is its first.
            self._measured()
        self._layer._end(self._replica, judge_end(error))
