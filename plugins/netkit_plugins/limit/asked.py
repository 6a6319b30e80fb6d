"""What a request asks for: its model, and a guess at the tokens that it will cost.

The guess is the input's letters divided by four, or its number of token ids, and 1000 for each picture, plus the most
tokens of output that the request allows, for each of its `n` answers. It is set right once the answer says `usage`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from netkit import Request

__all__ = ["Asked", "asked_of", "estimate"]

LETTERS_PER_TOKEN: Final = 4
PICTURE: Final = 1000
LARGEST: Final = 4 << 20
"""Bytes of a body that is looked at. Beyond it neither model nor tokens are known: such calls share a key."""

_OUTPUT: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")


class Asked(msgspec.Struct):
    """The fields of an inference call that matter here; the rest is skipped unread."""

    model: Any = None
    n: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    max_output_tokens: Any = None
    max_new_tokens: Any = None
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()

    @property
    def name(self) -> str | None:
        return self.model if isinstance(self.model, str) else None


_decoder: Final = msgspec.json.Decoder(Asked)


def asked_of(request: Request) -> Asked | None:
    """None for everything that is not a JSON object in memory."""
    content = request.body.content
    if not content or len(content) > LARGEST or content.lstrip()[:1] != b"{":
        return None
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def estimate(asked: Asked | None) -> float:
    """Tokens of input and output; 0.0 where nothing is known."""
    if asked is None:
        return 0.0
    texts = (asked.messages, asked.input, asked.inputs, asked.prompt, asked.system, asked.instructions)
    tokens = sum(_count(text) for text in texts if bytes(text))
    output = next((value for name in _OUTPUT if _is_count(value := getattr(asked, name))), 0)
    answers = asked.n if _is_count(asked.n) else 1
    return float(tokens + output * max(1, answers))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


def _count(text: msgspec.Raw) -> int:
    letters = whole = 0
    todo: list[Any] = [msgspec.json.decode(text)]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            if value.startswith("data:") or (len(value) > 2048 and " " not in value[:2048]):
                whole += PICTURE
            else:
                letters += len(value)
        elif isinstance(value, list):
            if value and isinstance(value[0], int):
                whole += len(value)
            else:
                todo.extend(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
    return whole + math.ceil(letters / LETTERS_PER_TOKEN)
