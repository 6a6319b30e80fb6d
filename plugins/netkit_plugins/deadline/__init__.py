"""One time budget for a call, whatever it is spent on: queueing, connecting, attempts, backoff, redirects, the body.

Why not the stacks' own time-outs: they bound one wait or one attempt, so that retries, redirects and a server that
drips multiply them; requests and httpx have nothing that bounds a call.

Example::

    session = netkit.Session(plugins={"deadline": {"total": 10, "first_byte": 3}, "retry": {"attempts": 5}})
    try:
        session.post(url, json=payload)
    except requests.Timeout as error:          # httpx.TimeoutException, aiohttp.ServerTimeoutError, …
        error.details["reason"]                # "deadline", "first_byte" or "between_events"

How: in a loop what takes too long is cancelled. In threads every wait through the runtime ends, and each attempt and
each read of a body gets what is left as its limit. The stack's own shorter time-outs still win, with their own
errors. The budget begins with the call and goes on over redirects and the legs of an authentication; a body that is
read past it ends with `DeadlineExceeded` too. `between_events` counts only while somebody waits for the body: a slow
reader is not the server's silence. Comment lines of an event stream (": ping") keep connections open and are no
progress; in a body that the stack has still to decompress they cannot be told apart and count.

What it cannot do: in threads over HTTP/1.1 the head of an answer that drips byte by byte starts its socket's limit
anew with each; it ends at most one limit late. DNS blocks a thread for as long as the system takes, and a generator
that is the body for as long as it takes for its next piece.

Layers below find the end of the budget in `request.extensions["deadline"]` (monotonic seconds): `retry` plans no
attempt that would begin after it.

Order: outermost but for telemetry, so that it bounds what all the others spend. Inside retry it would bound one
attempt, as the stacks' own time-outs do.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.deadline.budget import Budget
from netkit_plugins.deadline.layer import DeadlineLayer
from netkit_plugins.deadline.options import DeadlineOptions
from netkit_plugins.deadline.pace import BodyPace
from netkit_plugins.deadline.progress import EventProgress

__all__ = ["BodyPace", "Budget", "DeadlineLayer", "DeadlineOptions", "EventProgress", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "deadline",
        DeadlineLayer,
        options=DeadlineOptions,
        summary="One time budget for a call, over attempts, waits, redirects and its body",
    )
