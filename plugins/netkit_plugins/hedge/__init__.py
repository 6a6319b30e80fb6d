"""A second copy of a call that takes long, to another replica; whoever answers first is the answer.

Example::

    [tool.netkit.balance]
    endpoints = ["https://gpu-1:8000", "https://gpu-2:8000"]
    [tool.netkit.hedge]
    delay = "p95"                 # after the time within which 95 of 100 recent calls had their answer
    max_extra_load = 0.05         # at most one copy per 20 calls

Dean and Barroso, "The Tail at Scale" (2013): a copy sent after the 95th percentile costs at most 5 % more requests,
and of the tail remains what two replicas are both slow for. Retries do not do that: they wait for a failure, and a
slow answer is none.

What is hedged: calls that change nothing (GET, HEAD, OPTIONS, pure routes such as embeddings, `extensions["pure"]`)
whose body is in memory; with `idempotent = true` PUT and DELETE, too. Only up to an answer's head: once there is one,
nothing is sent any more.

- The first *good* answer wins. A copy that fails, or answers with an error, does not beat a first one that still
  runs.
- The loser is cancelled: its stream is reset, its connection closed.
- The extra load is bounded by a budget per origin, counted over calls. A server that becomes slow as a whole gets
  5 % more requests, not twice as many.

Order: inside `retry` (each attempt may be hedged) and `limit` (which is asked for the copy, too), outside of
`balance`, which sends the copy to another replica, and `breaker`, which sees both.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.hedge.layer import HedgeLayer, HedgeStats
from netkit_plugins.hedge.options import HedgeOptions

__all__ = ["HedgeLayer", "HedgeOptions", "HedgeStats", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "hedge",
        HedgeLayer,
        options=HedgeOptions,
        summary="a second copy of what takes long, to another replica; the first answer wins",
    )
