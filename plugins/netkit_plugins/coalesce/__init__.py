"""Identical calls at the same time cost one: the others wait for its answer (single-flight).

Why not a lock or a memo in the application: the usual `cache[key] = task` is cancelled with whoever came first, hands
its exception object to everybody, forgets that two callers may have two credentials, and keeps a dead entry when
things go wrong. None of the stacks has anything of the kind.

Example::

    client = netkit.AsyncClient(plugins={"coalesce": True})
    await asyncio.gather(*(client.post(url, json={"input": "the same"}) for _ in range(50)))   # the server sees one

Which calls are shared: GET, HEAD and OPTIONS, pure routes (embeddings, rerank, …), and calls with
`request.extensions["pure"] = True`, if their body is in memory. Two are identical when method, URL, body bytes,
headers (but for `key_ignore_headers`), credential, TLS settings and proxy are; two spellings of one JSON are not
merged here. What passes untouched: one-shot bodies and files, event streams and `"stream": true`, a chat that draws
its answer, requests that say `Cache-Control: no-cache` or `no-store`, upgrades, and `stream=True` in requests.

- The first caller may leave: in a loop the call goes on for the others, in threads the next one sends again. The
  last one to leave cancels the call.
- A failure is told to everybody who waits, each with an exception object of its own; the next call is sent anew. But
  a timeout of the first caller's own is told only to callers who would not wait longer: of the others the most
  patient one sends again, for all of them.
- Every caller has its own, re-readable response, marked `extensions["coalesced"]`, also the first one's, once shared.
- An answer that is a stream, is longer than `max_answer_bytes`, or is not JSON and does not tell its length, is the
  first caller's alone, at once and unread; the others then send for themselves.

Order: inside cache (what is known needs no call), outside of batch, limit and retry (what is shared costs one place
in a batch, one token, one set of retries). Inside batch it would see batches, which are hardly ever identical.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.coalesce.layer import CoalesceLayer, CoalesceStats
from netkit_plugins.coalesce.options import CoalesceOptions

__all__ = ["CoalesceLayer", "CoalesceOptions", "CoalesceStats", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "coalesce",
        CoalesceLayer,
        options=CoalesceOptions,
        summary="Identical calls at the same time cost one",
    )
