"""Generated text: chat and completions, whole or as server-sent events, one per token."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from . import expected, pace
from .exchange import Answer, Exchange
from .gpus import QueueFull
from .overload import OVERLOADED, overloaded
from .payloads import Refused, json_object, prompt_of

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["Generation", "mount"]

_GIVEN_TIME = 1_700_000_000


def mount(backend: Backend, route: Callable[..., None]) -> None:
    """Add these routes."""
    generation = _Routes(backend)
    route("/v1/chat/completions", generation.chat, methods=("POST",))
    route("/v1/completions", generation.chat, methods=("POST",))


class _Routes:
    def __init__(self, backend: Backend) -> None:
        self._options = backend.options
        self._gpus = backend.gpus

    async def chat(self, exchange: Exchange) -> Answer:
        try:
            payload = json_object(exchange)
            prompt, words = prompt_of(payload)
            count = payload.get("max_completion_tokens") or payload.get("max_tokens") or max(1, words)
            if not isinstance(count, int) or count < 1:
                raise Refused(Answer.error(400, f"max_tokens must be a positive integer, not {count!r}"))
        except Refused as refused:
            return refused.answer
        shape = Generation(payload, prompt, words, count)
        if payload.get("stream"):
            # The slot is taken before the head is sent, so that an overload is a status and not a broken stream.
            return await self._stream(shape)
        try:
            async with self._gpus.stream():
                await self._gpus.batch(1)
                await pace.until(time.monotonic() + count * self._options.token_ms / 1000)
        except QueueFull as full:
            return self._overloaded(full)
        return Answer.json(shape.whole())

    async def _stream(self, shape: Generation) -> Answer:
        slot = self._gpus.stream()
        try:
            await slot.__aenter__()
        except QueueFull as full:
            return self._overloaded(full)
        try:
            await self._gpus.batch(1)
        except BaseException as error:
            await slot.__aexit__(type(error), error, None)
            if isinstance(error, QueueFull):
                return self._overloaded(error)
            raise

        return Answer(
            200,
            [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")],
            _Slotted(shape.events(self._options.token_ms / 1000), slot),
        )

    def _overloaded(self, full: QueueFull) -> Answer:
        return overloaded(full, Answer.error(self._options.overload_status, OVERLOADED))


class _Slotted:
    """Events that give their stream slot back when they end, are closed, or were never begun."""

    def __init__(self, events: AsyncGenerator[bytes, None], slot: AbstractAsyncContextManager[None]) -> None:
        self._events = events
        self._slot: AbstractAsyncContextManager[None] | None = slot

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        if self._slot is not None:
            slot, self._slot = self._slot, None
            await self._events.aclose()
            await slot.__aexit__(None, None, None)


class Generation:
    """One generated text, in all shapes that clients ask for."""

    def __init__(self, payload: dict[str, Any], prompt: object, words: int, count: int) -> None:
        self._is_chat = "messages" in payload
        self._tokens = expected.expected_tokens(prompt, count)
        self._model = payload.get("model", "mock-chat")
        options = payload.get("stream_options") or {}
        self._include_usage = bool(options.get("include_usage"))
        self._usage = {"prompt_tokens": words, "completion_tokens": count, "total_tokens": words + count}
        identity = expected.expected_tokens(prompt, 3)
        self._id = ("chatcmpl-" if self._is_chat else "cmpl-") + "".join(identity).replace(" ", "")

    def whole(self) -> dict[str, Any]:
        text = "".join(self._tokens)
        if self._is_chat:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        else:
            choice = {"index": 0, "text": text, "finish_reason": "stop"}
        return self._envelope("", [choice], usage=self._usage)

    async def events(self, interval: float) -> AsyncGenerator[bytes, None]:
        """One server-sent event per token, the first at once, then one each `interval` seconds, without drift."""
        start = time.monotonic()
        for number, token in enumerate(self._tokens):
            await pace.until(start + number * interval)
            yield self._event([self._piece(token, first=number == 0)])
        yield self._event([self._piece(None)])
        if self._include_usage:
            yield self._event([], usage=self._usage)
        yield b"data: [DONE]\n\n"

    def _piece(self, token: str | None, *, first: bool = False) -> dict[str, Any]:
        finish = "stop" if token is None else None
        if not self._is_chat:
            return {"index": 0, "text": token or "", "finish_reason": finish}
        delta: dict[str, str] = {"role": "assistant"} if first else {}
        if token is not None:
            delta["content"] = token
        return {"index": 0, "delta": delta, "finish_reason": finish}

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        body = self._envelope(".chunk", choices)
        if self._include_usage:
            body["usage"] = usage
        return b"data: " + msgspec.json.encode(body) + b"\n\n"

    def _envelope(self, suffix: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        kind = "chat.completion" + suffix if self._is_chat else "text_completion"
        head = {"id": self._id, "object": kind, "created": _GIVEN_TIME, "model": self._model}
        return {**head, "choices": choices, **more}
