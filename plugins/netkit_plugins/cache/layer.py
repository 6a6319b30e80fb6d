"""The cache layer: look, send what is not known, remember.

Rules of this file:

- A call that misses is shared by all who miss the same meanwhile (`netkit.flights`); what it gave is stored before
  they are told.
- Whatever goes wrong with the storage, the call is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from netkit import Request, Response, Send, TransportError
from netkit.answers import Answer, plain, take
from netkit.flights import Flights
from netkit.identity import Identities
from netkit.plugins import Context
from netkit.pure import Routes, is_shareable
from netkit.stats import Counter
from netkit_plugins.cache.entry import Entry
from netkit_plugins.cache.lookup import Forms, Question, void_key
from netkit_plugins.cache.options import CacheOptions
from netkit_plugins.cache.policy import is_failure, is_storable, may_be_known, voids
from netkit_plugins.cache.storage import open_storage

__all__ = ["CacheLayer", "CacheStats"]


class CacheStats(msgspec.Struct, frozen=True):
    """`hits` and `misses`: inputs (of a call without inputs: the call) that were known, and that were not. `stale`:
    calls answered with what was too old, because the server failed. `shared`: calls that waited for another's miss.
    `entries`, `bytes`, `evictions`: what the storage holds, as far as this process knows, and let go for room."""

    hits: int = 0
    misses: int = 0
    stale: int = 0
    shared: int = 0
    in_flight: int = 0
    entries: int = 0
    bytes: int = 0
    evictions: int = 0


class CacheLayer:
    """One per session and set of options."""

    def __init__(self, options: CacheOptions, context: Context) -> None:
        self._options = options
        self._routes = Routes(options.routes)
        self._forms = Forms(options.items)
        self._storage = open_storage(options, context)
        self._flights = Flights(context.runtime)
        self._identities: Identities | None = None
        # Also where answers are everybody's, refusals are not: of those under way nobody knows yet what they will be.
        self._flight_keys = Identities(ignore=options.key_ignore_headers)
        self._hits, self._misses, self._stale = Counter(), Counter(), Counter()

    async def __call__(self, request: Request, send: Send) -> Response:
        content = request.body.content
        if content is None or not may_be_known(request):
            return await self._watched(request, send)
        if not is_shareable(request, self._routes, safe_methods=False, sampled=self._options.sampled):
            return await send(request)
        identities = self._identities or await self._keyed()
        if identities is None:
            return await send(request)
        question = Question(request, content, self._forms, identities)
        found, now = await self._look(question)
        fresh = [entry if entry is not None and now - entry.stored < self._options.ttl else None for entry in found]
        known = [entry for entry in fresh if entry is not None]
        if len(known) == len(fresh):
            response = question.known(known, now)
            if response is not None:
                self._count(self._hits, len(fresh))
                return response
            fresh, known = [None] * len(fresh), []
        self._count(self._hits, len(known))
        self._count(self._misses, len(fresh) - len(known))
        if known:
            response = await self._fetch_rest(question, send, fresh, found)
            if response is not None:
                return response
        response = await self._fetch(request, send, question, question.keys, found)
        return await send(request) if response is None else response

    async def _keyed(self) -> Identities | None:
        """Keys are made with the storage's own secret; None while it is away."""
        secret = await self._storage.secret()
        if secret is not None:
            self._identities = Identities(
                secret, ignore=self._options.key_ignore_headers, per_credential=self._options.per_credential
            )
        return self._identities

    async def _look(self, question: Question) -> tuple[list[Entry | None], float]:
        """What is known, however old, but what has become void; and the time at which it was known."""
        keys = question.keys if question.void is None else [*question.keys, question.void]
        found = await self._storage.get(keys)
        if question.void is not None:
            void = found.pop()
            if void is not None:
                found = [None if entry is None or entry.stored <= void.stored else entry for entry in found]
        oldest = self._storage.now() - self._options.ttl - self._options.stale_if_error
        return [
            None if entry is None or entry.stored <= oldest or not entry.status else entry for entry in found
        ], self._storage.now()

    async def _fetch(
        self,
        request: Request,
        send: Send,
        question: Question,
        keys: Sequence[bytes],
        found: Sequence[Entry | None],
    ) -> Response | None:
        """Send, for all who ask the same now. A failure gives way to what is known still, if all of it is."""
        flight = self._flight_keys.key(request, request.body.content)
        try:
            response = await self._flights.share(
                flight, request.timeout, partial(self._call, request, send, question, keys)
            )
        except TransportError:
            old = self._stale_answer(question, found)
            if old is None:
                raise
            return old
        if response is not None and is_failure(response):
            old = self._stale_answer(question, found)
            if old is not None:
                await response.discard()
                return old
        return response

    async def _call(
        self,
        request: Request,
        send: Send,
        question: Question,
        keys: Sequence[bytes],
    ) -> tuple[Response, Answer | None]:
        sent = self._storage.now()
        response = await send(self._flights.apart(request).extend(shared=True))
        answer = await take(request, response, max_bytes=self._options.max_answer_bytes)
        if answer is not None:
            entries = self._remembered(question, answer, keys, sent)
            if entries:
                await self._storage.put(list(entries.items()))
        return response, answer

    def _remembered(
        self, question: Question, answer: Answer, keys: Sequence[bytes], sent: float
    ) -> dict[bytes, Entry]:
        content = plain(answer, max_bytes=self._options.max_answer_bytes)
        if content is None or not is_storable(question.request, answer, content):
            return {}
        return question.entries(answer, content, keys, sent)

    async def _fetch_rest(
        self, question: Question, send: Send, fresh: Sequence[Entry | None], found: Sequence[Entry | None]
    ) -> Response | None:
        """Ask for what is not known; None where the answer does not fit what is, so that all must be asked for."""
        request, keys = question.remainder(fresh)
        sent = self._storage.now()
        response = await self._fetch(request, send, question, keys, found)
        if response is None or response.status != 200 or response.extensions.get("cached") is True:
            return response
        answer = await take(request, response, max_bytes=self._options.max_answer_bytes)
        if answer is None:
            await response.discard()
            return None
        completed = question.completed(fresh, self._remembered(question, answer, keys, sent))
        response.body.end()
        return completed

    def _stale_answer(self, question: Question, found: Sequence[Entry | None]) -> Response | None:
        known = [entry for entry in found if entry is not None]
        if not self._options.stale_if_error or len(known) != len(found):
            return None
        response = question.known(known, self._storage.now())
        if response is not None:
            self._stale.add()
        return response

    async def _watched(self, request: Request, send: Send) -> Response:
        """A call that is never remembered, but may end what is."""
        response = await send(request)
        if voids(request, response) and request.url in self._routes:
            identities = self._identities or await self._keyed()
            if identities is not None:
                entry = Entry(self._storage.now(), 0)
                await self._storage.put([(void_key(request, identities), entry)])
        return response

    @staticmethod
    def _count(counter: Counter, times: int) -> None:
        for _ in range(times):
            counter.add()

    def stats(self) -> CacheStats:
        held = self._storage.stats()
        return CacheStats(
            hits=self._hits.value,
            misses=self._misses.value,
            stale=self._stale.value,
            shared=self._flights.shared.value,
            in_flight=self._flights.in_flight,
            entries=held.entries,
            bytes=held.bytes,
            evictions=held.evictions,
        )

    def close(self) -> None:
        self._storage.close()

    def __repr__(self) -> str:
        return f"<CacheLayer {self._storage!r}>"
