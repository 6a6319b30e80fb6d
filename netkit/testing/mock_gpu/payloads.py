"""What the bodies of inference calls mean: their inputs one by one, or the refusal that they deserve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .exchange import Answer, Exchange

__all__ = ["Refused", "count_tokens", "gme_inputs", "json_object", "openai_inputs", "prompt_of"]

_WORD = re.compile(r"\S+")


class Refused(Exception):
    """The request cannot be answered; `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def json_object(exchange: Exchange) -> dict[str, Any]:
    try:
        payload = exchange.json()
    except msgspec.DecodeError as error:
        raise Refused(Answer.error(400, f"the body is not valid JSON: {error}")) from error
    if not isinstance(payload, dict):
        raise Refused(Answer.error(400, "the body must be a JSON object"))
    return payload


def openai_inputs(payload: dict[str, Any]) -> list[Any]:
    """One entry per vector: a text or a token array."""
    given = payload.get("input")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(type(item) is int for item in given):
            return [given]
        if all(isinstance(item, str) for item in given):
            return given
        if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in given):
            return given
    message = "`input` must be a string, a token array, or a non-empty list of either"
    raise Refused(Answer.error(400, message, param="input"))


def gme_inputs(payload: dict[str, Any]) -> list[Any]:
    """One entry per vector: the picture or text itself, whichever of the two shapes it came in."""
    if "inputs" in payload:
        given = payload["inputs"]
        if not isinstance(given, list) or not given:
            raise Refused(Answer.error(400, "`inputs` must be a non-empty list", param="inputs"))
        return [_gme_item(item) for item in given]
    return [_gme_item(payload)]


def _gme_item(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        given = [item[key] for key in ("image", "image_url", "text") if isinstance(item.get(key), str)]
        if len(given) == 1:
            return str(given[0])
    raise Refused(Answer.error(400, "an input must be a string, or have exactly one of `image`, `image_url`, `text`"))


def count_tokens(item: Any) -> int:
    return len(_WORD.findall(item)) if isinstance(item, str) else len(item)


def prompt_of(payload: dict[str, Any]) -> tuple[object, int]:
    """What decides the answer, and how many words it has."""
    messages = payload.get("messages")
    if isinstance(messages, list) and messages:
        return messages, sum(_message_words(message) for message in messages)
    prompt = payload.get("prompt")
    if isinstance(prompt, str) and messages is None:
        return prompt, count_tokens(prompt)
    raise Refused(Answer.error(400, "`messages` must be a non-empty list", param="messages"))


def _message_words(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return count_tokens(content)
    words = 0
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            words += count_tokens(str(part.get("text", "")))
        elif kind == "image_url":
            _check_picture(part.get("image_url"))
            words += 1
        else:
            raise Refused(Answer.error(400, f"content parts of type {kind!r} are not supported", param="messages"))
    return words


def _check_picture(given: Any) -> None:
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url.startswith(("data:image/", "http://", "https://")):
        raise Refused(
            Answer.error(400, "image_url must be a data URL of an image, or an http(s) URL", param="messages")
        )
