"""How much one server is asked: requests and tokens per time, attempts at once, and a pause that all callers share.

Why not a library: `limits` answers yes or no and leaves waiting to its caller. `pyrate-limiter` waits by sleeping and
asking again, so whoever wakes first goes, and the place of a cancelled waiter is lost. Neither takes requests and
tokens in one step, gives back what an answer did not use, knows of attempts at once, or stops everybody when a server
says 429. What is left of them is a token bucket of a dozen lines.

Example::

    client = netkit.AsyncClient(plugins={"limit": {"requests_per_second": 50, "tokens_per_minute": 200_000,
                                                   "concurrency": "adaptive"}})

- All limits hold per key: origin, credential (as a keyed digest) and model. Rates and pauses are the process's, or
  with a Redis `storage` those of all processes; the queue and `concurrency` are each session's.
- Waiting is first come, first served within a priority. A large call at the head is not overtaken by small ones.
- A 429 pauses its key for Retry-After (`retry-after-ms`, else `x-ratelimit-reset-*`, else 1 s, doubling with each
  further one; 60 s at most), once, however many calls were refused. Then calls come back one by one, and faster with
  each success. `x-ratelimit-remaining-*: 0` does the same before anybody is refused.
- The tokens of a call are guessed from its body (a token for four letters, `max_tokens` and its kin on top) and set
  right from the answer's `usage`, also in a stream.
- Each retry waits its turn and pays again; it keeps the place of its call, so it goes before those who came later.
- A place of `concurrency` is held until the answer's body has ended.

Order: outside retry, whose attempts ask it again through `request.extensions["admission"]` (`netkit.admission`), and
inside batch, cache and coalesce, whose merged or remembered calls cost nothing.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.limit.layer import LimitLayer, LimitStats
from netkit_plugins.limit.options import LimitOptions

__all__ = ["LimitLayer", "LimitOptions", "LimitStats", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "limit",
        LimitLayer,
        options=LimitOptions,
        summary="Requests and tokens per time, attempts at once, and one pause for all after a 429",
    )
