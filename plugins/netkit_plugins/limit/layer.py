"""The limit layer: finds a call's lane, lets it in, and holds on to its place until the answer has ended."""

from __future__ import annotations

import math
import re
import threading
from hashlib import blake2b
from typing import Final

import msgspec

from netkit import Context, Request, Response, Send, fork
from netkit.identity import Identities
from netkit.knobs import Knob
from netkit.shared import SharedRedis
from netkit.stats import Counter
from netkit_plugins.limit.asked import asked_of, estimate
from netkit_plugins.limit.call import LimitedCall
from netkit_plugins.limit.identity import key_of
from netkit_plugins.limit.lane import Lane
from netkit_plugins.limit.options import LimitOptions
from netkit_plugins.limit.shared import SharedRates
from netkit_plugins.limit.store import Store, process_store
from netkit_plugins.limit.width import AdaptiveWidth, Width

__all__ = ["LimitLayer", "LimitStats"]

MAX_LANES: Final = 1024
"""Lanes kept by one session; beyond it those without traffic are forgotten."""
NORMAL: Final = 3
CALLERS_PATIENCE: Final = 5.0
"""Seconds for which callers wait where nobody said how long: httpx's own pool timeout."""
_URGENCY: Final = re.compile(r"(?:^|[,;\s])u=(\d)(?:$|[,;\s])")
_INTEGER: Final = re.compile(r"-?\d{1,9}", re.ASCII)


class LimitStats(msgspec.Struct, frozen=True):
    """Now: attempts `in_use` (until their bodies end), calls `queued`, seconds for which the longest pause goes on
    (`paused`), and the smallest `concurrency` allowed (0: no limit). Totals that never fall: seconds that calls
    waited, pauses, calls `rejected` because the queue was full, and those that waited too long (`timeouts`)."""

    in_use: int = 0
    queued: int = 0
    concurrency: int = 0
    paused: float = 0.0
    waited_total: float = 0.0
    pauses: int = 0
    rejected: int = 0
    timeouts: int = 0

    def __add__(self, other: LimitStats) -> LimitStats:
        """Of two layers of one session: a route's and its default."""
        return LimitStats(
            in_use=self.in_use + other.in_use,
            queued=self.queued + other.queued,
            concurrency=min(self.concurrency or other.concurrency, other.concurrency or self.concurrency),
            paused=max(self.paused, other.paused),
            waited_total=self.waited_total + other.waited_total,
            pauses=self.pauses + other.pauses,
            rejected=self.rejected + other.rejected,
            timeouts=self.timeouts + other.timeouts,
        )


class LimitLayer:
    """One per session and set of options."""

    def __init__(self, options: LimitOptions, context: Context) -> None:
        self._options = options
        self.runtime = context.runtime
        self.now = context.runtime.now
        self.emit = context.emit
        self.max_queue = math.inf if options.max_queue is None else options.max_queue
        self.counts_tokens = options.tokens_per_minute is not None
        self.pauses, self.rejected, self.timeouts = Counter(), Counter(), Counter()
        self._redis = None if options.storage == "memory" else SharedRedis(options.storage)
        # Processes that share must come to the same digests: what they have in common is the URL.
        secret = None if self._redis is None else blake2b(options.storage.encode(), digest_size=32).digest()
        self._identities = Identities(secret)
        self.next_number = Counter().add
        self._rate_options = (options.requests_per_second, options.tokens_per_minute, options.burst)
        # A clock of its own: its times mean nothing to other sessions.
        self._own_store = None if context.runtime.name in ("threads", "asyncio") else Store()
        self._waited_before = 0.0
        self._concurrency: float = 0 if isinstance(options.concurrency, str | None) else options.concurrency
        self._start()
        fork.register(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}

    def after_fork_in_child(self) -> None:
        """The parent's callers and attempts are not this process's."""
        self._start()

    async def __call__(self, request: Request, send: Send) -> Response:
        asked = asked_of(request)
        origin, key = key_of(request.url, request.headers, None if asked is None else asked.name, self._identities)
        lane = self._lanes.get(key) or self._lane(origin, key)
        tokens = estimate(asked) if self.counts_tokens or lane.word.counts_tokens else 0.0
        call = LimitedCall(self, lane, tokens, self._priority(request), request.extensions.get("admission"))
        try:
            await call.admit(self._patience(request))
            response = await send(request.extend(admission=call))
            call.outcome(response, None)
        except BaseException as error:
            if call.held:
                call.outcome(None, error)
            call.end()
            raise
        call.watch(response)
        return response

    def stats(self) -> LimitStats:
        lanes, now = list(self._lanes.values()), self.now()
        widths = [lane.width.limit for lane in lanes if lane.width.limit != math.inf]
        return LimitStats(
            in_use=sum(lane.in_use for lane in lanes),
            queued=sum(lane.queued for lane in lanes),
            concurrency=int(min(widths, default=self._width().limit if self._options.concurrency else 0)),
            paused=max((max(0.0, lane.word.paused_until - now) for lane in lanes), default=0.0),
            waited_total=self._waited_before + sum(lane.waited for lane in lanes),
            pauses=self.pauses.value,
            rejected=self.rejected.value,
            timeouts=self.timeouts.value,
        )

    def knobs(self) -> list[Knob]:
        """A number of attempts at once that is fixed. It is no more than what was configured, unless somebody says
        so: it may stand for what was agreed with the server's owner."""
        configured = self._options.concurrency
        if configured is None or isinstance(configured, str):
            return []
        return [
            Knob(
                "concurrency",
                get=lambda: self._concurrency,
                set=self._resize,
                lowest=max(1, configured // 4),
                highest=configured,
                patience=CALLERS_PATIENCE if self._options.acquire_timeout is None else self._options.acquire_timeout,
            )
        ]

    def _resize(self, value: float) -> None:
        self._concurrency = value
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.resize(value)

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def _lane(self, origin: str, key: str) -> Lane:
        store = self._own_store or process_store()
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None:
                if len(self._lanes) >= MAX_LANES:
                    self._forget_idle()
                local = store.rates(key, self._rate_options)
                rates = local if self._redis is None else SharedRates(self._redis, key, local)
                lane = self._lanes[key] = Lane(origin, store.word(key), rates, self._width())
        return lane

    def _forget_idle(self) -> None:
        idle = {name: lane for name, lane in self._lanes.items() if lane.is_idle}
        self._waited_before += sum(lane.waited for lane in idle.values())
        self._lanes = {name: lane for name, lane in self._lanes.items() if name not in idle}

    def _width(self) -> Width:
        concurrency = self._options.concurrency
        if concurrency is None:
            return Width()
        return AdaptiveWidth() if isinstance(concurrency, str) else Width(self._concurrency)

    def _patience(self, request: Request) -> float | None:
        """How long a call waits for its turn; None for ever."""
        given = [limit for limit in (self._options.acquire_timeout, request.timeout.pool) if limit is not None]
        return min(given, default=None)

    def _priority(self, request: Request) -> int:
        name = self._options.priority
        value = None if name is None else request.headers.get(name)
        if value is None:
            return NORMAL
        if _INTEGER.fullmatch(value.strip()):
            return int(value)
        urgency = _URGENCY.search(value)
        return int(urgency[1]) if urgency else NORMAL

    def __repr__(self) -> str:
        return f"<LimitLayer {self.stats()}>"
