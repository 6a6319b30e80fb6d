"""Retries that know whether a request can have reached the server.

Why not the stacks' own: they resend by exception type. A POST whose reused connection died fails in every one of
them, although it was never read; a POST that timed out while it ran is resent by many, and billed twice. netkit asks
the verdict of the failure instead (`netkit.Verdict`), and leaves the turning and waiting to tenacity.

Example::

    session = netkit.Session(plugins={"retry": {"attempts": 5, "idempotency_key": True}})
    session.post(url, json=payload)      # sent again with the same key, if it may

Which call may be sent again:

- NOT_SENT and REFUSED failures: any method. A refusal (REFUSED_STREAM, GOAWAY, 421, 425) is first answered by one
  resend at once that counts as no retry; `request.extensions["new_connection"]` asks the transport for another
  connection.
- AMBIGUOUS failures, 500, 502, 504 and the other 5xx: idempotent methods, calls with an Idempotency-Key, `pure`
  routes, and calls with `request.extensions["pure"] = True`.
- 503 and every 4xx in `statuses` (408, 429, …): any method, for they say that nothing was processed.
- `x-should-retry: true` from the server: any method, also with a status that is not listed; `false`: never.
- Never: a certificate error, this process's own refusals (full pool, open breaker, spent deadline), a 429 whose JSON
  error says `insufficient_quota`, a one-shot body, anything after the answer's head was handed to the caller.

That last one means: an answer whose body dies is the caller's native error, even before its first byte. To replay it,
the head would have to wait for the first chunk, and every stream would start later.

Without any configuration it resends once, and only what failed on the way: `attempts = 2`, `statuses = []`.

Adapters help with `TransportError.details`: `reused=True` (the connection had served before: the first resend does
not wait) and `body_started=False` (a one-shot body is still whole). `request.extensions["avoid_endpoints"]` lists,
for a balancer below, what failed this call, the latest last: the `endpoint` in `response.extensions` or
`error.details`, else the origin. A limiter above has its say in every further attempt: see `netkit.admission`.

Order: inside cache, coalesce and batch, whose callers share one call's retries (outside of batch, each of 32 callers
would repeat a batch of 32); outside limit's and balance's and breaker's decisions, so that each attempt is admitted,
placed and counted by itself. Within `deadline`, which bounds all attempts together.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.retry.budget import RetryBudget
from netkit_plugins.retry.layer import RetryLayer, RetryStats
from netkit_plugins.retry.options import RetryOptions
from netkit_plugins.retry.policy import Failure, RetryPolicy

__all__ = ["Failure", "RetryBudget", "RetryLayer", "RetryOptions", "RetryPolicy", "RetryStats", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "retry",
        RetryLayer,
        options=RetryOptions,
        implicit=RetryOptions(attempts=2, statuses=()),
        request_headers=("Idempotency-Key",),
        summary="Send again what the server surely did not process, or what may run twice",
    )
