"""When two requests ask for the same: digests over everything that can change the answer, and over who asks.

Example::

    identities = Identities(ignore=DEFAULT_IGNORED_HEADERS)
    key = identities.key(request, request.body.content)
    identities.credential(request)       # who asks: for queues, limits and batches

What counts: the method, the URL without its fragment, the way to the server (`Request.channel`: TLS verification,
client certificate, proxy), every header but those that are ignored, and the body's bytes.

Rules of this file:

- Pure functions on messages: nothing here waits, stores or decodes more than it was asked to.
- A credential is never part of a key in clear: keys are BLAKE2b digests (RFC 7693) keyed with a secret of the
  process, or of the storage that outlives it.
- Too wide a key costs one more call; too narrow a key gives one caller another's answer. In doubt it is wider.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import struct
import weakref
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from netkit.headers import is_secret
from netkit.messages import Request
from netkit.urls import split_url

__all__ = [
    "DEFAULT_IGNORED_HEADERS",
    "DIGEST_BYTES",
    "Identities",
    "asks_for_stream",
    "canonical_json",
    "is_json",
    "is_sampled",
    "members_of",
    "repeats_a_name",
    "token_of",
]

DEFAULT_IGNORED_HEADERS: Final = (
    "traceparent",
    "tracestate",
    "baggage",
    "b3",
    "x-b3-*",
    "sentry-trace",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-datadog-*",
    "x-request-id",
    "x-client-request-id",
    "request-id",
    "x-correlation-id",
    "idempotency-key",
    "x-stainless-*",
)
"""Names one call, one trace or one attempt, or (`x-stainless-*`) the SDK and its own timeouts and retries; a server's
answer does not depend on them."""

_FRAMING: Final = ("connection", "keep-alive", "content-length", "transfer-encoding", "te", "expect")
"""How the body travels, hop by hop; the body itself is in the key."""

DIGEST_BYTES: Final = 24

_process_secret: Final = os.urandom(32)
_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def token_of(thing: object) -> str:
    """A name for a thing that cannot be described (an SSLContext may hold a client certificate, and does not say so):
    equal only for the same object, in this process alone, also after its memory was reused."""
    try:
        known = _tokens.get(thing)
        # Two threads may draw two tokens at first sight; the first that is kept is everybody's.
        return known or _tokens.setdefault(thing, os.urandom(12).hex())
    except TypeError:
        # Neither hashable nor weakly referable: never equal to anything.
        return os.urandom(12).hex()


class Identities:
    """Makes keys with one secret.

    `secret`: 1 to 64 bytes; None takes one that is random for each process (and kept by its forks). `ignore`: header
    names or patterns (`*`) that do not count. `per_credential` False leaves out who asks: headers that carry a
    credential, and user and password in the URL. Immutable; safe from any thread.
    """

    __slots__ = ("_ignored", "_per_credential", "_secret", "_seen")

    def __init__(
        self, secret: bytes | None = None, *, ignore: Iterable[str] = (), per_credential: bool = True
    ) -> None:
        self._secret = _process_secret if secret is None else secret
        patterns = (*(name.lower() for name in ignore), *_FRAMING)
        self._ignored = re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)).match
        self._per_credential = per_credential
        self._seen: dict[str, bool] = {}

    def key(self, request: Request, body: bytes | None, *more: bytes) -> bytes:
        """24 bytes that two requests share only if they ask the same, for the same credential, by the same way.

        `body` is what is compared in place of the request's body: its bytes, their canonical form, or what is left of
        it without the input (None: nothing). `more` are further parts, such as a format version.
        """
        url = request.url.partition("#")[0]
        if not self._per_credential:
            url = _without_user(url)
        parts = [request.method.upper(), url, *request.channel]
        grouped, seen = request.headers.by_name(), self._seen
        # By name: only the order of one name's values has a meaning (RFC 9110 section 5.3).
        for name in sorted(grouped):
            counts = seen.get(name)
            if counts if counts is not None else self._look_at(name):
                for value in grouped[name]:
                    parts.append(name)
                    parts.append(value)
        digest = blake2b(_framed([parts, more]), digest_size=DIGEST_BYTES, key=self._secret)
        if body is not None:
            digest.update(b"+")
            digest.update(body)
        return digest.digest()

    def credential(self, request: Request) -> bytes:
        """24 bytes that stand for who asks: secret headers, user and password in the URL, client certificate."""
        secrets = sorted(
            ((name.lower(), value) for name, value in request.headers.items() if is_secret(name)), key=_name
        )
        user = split_url(request.url)[1]
        content = msgspec.json.encode((secrets, user, request.channel))
        return blake2b(content, digest_size=DIGEST_BYTES, key=self._secret, person=b"credential").digest()

    def digest(self, *parts: bytes) -> bytes:
        """24 bytes for a key of one's own, with the same secret."""
        lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
        return blake2b(lengths + b"".join(parts), digest_size=DIGEST_BYTES, key=self._secret, person=b"own").digest()

    def _look_at(self, name: str) -> bool:
        counts = not self._ignored(name) and (self._per_credential or not is_secret(name))
        if len(self._seen) < 1024:
            self._seen[name] = counts
        return counts


