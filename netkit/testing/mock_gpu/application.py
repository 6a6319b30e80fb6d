"""The routes: which handler answers which path.

A handler is `(exchange) -> Answer` or a coroutine function of the same shape. It finds the whole request body in
`exchange.content`, unless its route is a streaming one, which reads `exchange.body` itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .exchange import Answer, Exchange, Gone

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["Application", "Handler", "Route"]

Handler = Callable[[Exchange], Answer | Coroutine[Any, Any, Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """`methods` None means any; HEAD is allowed wherever GET is. `streaming`: the handler reads the body itself."""

    handler: Handler
    methods: frozenset[str] | None = None
    streaming: bool = False


class Application:
    """The table of routes. A path ending in "*" stands for everything that starts so; the longest one wins."""

    def __init__(self, backend: Backend) -> None:
        from . import api, probes, state

        self._backend = backend
        self._exact: dict[str, Route] = {}
        self._below: dict[str, Route] = {}
        for module in (api, probes, state):
            module.mount(backend, self.route)

    def __repr__(self) -> str:
        return f"<Application {len(self._exact) + len(self._below)} routes>"

    def route(
        self, path: str, handler: Handler, *, methods: tuple[str, ...] | None = None, streaming: bool = False
    ) -> None:
        """Let `handler` answer `path`; replaces what answered it before."""
        route = Route(handler, None if methods is None else frozenset(methods), streaming)
        if path.endswith("*"):
            self._below[path[:-1].rstrip("/")] = route
        else:
            self._exact[path] = route

    def find(self, path: str) -> Route | None:
        route = self._exact.get(path)
        while route is None and path:
            route = self._below.get(path)
            path = path.rpartition("/")[0]
        return route

    def answer_whole(self, exchange: Exchange) -> Answer | Coroutine[Any, Any, Answer]:
        """The answer to an exchange whose body has arrived, or a coroutine for `finish` where it takes time."""
        route = self.find(exchange.path)
        limit = self._backend.options.max_body
        refusal = _too_large(limit) if exchange.body.size > limit else self._refuse(exchange, route)
        if refusal is not None or route is None:
            exchange.body.take()
            return refusal or _unknown(exchange)
        if not route.streaming:
            exchange.content = exchange.body.take()
        try:
            answer = route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - see _broken
            return self._broken(exchange, error)
        return answer

    async def answer(self, exchange: Exchange) -> Answer:
        """The same where the body may still be on its way."""
        route = self.find(exchange.path)
        limit = self._backend.options.max_body
        announced = exchange.header("content-length") or ""
        if announced.isdigit() and int(announced) > limit:
            return _too_large(limit)
        if route is None or not route.streaming:
            pieces: list[bytes] = []
            async for piece in exchange.body.chunks():
                if exchange.body.size > limit:
                    return _too_large(limit)
                pieces.append(piece)
            exchange.content = b"".join(pieces)
        refusal = self._refuse(exchange, route)
        if refusal is not None or route is None:
            return refusal or _unknown(exchange)
        try:
            answer = route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - see _broken
            return self._broken(exchange, error)
        return answer if isinstance(answer, Answer) else await self.finish(exchange, answer)

    async def finish(self, exchange: Exchange, pending: Coroutine[Any, Any, Answer]) -> Answer:
        """The outcome of a handler that takes time."""
        try:
            return await pending
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - see _broken
            return self._broken(exchange, error)

    def _broken(self, exchange: Exchange, error: Exception) -> Answer:
        """A handler failed: the client gets a 500, and the log keeps the traceback for the author of the test."""
        text = "".join(traceback.format_exception(error))
        self._backend.log._event("handler_error", exchange.connection.id, exchange.stream, detail={"error": text})
        return Answer.error(500, f"the mock server's handler failed: {error!r}", kind="server_error")

    def _refuse(self, exchange: Exchange, route: Route | None) -> Answer | None:
        keys = self._backend.options.api_keys
        if keys and exchange.path.startswith("/v1/"):
            scheme, _, key = (exchange.header("authorization") or "").partition(" ")
            if scheme.lower() != "bearer" or key not in keys:
                return Answer.error(
                    401,
                    "Incorrect API key provided",
                    code="invalid_api_key",
                    headers=[("www-authenticate", "Bearer")],
                )
        if route is None or route.methods is None or exchange.method in route.methods:
            return None
        if exchange.method == "HEAD" and "GET" in route.methods:
            return None
        allow = ", ".join(sorted(route.methods))
        return Answer.error(405, f"method {exchange.method} is not allowed", headers=[("allow", allow)])


def _unknown(exchange: Exchange) -> Answer:
    return Answer.error(404, f"no route for {exchange.path}", code="not_found")


def _too_large(limit: int) -> Answer:
    return Answer.error(413, f"request body exceeds the maximum of {limit} bytes", code="payload_too_large")
