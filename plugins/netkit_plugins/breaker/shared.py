"""Circuits in Redis: one script that decides for all processes at once.

The keys of state, failures and time of opening are those of `pybreaker.CircuitRedisStorage`, so that whoever looks
at them with pybreaker sees the same circuit. What pybreaker has no key for (probes, growing times) lies beside them.

Rules of this file:

- Each step is one script: what two processes do at once happens in some order.
- Times are those of the Redis server; processes whose clocks differ still agree.
- A circuit that nobody touches is forgotten after an hour beyond its longest time of being open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from netkit_plugins.breaker.circuit import LEASE, Circuit, Permit, Snapshot, jitter
from netkit_plugins.breaker.options import BreakerOptions

__all__ = ["SharedSteps"]

KEEP: Final = 3600.0

SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local step, seen, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local fail_max, base, most, factor = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local probes, lease, keep = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local state = redis.call('GET', KEYS[1])
local epoch = tonumber(redis.call('HGET', KEYS[4], 'epoch'))
if not state or not epoch then state, epoch = 'closed', math.max(seen, 0) end
if seen < 0 then seen = epoch end
local cycle = tonumber(redis.call('HGET', KEYS[4], 'cycle') or 0)
local till = tonumber(redis.call('HGET', KEYS[4], 'until') or 0)
local granted, changed = 0, step ~= 'look'

local function open(failed_probes)
  state, epoch, cycle = 'open', epoch + 1, failed_probes
  till = now + math.floor(math.min(base * 2 ^ math.min(cycle, 32), most) * factor)
  redis.call('SET', KEYS[3], time[1])
  redis.call('DEL', KEYS[5])
end

if step == 'count' or step == 'trip' then
  if state == 'closed' and epoch == seen then
    local failures = redis.call('INCR', KEYS[2])
    if step == 'trip' or (fail_max > 0 and failures >= fail_max) then open(0) end
  end
elseif step == 'reset' then
  if state == 'closed' and epoch == seen then redis.call('SET', KEYS[2], 0) end
elseif step == 'ask' then
  if state == 'open' and now >= till then state = 'half-open' end
  if state == 'half-open' then
    redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
    if redis.call('ZCARD', KEYS[5]) < probes then
      redis.call('ZADD', KEYS[5], now + lease, token)
      granted = 1
    end
  end
elseif step == 'failed' then
  if state == 'half-open' and epoch == seen then open(cycle + 1) end
elseif step == 'good' then
  if state == 'half-open' and epoch == seen then
    state, epoch, cycle, till = 'closed', epoch + 1, 0, 0
    redis.call('SET', KEYS[2], 0)
    redis.call('DEL', KEYS[5])
  end
elseif step == 'release' then
  redis.call('ZREM', KEYS[5], token)
end
if changed then
  redis.call('SET', KEYS[1], state)
  redis.call('HSET', KEYS[4], 'epoch', epoch, 'cycle', cycle, 'until', till)
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, keep) end
end
return {state, tonumber(redis.call('GET', KEYS[2]) or 0), math.max(0, till - now), epoch, cycle, granted}
"""


class SharedSteps:
    """Makes the functions that `netkit.shared.SharedRedis` runs. `process` names this process in its probes."""

    def __init__(self, options: BreakerOptions, process: str) -> None:
        self._options = options
        self._process = process

    def step(self, name: str, circuit: Circuit, permit: Permit | None = None) -> Callable[[Any], Snapshot]:
        """One step of `circuit`: "look", "ask" for a probe, "count" a failure, "trip", "failed" or "good" probe,
        "release" a probe, "reset" the failures."""
        options = self._options
        namespace = f"netkit:breaker:{{{circuit.name}}}"
        keys = [f"{namespace}:pybreaker:{key}" for key in ("state", "fail_counter", "opened_at")]
        keys += [f"{namespace}:more", f"{namespace}:probes"]
        longest = max(options.reset_timeout_max, options.reset_timeout)
        values = [
            name,
            circuit.epoch if permit is None else permit.epoch,
            "" if permit is None else f"{self._process}:{id(permit)}",
            options.fail_max or 0,
            _milliseconds(options.reset_timeout),
            _milliseconds(longest),
            jitter(),
            options.probes,
            _milliseconds(max(LEASE, options.reset_timeout)),
            _milliseconds(longest + KEEP),
        ]

        def run(redis: Any) -> Snapshot:
            state, failures, remaining, epoch, cycle, granted = redis.eval(SCRIPT, len(keys), *keys, *values)
            state = state.decode() if isinstance(state, bytes) else state
            return Snapshot(state, failures, remaining / 1000, epoch, cycle, bool(granted))

        return run


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
