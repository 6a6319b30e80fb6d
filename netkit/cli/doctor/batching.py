"""Whether a route takes several inputs in one request, how many, and what that gains.

Rules of this file:

- Sizes grow by fours up to a bound; where a refusal names the limit, that is tried instead of guessed at.
- An answer that does not give each input exactly one result is no success, whatever its status says.
- The first sign of overload or of missing credentials ends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from netkit.cli.doctor.reply import Reply
from netkit.errors import BatchError
from netkit.forms import PRESETS
from netkit.named_limit import REFUSALS, named_limit

__all__ = ["MAX_PROBES", "Batching", "explore", "form_of", "routes_of"]

MAX_PROBES: Final = 9
"""Requests to one route at most."""

_ABSENT: Final = frozenset({404, 405, 501})
_FORMS: Final = {"embeddings": "openai", "embed": "tei", "gme": "gme"}


@dataclass
class Batching:
    """What is known of one route. `works` None: not found out, `why` says why. `largest` was answered, `refused` was
    not, `named` is the limit that the server's refusal names; None where there is none. `seconds` by batch size."""

    route: str
    form: str
    works: bool | None = None
    why: str = ""
    largest: int = 0
    refused: int | None = None
    named: int | None = None
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def gain(self) -> float | None:
        """How many times faster an input is in the largest batch than by itself; None where that is unknown."""
        if self.largest < 2 or 1 not in self.seconds:
            return None
        return self.seconds[1] * self.largest / max(self.seconds[self.largest], 1e-9)


def form_of(route: str) -> str:
    """Which form of calls a route has, by the end of its path; "openai" where that says nothing."""
    return _FORMS.get(route.rstrip("/").rpartition("/")[2], "openai")


def routes_of(path: str) -> list[str]:
    """Where embeddings may be, for the URL that was given: there, or below it."""
    path = path.partition("?")[0].rstrip("/")
    last = path.rpartition("/")[2]
    if last in _FORMS:
        return [path]
    if last == "v1":
        return [f"{path}/embeddings"]
    return [f"{path}/v1/embeddings", f"{path}/embed"]


def explore(
    route: str, model: str, post: Callable[[str, bytes], Reply], *, largest: int, note: Callable[[Reply], str]
) -> Batching | None:
    """Try a route; None where there is none. `post(route, body)` sends; `note(reply)` quotes it for people."""
    found = Batching(route, form_of(route))
    sent = 0

    def attempt(size: int) -> bool:
        nonlocal sent
        sent += 1
        reply = post(route, _body(found.form, model, size))
        if reply.status in _ABSENT and size == 1:
            raise _Absent
        if reply.status != 200:
            found.why = f"{size} inputs: {note(reply)}" if size > 1 else note(reply)
            if reply.status not in REFUSALS or size == 1:
                raise _Over
            found.refused = size
            found.named = named_limit(reply.body, size) or found.named
            return False
        try:
            PRESETS[found.form].split(reply.body, size)
        except BatchError as error:
            found.why = str(error)
            raise _Over from error
        found.largest = size
        found.seconds[size] = reply.seconds
        return True

    try:
        attempt(1)
        attempt(1)  # the first may have paid for waking the model up
        if not attempt(2):
            found.works = False
            return found
        found.works, size = True, 2
        while size < largest and found.refused is None:
            size = min(size * 4, largest)
            attempt(size)
        while found.refused is not None and sent < MAX_PROBES and found.largest + 1 < found.refused:
            if found.named == found.largest:
                break
            is_usable = found.named is not None and found.largest < found.named < found.refused
            attempt(found.named if found.named and is_usable else (found.largest + found.refused) // 2)
    except _Absent:
        return None
    except _Over:
        if found.works is None and found.largest:
            found.works = False
    return found


class _Absent(Exception):
    pass


class _Over(Exception):
    pass


def _body(form: str, model: str, size: int) -> bytes:
    texts = [f"netkit doctor {number}" for number in range(1, size + 1)]
    given = {"inputs": texts} if form in ("tei", "gme") else {"input": texts}
    return json.dumps(given if form == "tei" else {"model": model, **given}).encode()
