"""Connections: how many at once, who waits for one and how long, and which are too old to trust.

Why not the stacks' own limits: requests has none, or blocks for ever; httpx and aiohttp count for the whole client,
not per server, and under load serve whoever comes first instead of whoever waited longest. netkit puts one fair queue
in front of every stack's pool, and drives that pool by what the server shows of itself. It opens and parses nothing.

Example::

    client = netkit.Client(plugins={"pool": {"max_connections": 32, "acquire_timeout": 5.0}})

- A slot belongs to one exchange until its connection is free: body read to its end, closed, failed, or collected.
- Waiting is first come, first served, per origin. `max_queue` callers may wait; the next gets `QueueFull` at once.
- A pool timeout that the caller gave (`httpx.Timeout(pool=…)`) wins over `acquire_timeout`, longer or shorter.
- Slots are counted per session and set of options: a route with its own `[pool]` options has a queue of its own. The
  stack's pool belongs to the whole session and follows the options of the session, not those of a route.
- Stale connections are closed by a watcher that exists only while connections are open (see `sweep`).

Order: innermost, with `http2` above it. A layer outside that resends gives its slot back before it waits.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.pool.idle import IdlePolicy
from netkit_plugins.pool.layer import PoolLayer
from netkit_plugins.pool.options import PoolOptions
from netkit_plugins.pool.slots import SlotQueue

__all__ = ["IdlePolicy", "PoolLayer", "PoolOptions", "SlotQueue", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "pool",
        PoolLayer,
        options=PoolOptions,
        kind="transport",
        # Unasked, a drop-in must not refuse what the plain stack would have done: no caller is turned away.
        implicit=PoolOptions(max_connections=None, acquire_timeout=None, max_queue=None),
        summary="Limits, a fair queue and trustworthy idle connections for the stack's own pool",
    )