def _framed(parts: list[Any]) -> bytes:
    """Texts and bytes, so that none can be taken for a part of its neighbour."""
    try:
        return _pack(parts)
    except UnicodeEncodeError:
        # Headers may hold bytes that are no text, as lone surrogates.
        return _pack([[text.encode("utf-8", "surrogatepass") for text in parts[0]], *parts[1:]])


_pack: Final = msgspec.msgpack.Encoder().encode


def _name(field: tuple[str, str]) -> str:
    return field[0]


def _without_user(url: str) -> str:
    scheme, _, host, target = split_url(url)
    return f"{scheme}://{host}{target}"


MAX_DEPTH: Final = 32
"""Objects within objects whose members are put in order."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder().encode


def is_json(request: Request) -> bool:
    """Whether the request says that its body is JSON, uncompressed."""
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return (kind == "application/json" or kind.endswith("+json")) and "content-encoding" not in headers


def members_of(body: bytes) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object, unparsed; None for anything else. A repeated name keeps its last value."""
    try:
        return _members.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def canonical_json(body: bytes) -> bytes:
    """`body` with the members of its objects in order of their names, so that two orders are one.

    Values stay as they were written (1 is not 1.0), arrays and what is in them too. Returned as it is: what is no
    object, what is nested deeper than `MAX_DEPTH`, and what was not written in one of the two usual ways (no space,
    or one after each comma and colon), as there a repeated name could hide.
    """
    return _canonical(body, MAX_DEPTH)


def _canonical(body: bytes, depth: int) -> bytes:
    members = members_of(body) if depth and body[:1] == b"{" else None
    if members is None:
        return body
    pairs = _pairs(members)
    if not _is_usual(body, pairs):
        return body
    pairs.sort()
    return (
        b"{"
        + b",".join(
            name + b":" + (_canonical(value, depth - 1) if value[:1] == b"{" else value) for name, value in pairs
        )
        + b"}"
    )


def repeats_a_name(body: bytes, members: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the JSON object `body`, of which `members` was read, gives one of its names twice. Servers differ in
    which of the two they take, so that what it asks for cannot be known here."""
    if _is_usual(body, _pairs(members)):
        return False
    try:
        _strict.decode(body.decode())
    except (ValueError, RecursionError):
        return True
    return False


def _pairs(members: Mapping[str, msgspec.Raw]) -> list[tuple[bytes, bytes]]:
    return [(_encode(name), bytes(value)) for name, value in members.items()]


def _is_usual(body: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> bool:
    return body == b"{" + b",".join(name + b":" + value for name, value in pairs) + b"}" or (
        body == b"{" + b", ".join(name + b": " + value for name, value in pairs) + b"}"
    )


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name is given twice")


_strict: Final = json.JSONDecoder(object_pairs_hook=_each_once)


def asks_for_stream(request: Request) -> bool:
    """Whether the caller wants events as they come: `"stream": true` in a JSON body, or Accept: text/event-stream."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return True
    content = request.body.content
    if not content or b'"stream"' not in content:
        return False
    members = members_of(content)
    return members is not None and _value(members, "stream") not in (None, False)


def is_sampled(body: bytes) -> bool:
    """Whether a JSON body asks a model to draw its answer: a prompt or messages with a temperature other than 0, or
    without one (servers then take 1), or several answers to choose from."""
    if b'"messages"' not in body and b'"prompt"' not in body:
        return False
    members = members_of(body)
    if members is None or not members.keys() & {"messages", "prompt"}:
        return False
    return _value(members, "temperature") != 0 or _value(members, "n") not in (None, 1)


def _value(members: dict[str, msgspec.Raw], name: str) -> Any:
    """A member decoded; as it was written where it cannot be (1e999, no UTF-8): then it is equal to no value."""
    raw = members.get(name)
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return raw
