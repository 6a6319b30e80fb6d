"""A memo for pure calls: an answer that is known is not asked for again.

Why not an HTTP cache (RFC 9111): it may not reuse answers to POST, and all inference is POST. That an embedding may
be remembered is the application's knowledge, so it says so here. Why not a dict around the call: its key leaves out a
field or a credential, it keeps a 502 page for an hour, and it knows nothing of the list `[b, a, c]` when a is known.

Example::

    session = netkit.Session(plugins={"cache": {"storage": "sqlite:~/.cache/app/vectors.db", "ttl": 86400}})
    session.post(url, json={"model": "m", "input": ["b", "a", "c"]})     # the server is asked for what is not known

What is remembered: complete 200 answers to GET and POST on pure routes (`routes`), with a body in memory. Two calls
are the same when method, URL, headers (but for `key_ignore_headers`), credential (`per_credential`), TLS settings and
proxy are, and every field of the body; the order of a JSON object's members does not count. What is not: errors, also
those that come with a 200, streams, HTML in answer to a call, `Cache-Control: no-store`, `Vary: *`, partial content,
a chat whose answer is drawn (unless `sampled`), answers above `max_answer_bytes`. A request that says `Cache-Control:
no-cache` or `no-store`, or `stream=True` in requests, passes by. A successful PUT, PATCH or DELETE makes what GET
gave for that URL unknown again.

- Lists of inputs (`items`) are remembered input by input: only those that are not known are sent, and the answer is
  put together in the caller's order.
- A replayed answer has a fresh Content-Length, an Age, no Set-Cookie, and `extensions["cached"]`.
- Calls that miss at the same time share one call.
- Keys are digests, keyed with a secret of the storage: no credential is ever stored. Answers are stored in clear, in
  a file that only its owner can read. Whatever a storage holds that is torn, or of another making, is a miss; a
  storage that cannot be reached makes every call a miss, never a failure.

Order: outermost but for telemetry and deadline: what is known needs no place in a batch and no token of a limit. A
hit takes microseconds, a batch's wait milliseconds.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register
from netkit_plugins.cache.layer import CacheLayer, CacheStats
from netkit_plugins.cache.options import CacheOptions

__all__ = ["CacheLayer", "CacheOptions", "CacheStats", "netkit_register"]


@hookimpl
def netkit_register(register: Register) -> None:
    register("cache", CacheLayer, options=CacheOptions, summary="Remember answers of pure calls, input by input")
