"""The inference APIs: OpenAI (embeddings, chat, completions, models), TEI (embed, rerank), the GME shapes.

| route | takes | gives |
|---|---|---|
| POST /v1/embeddings | `input`: text, texts, token array, token arrays | `data[]` of `embedding`, `index`; `usage` |
| POST /v1/chat/completions | `messages`, `max_tokens`, `stream` | plain, or one event per token |
| POST /v1/completions | `prompt`, `max_tokens`, `stream` | the same |
| GET /v1/models, /v1/models/ID | | the models of the options |
| POST /embed | `inputs`: text or texts | a bare list of vectors |
| POST /rerank | `query`, `texts` | `[{"index", "score"}]`, best first |
| POST /gme, /v1/gme | `{"model", "image" or "text", "task"}` | `data[]` with `embedding`, `index` |
| | `{"model", "inputs": [text, {"image"}, {"text"}]}` | the same |
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from . import expected, pace
from .exchange import Answer, Exchange, HeaderList
from .gpus import QueueFull

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["mount"]

_WORD = re.compile(r"\S+")
_GIVEN_TIME = 1_700_000_000


class _Refused(Exception):
    """The request cannot be answered; `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def mount(backend: Backend, route: Callable[..., None]) -> None:
    """Add these routes."""
    api = _Api(backend)
    route("/v1/embeddings", api.embeddings, methods=("POST",))
    route("/v1/chat/completions", api.chat, methods=("POST",))
    route("/v1/completions", api.chat, methods=("POST",))
    route("/v1/models", api.models, methods=("GET",))
    route("/v1/models/*", api.models, methods=("GET",))
    route("/embed", api.embed, methods=("POST",))
    route("/rerank", api.rerank, methods=("POST",))
    route("/gme", api.gme, methods=("POST",))
    route("/v1/gme", api.gme, methods=("POST",))


class _Api:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._options = backend.options
        self._gpus = backend.gpus
        self._random = random.Random(0)

    # Embeddings.

    def embeddings(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = _object(exchange)
            inputs = _openai_inputs(payload)
            self._check(inputs)
            encode = self._encoder(payload)
        except _Refused as refused:
            return refused.answer
        return self._on_gpu(len(inputs), lambda _: self._list_answer(payload, inputs, encode))

    def gme(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = _object(exchange)
            inputs = _gme_inputs(payload)
            self._check(inputs)
            encode = self._encoder(payload)
        except _Refused as refused:
            return refused.answer
        return self._on_gpu(len(inputs), lambda _: self._list_answer(payload, inputs, encode))

    def embed(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = _object(exchange)
            given = payload.get("inputs")
            inputs = given if isinstance(given, list) else [given]
            if not inputs or not all(isinstance(item, str) for item in inputs):
                raise _Refused(_tei_error(422, "`inputs` must be a string or a non-empty list of strings"))
            self._check(inputs, error=_tei_error)
        except _Refused as refused:
            return refused.answer
        dimensions = payload.get("dimensions") or self._options.dimensions
        texts = [str(item) for item in inputs]

        def answer(queued: float) -> Answer:
            vectors = [expected.vector_json(item, dimensions) for item in texts]
            return Answer.json(vectors, headers=_tei_times(queued, self._gpus.cost(len(inputs)), len(inputs)))

        return self._on_gpu(len(inputs), answer, error=_tei_error)

    def rerank(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = _object(exchange)
            query, texts = payload.get("query"), payload.get("texts", payload.get("documents"))
            if not isinstance(query, str) or not isinstance(texts, list) or not texts:
                raise _Refused(_tei_error(422, "`query` and a non-empty list `texts` are required"))
            self._check(texts, error=_tei_error)
        except _Refused as refused:
            return refused.answer

        def answer(queued: float) -> Answer:
            scores = [abs(expected.expected_vector(f"{query}\n{text}", dimensions=1)[0]) for text in texts]
            ranked = sorted(range(len(texts)), key=lambda index: -scores[index])
            results = [{"index": index, "score": scores[index]} for index in ranked]
            return Answer.json(results, headers=_tei_times(queued, self._gpus.cost(len(texts)), len(texts)))

        return self._on_gpu(len(texts), answer, error=_tei_error)

    def _list_answer(self, payload: dict[str, Any], inputs: list[Any], encode: Callable[[Any], object]) -> Answer:
        data = [
            {"object": "embedding", "index": index, "embedding": encode(item)} for index, item in enumerate(inputs)
        ]
        if self._options.data_order == "reversed":
            data.reverse()
        elif self._options.data_order == "shuffled":
            self._random.shuffle(data)
        tokens = sum(map(_tokens, inputs))
        return Answer.json(
            {
                "object": "list",
                "data": data,
                "model": payload.get("model", self._options.models[0]),
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    def _encoder(self, payload: dict[str, Any]) -> Callable[[Any], object]:
        dimensions = payload.get("dimensions") or self._options.dimensions
        if not isinstance(dimensions, int) or not 0 < dimensions <= 65536:
            raise _Refused(Answer.error(400, f"dimensions must be between 1 and 65536, not {dimensions!r}"))
        form = payload.get("encoding_format") or "float"
        if form == "float":
            return lambda item: expected.vector_json(item, dimensions)
        if form == "base64":
            return lambda item: expected.encoded_vector(item, dimensions=dimensions)
        raise _Refused(Answer.error(400, f"encoding_format must be float or base64, not {form!r}"))

    def _check(self, inputs: list[Any], *, error: Callable[[int, str], Answer] = Answer.error) -> None:
        limit = self._options.max_batch
        if len(inputs) > limit:
            message = f"batch size {len(inputs)} > maximum allowed batch size {limit}"
            raise _Refused(error(self._options.batch_limit_status, message))
        poison = self._options.poison
        if poison is not None:
            for index, item in enumerate(inputs):
                if poison in (item if isinstance(item, str) else str(item)):
                    raise _Refused(error(422, f"input {index} cannot be processed: it contains {poison}"))

    def _on_gpu(
        self, items: int, answer: Callable[[float], Answer], *, error: Callable[[int, str], Answer] = Answer.error
    ) -> Answer | Coroutine[Any, Any, Answer]:
        if self._gpus.run_free_batch(items):
            return answer(0.0)
        return self._wait_for_gpu(items, answer, error)

    async def _wait_for_gpu(
        self, items: int, answer: Callable[[float], Answer], error: Callable[[int, str], Answer]
    ) -> Answer:
        try:
            queued = await self._gpus.batch(items)
        except QueueFull as full:
            return self._overloaded(full, error)
        return answer(queued)

    def _overloaded(self, full: QueueFull, error: Callable[[int, str], Answer]) -> Answer:
        refused = error(self._options.overload_status, "Model is overloaded")
        refused.headers += [
            ("retry-after", str(max(1, round(full.retry_after)))),
            ("retry-after-ms", str(max(1, round(full.retry_after * 1000)))),
        ]
        return refused

    # Generation.

    async def chat(self, exchange: Exchange) -> Answer:
        try:
            payload = _object(exchange)
            prompt, words = _prompt(payload)
            count = payload.get("max_completion_tokens") or payload.get("max_tokens") or max(1, words)
            if not isinstance(count, int) or count < 1:
                raise _Refused(Answer.error(400, f"max_tokens must be a positive integer, not {count!r}"))
        except _Refused as refused:
            return refused.answer
        shape = _Generation(payload, prompt, words, count)
        if payload.get("stream"):
            # The slot is taken before the head is sent, so that an overload is a status and not a broken stream.
            return await self._stream(shape)
        try:
            async with self._gpus.stream():
                await self._gpus.batch(1)
                await pace.until(time.monotonic() + count * self._options.token_ms / 1000)
        except QueueFull as full:
            return self._overloaded(full, Answer.error)
        return Answer.json(shape.whole())

    async def _stream(self, shape: _Generation) -> Answer:
        slot = self._gpus.stream()
        try:
            await slot.__aenter__()
        except QueueFull as full:
            return self._overloaded(full, Answer.error)
        try:
            await self._gpus.batch(1)
        except BaseException as error:
            await slot.__aexit__(type(error), error, None)
            if isinstance(error, QueueFull):
                return self._overloaded(error, Answer.error)
            raise

        return Answer(
            200,
            [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")],
            _Slotted(shape.events(self._options.token_ms / 1000), slot),
        )

    def models(self, exchange: Exchange) -> Answer:
        entries = [
            {"id": name, "object": "model", "created": _GIVEN_TIME, "owned_by": "netkit"}
            for name in self._options.models
        ]
        if exchange.path == "/v1/models":
            return Answer.json({"object": "list", "data": entries})
        wanted = exchange.path.removeprefix("/v1/models/")
        found = next((entry for entry in entries if entry["id"] == wanted), None)
        if found is None:
            return Answer.error(404, f"The model '{wanted}' does not exist", code="model_not_found")
        return Answer.json(found)


class _Slotted:
    """Events that give their stream slot back when they end, are closed, or were never begun."""

    def __init__(self, events: AsyncIterator[bytes], slot: Any) -> None:
        self._events = events
        self._slot = slot

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        if self._slot is not None:
            slot, self._slot = self._slot, None
            await self._events.aclose()  # type: ignore[attr-defined]
            await slot.__aexit__(None, None, None)


class _Generation:
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

    async def events(self, interval: float) -> AsyncIterator[bytes]:
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


def _object(exchange: Exchange) -> dict[str, Any]:
    try:
        payload = exchange.json()
    except msgspec.DecodeError as error:
        raise _Refused(Answer.error(400, f"the body is not valid JSON: {error}")) from error
    if not isinstance(payload, dict):
        raise _Refused(Answer.error(400, "the body must be a JSON object"))
    return payload


def _openai_inputs(payload: dict[str, Any]) -> list[Any]:
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
    raise _Refused(Answer.error(400, message, param="input"))


def _gme_inputs(payload: dict[str, Any]) -> list[Any]:
    """One entry per vector: the picture or text itself, whichever of the two shapes it came in."""
    if "inputs" in payload:
        given = payload["inputs"]
        if not isinstance(given, list) or not given:
            raise _Refused(Answer.error(400, "`inputs` must be a non-empty list", param="inputs"))
        return [_gme_item(item) for item in given]
    return [_gme_item(payload)]


def _gme_item(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        given = [item[key] for key in ("image", "image_url", "text") if isinstance(item.get(key), str)]
        if len(given) == 1:
            return str(given[0])
    raise _Refused(
        Answer.error(400, "an input must be a string, or have exactly one of `image`, `image_url`, `text`")
    )


def _prompt(payload: dict[str, Any]) -> tuple[object, int]:
    """What decides the answer, and how many words it has."""
    messages = payload.get("messages")
    if isinstance(messages, list) and messages:
        return messages, sum(_message_words(message) for message in messages)
    prompt = payload.get("prompt")
    if isinstance(prompt, str) and messages is None:
        return prompt, _tokens(prompt)
    raise _Refused(Answer.error(400, "`messages` must be a non-empty list", param="messages"))


def _message_words(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return _tokens(content)
    words = 0
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            words += _tokens(str(part.get("text", "")))
        elif kind == "image_url":
            _check_picture(part.get("image_url"))
            words += 1
        else:
            raise _Refused(Answer.error(400, f"content parts of type {kind!r} are not supported", param="messages"))
    return words


def _check_picture(given: Any) -> None:
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url.startswith(("data:image/", "http://", "https://")):
        raise _Refused(
            Answer.error(400, "image_url must be a data URL of an image, or an http(s) URL", param="messages")
        )


def _tokens(item: Any) -> int:
    return len(_WORD.findall(item)) if isinstance(item, str) else len(item)


def _tei_error(status: int, message: str) -> Answer:
    kinds = {413: "Validation", 422: "Validation", 429: "Overloaded", 503: "Overloaded"}
    return Answer.json({"error": message, "error_type": kinds.get(status, "Backend")}, status)


def _tei_times(queued: float, cost: float, items: int) -> HeaderList:
    """The timing headers of text-embeddings-inference, in milliseconds."""
    return [
        ("x-compute-type", "gpu+mock"),
        ("x-compute-tokens", str(items)),
        ("x-total-time", str(round((queued + cost) * 1000))),
        ("x-tokenization-time", "0"),
        ("x-queue-time", str(round(queued * 1000))),
        ("x-inference-time", str(round(cost * 1000))),
    ]
