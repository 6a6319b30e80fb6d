"""A breaker that refuses calls to what is down, and finds out with few of them when it is up again.

Why not pybreaker's own `call`: it holds a lock for as long as the call lasts, so that 20 threads become one, and it
never counts a coroutine, whose making always succeeds. Here pybreaker keeps the state and counts; netkit asks it
before a call and tells it afterwards, with nothing held in between.

Example::

    session = netkit.Session(plugins={"breaker": {"fail_max": 5, "reset_timeout": 30}})
    try:
        session.post(url, json=payload)
    except netkit.errors.CircuitOpen as error:      # also a requests.ConnectionError
        later(error.retry_after)                    # seconds until it is worth trying
    netkit.stats(session).breakers["http://gpu:8000"].state

What counts as a failure: transport errors, a status in `failure_statuses`, a body that dies or falls silent on the
way. Decided at the end of the body: a call that answers 200 and then resets is a failure. What does not count: 4xx
and 429 (unless listed), cancellation, leaving a body early, a full pool or spent deadline (this process's own), a
refused stream (the server is well and says so), a request body that raised, a certificate that is not trusted (a
matter between this client's settings and the server; behind a CircuitOpen its cause would be hidden). A long stream
counts as nothing until it ends. What belongs to calls from before the circuit opened is ignored: a late success does
not close it, late failures do not keep it open.

Half-open: after `reset_timeout` exactly `probes` calls pass, over all threads, tasks and, with Redis, processes. A
probe that is cancelled gives its permit back at once. The first probe that ends well closes the circuit; a stream
that still talks a second after its head has ended well enough, so that no long generation holds the others back. A
probe that says nothing for 30 s (or `reset_timeout`, if that is longer) loses its permit to the next. A failed probe
opens the circuit again for twice as long, up to `reset_timeout_max`.

With `wait` a call that meets an open circuit waits for it to close for so long, sending nothing, instead of being
refused at once.

With `storage = "redis://…"` the processes share consecutive failures, the open circuit and the probes; each keeps a
copy and looks at Redis once a second while all is well. The ratio is counted by each process. While Redis is
away each process goes on by itself.

Order: innermost, so that each attempt is counted, and a retry ends at a circuit that has opened meanwhile. Measured
by `tests/benchmarks/breaker_order.py` (20 calls, 3 attempts each): a server that is down sees 5 requests, against 15
outside of retry; one that succeeds one time in three sees 20 and answers 6 calls, against 60 and 20.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.breaker.circuit import Change, Circuit, CircuitStats, Permit
from netkit_plugins.breaker.layer import BreakerLayer
from netkit_plugins.breaker.options import BreakerOptions

__all__ = ["BreakerLayer", "BreakerOptions", "Change", "Circuit", "CircuitStats", "Permit", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "breaker",
        BreakerLayer,
        options=BreakerOptions,
        summary="Refuse calls to what is down, and let few through to see whether it is up again",
    )
