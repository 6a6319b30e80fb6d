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
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from . import expected, generation
from .exchange import Answer, Exchange, HeaderList
from .gpus import QueueFull
from .overload import OVERLOADED, overloaded
from .payloads import Refused, count_tokens, gme_inputs, json_object, openai_inputs

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["mount"]

_GIVEN_TIME = 1_700_000_000


def mount(backend: Backend, route: Callable[..., None]) -> None:
    """Add these routes."""
    api = _Api(backend)
    route("/v1/embeddings", api.embeddings, methods=("POST",))
    generation.mount(backend, route)
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

    def embeddings(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = json_object(exchange)
            inputs = openai_inputs(payload)
            self._check(inputs)
            encode = self._encoder(payload)
        except Refused as refused:
            return refused.answer
        return self._on_gpu(len(inputs), lambda _: self._list_answer(payload, inputs, encode))

    def gme(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = json_object(exchange)
            inputs = gme_inputs(payload)
            self._check(inputs)
            encode = self._encoder(payload)
        except Refused as refused:
            return refused.answer
        return self._on_gpu(len(inputs), lambda _: self._list_answer(payload, inputs, encode))

    def embed(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = json_object(exchange)
            given = payload.get("inputs")
            inputs = given if isinstance(given, list) else [given]
            if not inputs or not all(isinstance(item, str) for item in inputs):
                raise Refused(_tei_error(422, "`inputs` must be a string or a non-empty list of strings"))
            self._check(inputs, error=_tei_error)
        except Refused as refused:
            return refused.answer
        dimensions = payload.get("dimensions") or self._options.dimensions
        texts = [str(item) for item in inputs]

        def answer(queued: float) -> Answer:
            vectors = [expected.vector_json(item, dimensions) for item in texts]
            return Answer.json(vectors, headers=_tei_times(queued, self._gpus.cost(len(inputs)), len(inputs)))

        return self._on_gpu(len(inputs), answer, error=_tei_error)

    def rerank(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            payload = json_object(exchange)
            query, texts = payload.get("query"), payload.get("texts", payload.get("documents"))
            if not isinstance(query, str) or not isinstance(texts, list) or not texts:
                raise Refused(_tei_error(422, "`query` and a non-empty list `texts` are required"))
            self._check(texts, error=_tei_error)
        except Refused as refused:
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
        tokens = sum(map(count_tokens, inputs))
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
            raise Refused(Answer.error(400, f"dimensions must be between 1 and 65536, not {dimensions!r}"))
        form = payload.get("encoding_format") or "float"
        if form == "float":
            return lambda item: expected.vector_json(item, dimensions)
        if form == "base64":
            return lambda item: expected.encoded_vector(item, dimensions=dimensions)
        raise Refused(Answer.error(400, f"encoding_format must be float or base64, not {form!r}"))

    def _check(self, inputs: list[Any], *, error: Callable[[int, str], Answer] = Answer.error) -> None:
        limit = self._options.max_batch
        if len(inputs) > limit:
            message = f"batch size {len(inputs)} > maximum allowed batch size {limit}"
            raise Refused(error(self._options.batch_limit_status, message))
        poison = self._options.poison
        if poison is not None:
            for index, item in enumerate(inputs):
                if poison in (item if isinstance(item, str) else str(item)):
                    raise Refused(error(422, f"input {index} cannot be processed: it contains {poison}"))

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
            return overloaded(full, error(self._options.overload_status, OVERLOADED))
        return answer(queued)

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
