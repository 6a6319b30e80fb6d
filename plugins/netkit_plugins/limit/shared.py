"""Rates and pauses that several processes share through Redis: the arithmetic of `rates`, done by one script.

Rules of this file:

- Each step is one script: what two processes do at once happens in some order.
- Times are those of the Redis server; processes whose clocks differ still agree.
- While Redis is away the process's own rates rule (`netkit.shared` warns once, and looks again).
- Full buckets and past pauses are not kept: a key that nobody uses expires by itself.
"""

from __future__ import annotations

from typing import Any, Final

from netkit.runtime import Runtime
from netkit.shared import SharedRedis
from netkit_plugins.limit.rates import Rates

__all__ = ["SharedRates"]

# Redis writes Lua's numbers with 14 digits, which is a tenth of a millisecond: the format keeps them whole.
_RESERVE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local latest = now
local function reserve(field, rate, capacity, cost)
  if rate <= 0 or cost <= 0 then return now end
  local full = math.max(tonumber(redis.call('HGET', KEYS[1], field) or 0), now)
  local due = math.max(now, full - (capacity - math.min(cost, capacity)) / rate)
  full = full + cost / rate
  redis.call('HSET', KEYS[1], field, string.format('%.17g', full))
  latest = math.max(latest, full)
  return due
end
local due = math.max(
  reserve('requests', tonumber(ARGV[1]), tonumber(ARGV[2]), 1),
  reserve('tokens', tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])))
if latest > now then redis.call('PEXPIRE', KEYS[1], math.ceil(latest - now) + 60000) end
local paused = redis.call('PTTL', KEYS[2])
return {string.format('%.3f', due - now), paused}
"""

_ADJUST: Final = """
for i, field in ipairs({'requests', 'tokens'}) do
  local by = tonumber(ARGV[i])
  local full = redis.call('HGET', KEYS[1], field)
  if full and by ~= 0 then redis.call('HSET', KEYS[1], field, string.format('%.17g', full + by)) end
end
"""

_PAUSE: Final = """
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], 1, 'PX', ARGV[1]) end
"""


class SharedRates:
    """The buckets and the pause of one key in Redis. `local` is what rules while Redis is away, None: no rate."""

    def __init__(self, redis: SharedRedis, key: str, local: Rates | None) -> None:
        self._redis = redis
        self._local = local
        requests = None if local is None else local.requests
        tokens = None if local is None else local.tokens
        # Units per millisecond, 0 for no limit.
        self._per_ms = [0.0 if bucket is None else bucket.rate / 1000 for bucket in (requests, tokens)]
        self._capacity = [0.0 if bucket is None else bucket.capacity for bucket in (requests, tokens)]
        limits = ":".join(f"{value:g}" for value in (*self._per_ms, *self._capacity))
        # Braces: both lie in one slot of a cluster.
        self._rates_key = f"netkit:limit:{{{key}}}:{limits}"
        self._pause_key = f"netkit:limit:{{{key}}}:pause"

    async def reserve(self, runtime: Runtime, tokens: float) -> tuple[float, float]:
        """Take one request and `tokens`: the monotonic time at which it may go, and the seconds for which a pause
        goes on (0.0: none)."""
        taken: list[list[Any]] = []

        def take(redis: Any) -> list[Any]:
            values = (self._per_ms[0], self._capacity[0], self._per_ms[1], self._capacity[1], tokens)
            taken.append(redis.eval(_RESERVE, 2, self._rates_key, self._pause_key, *values))
            return taken[0]

        try:
            answer = await self._redis.ask(runtime, take, None)
        except BaseException:
            if taken:
                self.adjust(-1.0, -tokens)
            raise
        now = runtime.now()
        if answer is None:
            return now if self._local is None else self._local.reserve(now, tokens), 0.0
        return now + float(answer[0]) / 1000, max(0.0, answer[1] / 1000)

    def adjust(self, requests: float, tokens: float) -> None:
        """It cost so much more, or less where negative. From anywhere; nobody waits for it."""
        moved = [
            amount / rate if rate else 0.0 for amount, rate in zip((requests, tokens), self._per_ms, strict=True)
        ]
        local = self._local
        if local is not None and any(moved):
            self._redis.post(
                lambda redis: redis.eval(_ADJUST, 1, self._rates_key, *moved),
                lambda: local.adjust(requests, tokens),
            )

    def pause(self, seconds: float) -> None:
        """Tell the other processes."""
        self._redis.post(lambda redis: redis.eval(_PAUSE, 1, self._pause_key, max(1, int(seconds * 1000))))

    def __repr__(self) -> str:
        return f"<SharedRates {self._redis!r}>"
