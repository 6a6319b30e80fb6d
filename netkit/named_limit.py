"""The largest batch that a server accepts, where it says so when it refuses one.

Rule of this file: a refusal may quote what it refuses. What a caller wrote says nothing of the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["MAX_MESSAGE", "REFUSALS", "named_limit"]

REFUSALS: Final = frozenset({400, 413, 422})
"""Statuses by which a server refuses a batch for what is in it: its size, or one bad input."""

MAX_MESSAGE: Final = 8192
"""Bytes of a refusal that are looked through."""

_NAMED: Final = re.compile(
    r"(?:max(?:imum)?|limit|larger than|greater than|more than|at most|up to|exceed\w*|less than or equal to|<=)"
    r"[^0-9.;\n]{0,60}?(\d{1,7})(?!\d|\.\d)\s*([a-z]*)",
    re.IGNORECASE,
)
_ABOUT_INPUTS: Final = re.compile(
    r"batch|items?\b|inputs?\b|texts?\b|array|list|length|images?\b|documents?\b|elements?\b", re.IGNORECASE
)
_OTHER_UNITS: Final = re.compile(
    r"tok\w*|bytes?|b|kb|mb|kib|mib|char\w*|dim\w*|seconds?|s|ms|words?|pixels?|px|requests?", re.IGNORECASE
)


_UNSAID: Final = bytes(byte for byte in range(256) if not chr(byte).isalnum() or byte > 127)
"""Quotes, escapes, spaces: a server may write them in another way than it got them."""


def named_limit(content: bytes, sent: int, inputs: Iterable[bytes | memoryview] = ()) -> int | None:
    """How many inputs a refusal of `sent` inputs says that it would take; None when it names no smaller number, or
    only in words that stand in one of the `inputs` (as they were sent).

    Messages in the wild: "batch size 64 > maximum allowed batch size 32", "array too long. Expected an array with
    maximum length 16, but got …", "batch size is invalid, it should not be larger than 10".
    """
    text = content[:MAX_MESSAGE].decode("utf-8", "replace")
    if not _ABOUT_INPUTS.search(text):
        return None
    ours: list[bytes] | None = None
    for found in _NAMED.finditer(text):
        number, unit = int(found[1]), found[2]
        if 0 < number < sent and not (unit and _OTHER_UNITS.fullmatch(unit)) and not _counts_tokens(found[0]):
            if ours is None:
                ours = [_said(bytes(each)) for each in inputs]
            phrase = _said(text[found.start() : found.end(1)].encode())
            if not any(phrase in each for each in ours):
                return number
    return None


def _said(text: bytes) -> bytes:
    """Its letters and digits."""
    return text.lower().translate(None, _UNSAID)


def _counts_tokens(phrase: str) -> bool:
    return re.search(r"token|context|byte|character|dimension", phrase, re.IGNORECASE) is not None
