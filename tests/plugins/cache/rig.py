"""A cache layer above a scripted server, with a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from netkit_plugins.cache import CacheLayer, CacheOptions

from netkit import Context, Headers, Request, Response, TransportError
from netkit.events import Emitter
from netkit.flow import compose
from netkit.messages import Body
from netkit.runtime import Scripted
from netkit.stats import Meter
from netkit.testing.mock_gpu import expected_vector

URL = "https://gpu.test/v1/embeddings"
JSON = [("content-type", "application/json")]


def embeddings(request: Request) -> Response:
    """What an OpenAI-compatible server answers: every vector proves its input."""
    payload = json.loads(request.body.content or b"{}")
    given = payload["input"]
    items = given if isinstance(given, list) and not all(isinstance(one, int) for one in given) else [given]
    data = [
        {"object": "embedding", "index": index, "embedding": expected_vector(item, dimensions=4)}
        for index, item in enumerate(items)
    ]
    usage = {"prompt_tokens": len(items) * 3, "total_tokens": len(items) * 3}
    content = {"object": "list", "data": data, "model": payload.get("model"), "usage": usage}
    return Response.of(200, JSON, json.dumps(content).encode())


class Rig:
    """`answer` is the server; `sent` is what it saw."""

    def __init__(self, answer: Callable[[Request], Any] = embeddings, **options: Any) -> None:
        self.runtime = Scripted()
        self.answer = answer
        self.sent: list[Request] = []
        context = Context(runtime=self.runtime, emit=Emitter(), stack="httpx", meter=Meter())
        self.layer = CacheLayer(CacheOptions(**options), context)
        self.chain = compose([self.layer], self._serve)

    async def _serve(self, request: Request) -> Response:
        self.sent.append(request)
        await self.runtime.checkpoint("server")
        response = self.answer(request)
        if isinstance(response, Exception):
            raise response
        return response  # type: ignore[no-any-return]

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.body.content or b"null") for request in self.sent]

    def start(self, body: Any = None, method: str = "POST", url: str = URL, headers: Sequence[Any] = JSON) -> Any:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        request = Request(method, url, Headers(headers), Body.of(content), extensions={})
        return self.runtime.task(self.chain(request))

    def call(self, *args: Any, **named: Any) -> Any:
        """The answer, its body as `content` attribute of the task's result."""
        task = self.start(*args, **named)
        self.runtime.run_to_end()
        return task.result()

    def ask(self, given: Any, **named: Any) -> list[Any]:
        """The vectors for an input, told apart by their index."""
        response = self.call({"model": "m", "input": given}, **named)
        assert response.status == 200
        data = json.loads(content_of(response))["data"]
        assert [one["index"] for one in data] == list(range(len(data)))
        return [one["embedding"] for one in data]


def content_of(response: Response) -> bytes:
    content: bytes = response.body.content  # type: ignore[attr-defined]
    return content


def lost() -> TransportError:
    from netkit import Verdict
    from netkit.errors import FailureKind

    return TransportError("reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS)
