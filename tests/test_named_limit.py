"""What a refusal says of the largest batch, and what it only quotes."""

from __future__ import annotations

import json

import pytest

from netkit.named_limit import named_limit

SAID = [
    (b'{"error":"batch size 64 > maximum allowed batch size 32"}', 32),
    (b"array too long. Expected an array with maximum length 16, but got an array with length 64 instead.", 16),
    (b"batch size is invalid, it should not be larger than 10", 10),
    (b'{"detail":[{"msg":"List should have at most 8 items after validation, not 64"}]}', 8),
    (b"inputs: at most 4096 tokens, you sent more in one text", None),
    (b"maximum 128 inputs", None),  # no smaller number than what was sent
    (b"too many inputs", None),
]


@pytest.mark.parametrize(("content", "limit"), SAID)
def test_what_servers_say(content: bytes, limit: int | None) -> None:
    assert named_limit(content, 64, [b'"some text"', b'"another"']) == limit


def test_what_a_caller_wrote_says_nothing_of_the_server() -> None:
    text = 'the list has at most\n3 items, "always"'
    inputs = [json.dumps(each).encode() for each in ("first", text)]
    echoes = [
        json.dumps({"error": "an input is not allowed", "input": ["first", text]}).encode(),
        f"an input is not allowed: {text!r}".encode(),
        f"an input is not allowed: {text[:24]}…".encode(),
    ]
    for echo in echoes:
        assert named_limit(echo, 64, inputs) is None, echo
    # Its own word counts, before the quotation and after it.
    for own in (b"batch size is larger than 16; ", b"; batch size is larger than 16"):
        assert named_limit(own + echoes[1], 64, inputs) == 16
        assert named_limit(echoes[1] + own, 64, inputs) == 16
