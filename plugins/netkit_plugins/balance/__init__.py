"""Spreads calls over the replicas of a service.

Example::

    [tool.netkit.balance]
    url = "https://embed.internal"               # what the program calls
    endpoints = ["https://gpu-1:8000", { url = "https://gpu-2:8000", weight = 2, auth = "its-own-key" }]

Two replicas are drawn at random, and mostly the better one gets the call: the one for which the time to the first
byte (a peak EWMA) times the calls under way is less. To the first byte and not to the last, since a long generation
must not look like a slow server. What servers say of their own load counts, too: `endpoint-load-metrics` of vLLM and
Triton, `x-queue-time` of text-embeddings-inference.

A replica that fails `eject_after` times in a row gets no calls for a time, one that asks to be left alone
(Retry-After with 429 or 503) gets none for as long as it asked. The last one is never ejected, and with all of them
out all are used.

Credentials: what the caller gave for the service goes to its replicas, save cookies, which stay with their host. A
replica with `headers` or `auth` of its own gets those instead, and no other replica ever does.

Order: inside `retry`, whose next attempt then prefers another replica, and outside `breaker`, which so sees replicas.
"""

from __future__ import annotations

from typing import Any

import netkit
from netkit_plugins.balance.layer import BalanceLayer, BalanceStats
from netkit_plugins.balance.options import BalanceOptions, Endpoint

__all__ = ["BalanceLayer", "BalanceOptions", "BalanceStats", "Endpoint", "netkit_register"]


@netkit.hookimpl
def netkit_register(register: Any) -> None:
    register(
        "balance",
        BalanceLayer,
        options=BalanceOptions,
        summary="calls spread over replicas, by what each of them takes to answer; bad ones left out for a time",
    )
