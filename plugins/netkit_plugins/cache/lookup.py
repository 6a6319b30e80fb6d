"""One call as the cache sees it: the keys of what it asks for, and how an answer is made of what is known and new.

Rules of this file:

- A call on a route with a form is one question for each input, any other is one question. What is kept for an input
  is the whole answer to a call with that input alone, so that single calls and lists serve each other.
- Results are told apart by the form's index, never by guess: an answer that does not fit is nobody's.
- Nothing here waits or stores.
"""

from __future__ import annotations

from collections.abc import Sequence

from netkit import Request, Response
from netkit.answers import Answer
from netkit.errors import BatchError
from netkit.forms import PRESETS, Form, Inputs
from netkit.identity import Identities, canonical_json, is_json
from netkit.messages import Body
from netkit.pure import Routes
from netkit_plugins.cache.entry import Entry, remembered, replayed

__all__ = ["Forms", "Question", "void_key"]

FORMAT = b"1"
"""Part of every key: another way of keeping answers does not read this one's."""


class Forms:
    """Which form the calls to a URL have."""

    def __init__(self, items: Sequence[tuple[str, str]]) -> None:
        self._forms = [(Routes((pattern,)), PRESETS[name]) for pattern, name in items]

    def read(self, request: Request, content: bytes) -> tuple[Form, Inputs] | None:
        """The form and the inputs of a request, None where it has none."""
        if not self._forms or request.method != "POST" or not is_json(request):
            return None
        for routes, form in self._forms:
            if request.url in routes:
                inputs = form.read(content)
                return None if inputs is None or not inputs.items else (form, inputs)
        return None


class Question:
    """`keys`: one for each input, or one for the call. `void` is the key under which an end of all that GET gave for
    this URL is noted, None for other methods."""

    __slots__ = ("_form", "_inputs", "keys", "request", "void")

    def __init__(self, request: Request, content: bytes, forms: Forms, identities: Identities) -> None:
        self.request = request
        read = forms.read(request, content)
        self._form: Form | None = None
        self._inputs: Inputs | None = None
        if read is not None:
            self._form, self._inputs = read
        if self._inputs is not None:
            rest = self._inputs.rest
            items = [canonical_json(bytes(item)) for item in self._inputs.items]
            self.keys = [identities.key(request, item, FORMAT, rest) for item in items]
        else:
            body = canonical_json(content) if is_json(request) else content
            self.keys = [identities.key(request, body, FORMAT)]
        self.void = void_key(request, identities) if request.method == "GET" else None

    def known(self, entries: Sequence[Entry], now: float) -> Response | None:
        """The answer, where every part of it is known; None where what is known does not fit together."""
        if len(entries) == 1:
            return entries[0].response(now, cached=True)
        content = self._joined([entry.content for entry in entries])
        if content is None:
            return None
        age = max(0.0, max(now - entry.stored for entry in entries))
        return replayed(200, entries[0].headers, content, age, cached=True)

    def remainder(self, found: Sequence[Entry | None]) -> tuple[Request, list[bytes]]:
        """What is left to ask for, and its keys in order: each unknown input once."""
        assert self._inputs is not None
        unknown = {
            key: item for key, item, entry in zip(self.keys, self._inputs.items, found, strict=True) if entry is None
        }
        body = Body.of(self._inputs.body(list(unknown.values())))
        return self.request.replace(body=body), list(unknown)

    def completed(self, found: Sequence[Entry | None], fresh: dict[bytes, Entry]) -> Response | None:
        """The answer made of what was known and what came."""
        entries = [entry or fresh.get(key) for key, entry in zip(self.keys, found, strict=True)]
        whole = [entry for entry in entries if entry is not None]
        if len(whole) != len(entries):
            return None
        content = self._joined([entry.content for entry in whole])
        newest = max(whole, key=lambda entry: entry.stored)
        return None if content is None else replayed(200, newest.headers, content, None)

    def entries(self, answer: Answer, content: bytes, keys: Sequence[bytes], stored: float) -> dict[bytes, Entry]:
        """What to remember of an answer to the questions `keys`, whose decoded body is `content`; nothing where the
        answer does not account for each of them."""
        if self._form is None:
            return {keys[0]: remembered(answer, content, stored)}
        assert self._inputs is not None
        try:
            parted = self._form.split(content, len(keys))
            weights = dict(zip(self.keys, self._inputs.tokens, strict=True))
            usages = parted.usages([weights[key] for key in keys])
        except BatchError:
            return {}
        if len(keys) == 1:
            return {keys[0]: remembered(answer, content, stored)}
        return {
            key: remembered(answer, self._form.build(parted.envelope, [part], usage), stored)
            for key, part, usage in zip(keys, parted.parts, usages, strict=True)
        }

    def _joined(self, contents: Sequence[bytes]) -> bytes | None:
        assert self._form is not None
        try:
            answers = [self._form.split(content, 1) for content in contents]
            usage = self._form.joined_usage([answer.usage for answer in answers])
        except BatchError:
            return None
        return self._form.build(answers[0].envelope, [answer.parts[0] for answer in answers], usage)


def void_key(request: Request, identities: Identities) -> bytes:
    """Where it is noted that what GET gave for this URL holds no more: for every credential and header."""
    return identities.digest(b"void", request.url.partition("#")[0].encode("utf-8", "surrogatepass"))
