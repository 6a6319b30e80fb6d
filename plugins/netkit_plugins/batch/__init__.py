"""Micro-batching: calls that differ only in their inputs become one, and each caller gets exactly its own answer.

Why not in the server or by hand: a GPU computes 32 inputs in about the time of one, but only if they arrive in one
request. Code that embeds one text at a time, from many threads or tasks, never sends such a request; and merging by
hand means a queue, a timer, and an answer taken apart by position, which some servers do not keep. No HTTP client
does it. netkit does it below the SDK, without a changed line.

Example::

    client = openai.OpenAI(http_client=netkit.httpx2.Client(plugins={"batch": True}))
    client.embeddings.create(model="m", input="one text")      # from 64 threads: some 32 texts to a request

- Merged are POSTs of JSON on `routes`, of one session, that are equal in everything but the input: URL, every field
  that is not the input, every header that can matter, credentials, TLS settings and proxy.
- A route that is idle sends a call at once, from its caller, untouched. While batches are under way, calls wait for
  company, for `max_wait` after the first or until a batch is full.
- Answers are matched by their index, never by their place (save for TEI's bare arrays). An answer that does not give
  each input exactly one result is a `BatchError` for all of its callers.
- 400, 413 or 422 for a batch: it is halved until the bad input stands alone; only its caller fails, with the server's
  own answer. Where the server names a smaller batch size, that is kept to from then on.
- Other answers and errors of a batch reach every caller, each in a copy of its own, with the rate-limit headers.
  `response.extensions["batch"]` is (size of the batch, position in it).
- Each caller keeps its own time limits and cancellation. A batch whose callers have all left is cancelled; in threads
  that takes effect at its next wait in netkit, or by its time limits, since nothing can interrupt a blocked socket.
- Untouched: streams, one-shot bodies, compressed bodies, calls with an Idempotency-Key, anything of another shape.

Order: inside `cache`, `coalesce` and `image`, which answer or change single inputs; outside `limit`, `retry`,
`balance` and `breaker`, which see a batch as the one request that it is. Outside of `coalesce` a batch of 32 equal
texts would be computed 32 times.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.batch.layer import BatchLayer
from netkit_plugins.batch.options import BatchOptions, CustomForm
from netkit_plugins.batch.stats import BatchStats

__all__ = ["BatchLayer", "BatchOptions", "BatchStats", "CustomForm", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "batch",
        BatchLayer,
        options=BatchOptions,
        request_headers=("Accept-Encoding", "Content-Length", "Content-Type"),
        summary="Merge concurrent calls that differ only in their inputs, for embedding routes",
    )
