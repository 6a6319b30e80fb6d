"""What a client's `send` does around a transport, for calls in which the client itself has nothing to do.

Between `send` and a transport the stacks put two generators, a loop and a context manager, for authentication, hooks
and redirects that most calls do not have: a fifth of what a small call costs its client.

Rules of this file:

- Only where all of it is the stack's own, in the client, in its class and in the stack, and does no more than is
  known here; there is no authentication and no hook; and nobody listens to the stack's log, whose records name its
  functions.
- The order is the stack's: transport, request, bound stream, cookies, encoding, redirects. An answer that redirects
  is handed to the stack's own method, which goes on from it.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from netkit_adapters.httpx.chain import Wiring
    from netkit_adapters.httpx.stack import Stack

__all__ = ["Dispatch"]

_METHODS: Final = ("send", "_send_handling_auth", "_send_handling_redirects", "_send_single_request")
_AROUND: Final = ("_build_auth", "_build_redirect_request", "_set_timeout", "_transport_for_url")
_SETTINGS: Final = ("auth", "cookies", "event_hooks", "is_closed", "follow_redirects")
_OWN: Final = attrgetter(*_METHODS, "_build_request_auth", *_AROUND)
_OF_KIND: Final = attrgetter(*_METHODS[1:3], *_AROUND, *_SETTINGS[:4])
_OF_INSTANCES: Final = frozenset({*_METHODS, "_build_request_auth", *_AROUND})
_OF_AUTH: Final = attrgetter("auth_flow", "sync_auth_flow", "async_auth_flow")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

_STEPS: Final = frozenset((
    "AsyncByteStream", "BaseException", "BoundAsyncStream", "BoundSyncStream", "CLOSED", "ClientState", "OPENED",
    "RemoteProtocolError", "RuntimeError", "StopAsyncIteration", "StopIteration", "SyncByteStream",
    "TooManyRedirects", "UseClientDefault", "__anext__", "_build_redirect_request", "_build_request_auth",
    "_default_encoding", "_event_hooks", "_send_handling_auth", "_send_handling_redirects", "_send_single_request",
    "_set_timeout", "_state", "_transport_for_url", "aclose", "append", "aread", "asend", "async_auth_flow", "close",
    "cookies", "default_encoding", "extract_cookies", "follow_redirects", "handle_async_request", "handle_request",
    "has_redirect_location", "history", "http_version", "info", "isinstance", "len", "list", "logger",
    "max_redirects", "method", "next", "next_request", "perf_counter", "read", "reason_phrase", "request",
    "request_context", "send", "status_code", "stream", "suppress", "sync_auth_flow", "time", "url",
))  # fmt: skip
"""All that the stacks' own methods name. A version of a stack that names more does more, and is left to do it."""


class Dispatch:
    """What stands around a transport in one stack and one world, as it was at import."""

    def __init__(self, stack: Stack, *, asynchronous: bool) -> None:
        native, module = stack.native, import_module(f"{stack.name}._client")
        world = "Async" if asynchronous else "Sync"
        self._native = native
        self._client: Any = stack.async_client if asynchronous else stack.client
        self._stream: Any = getattr(native, f"{world}ByteStream")
        self._bound: Any = getattr(module, f"Bound{world}Stream", None)
        self._opened: Any = getattr(getattr(module, "ClientState", None), "OPENED", None)
        self._own, self._of_kind = _OWN(self._client), _OF_KIND(self._client)
        self._of_auth = _OF_AUTH(native.Auth)
        self._unset = type(native.USE_CLIENT_DEFAULT)
        self._listens = logging.getLogger(stack.name).isEnabledFor
        self._given = frozenset() if self._bound is None else frozenset(inspect.signature(self._bound).parameters)
        self._works = (
            self._opened is not None
            and self._given in (frozenset({"stream", "start"}), frozenset({"stream", "response", "start"}))
            and all(_STEPS.issuperset(method.__code__.co_names) for method in self._own[:4])
        )

    def applies(self, client: Any, face: Any, single: Any, request: Any, options: dict[str, Any]) -> bool:
        """Whether `send` may be used for `client`. `face` is netkit's class, `single` what stands under its
        `_send_single_request`."""
        kind, hooks = type(client), client.event_hooks
        return (
            self._works
            and _OWN(self._client) == self._own
            and _OF_KIND(kind) == self._of_kind
            and kind._send_single_request is face._send_single_request
            and kind._build_request_auth is face._build_request_auth
            and getattr(single, "__func__", None) is self._own[3]
            and _OF_INSTANCES.isdisjoint(client.__dict__)
            and not hooks["request"]
            and not hooks["response"]
            and client.auth is None
            and (options.get("auth") is None or isinstance(options["auth"], self._unset))
            and not request.url.userinfo
            and _OF_AUTH(self._native.Auth) == self._of_auth
            and not client.is_closed
            and isinstance(request.stream, self._stream)
            and not self._listens(logging.INFO)
        )

    def send(self, client: Any, wiring: Wiring, request: Any, options: dict[str, Any]) -> Any:
        """What the stack's `Client.send(request, stream=True, **options)` returns."""
        transport, start = self._begin(client, wiring, request)
        try:
            response = transport.handle_request(request)
        except BaseException as error:
            self._failed(request, error)
            raise
        try:
            self._finish(client, wiring, request, response, start)
            if response.status_code in _REDIRECTS and response.has_redirect_location:
                return self._redirected(client, request, lambda request: response, options)
        except BaseException:
            response.close()
            raise
        return response

    async def asend(self, client: Any, wiring: Wiring, request: Any, options: dict[str, Any]) -> Any:
        """As `send`, for an AsyncClient."""
        transport, start = self._begin(client, wiring, request)
        try:
            response = await transport.handle_async_request(request)
        except BaseException as error:
            self._failed(request, error)
            raise
        try:
            self._finish(client, wiring, request, response, start)
            if response.status_code in _REDIRECTS and response.has_redirect_location:

                async def answer(request: Any) -> Any:
                    return response

                return await self._redirected(client, request, answer, options)
        except BaseException:
            await response.aclose()
            raise
        return response

    def _begin(self, client: Any, wiring: Wiring, request: Any) -> tuple[Any, float]:
        """The transport for `request`, with the chain around it, and when the call began."""
        client._state = self._opened
        if "timeout" not in request.extensions:
            client._set_timeout(request)
        pick = client._transport_for_url
        transport = pick(request.url)
        if type(transport) is not wiring.chained:
            transport = wiring.chained(wiring, transport, pick)
        return transport, time.perf_counter()

    def _failed(self, request: Any, error: BaseException) -> None:
        if isinstance(error, self._native.RequestError):
            error.request = request

    def _finish(self, client: Any, wiring: Wiring, request: Any, response: Any, start: float) -> None:
        """Make `response` what the client hands out."""
        assert isinstance(response.stream, self._stream)
        response.request = request
        if len(self._given) == 2:
            response.stream = self._bound(response.stream, start=start)
        else:
            response.stream = self._bound(response.stream, response=response, start=start)
        wiring.cookies.received(client.cookies).extract_cookies(response)
        response.default_encoding = client._default_encoding
        response.history = []

    def _redirected(self, client: Any, request: Any, answer: Callable[[Any], Any], options: dict[str, Any]) -> Any:
        """What the client's own handling of redirects makes of the answer that `answer` gives."""
        follow = options.get("follow_redirects", self._native.USE_CLIENT_DEFAULT)
        if isinstance(follow, self._unset):
            follow = client.follow_redirects
        handle: Callable[..., Any] = self._own[2]
        return handle(_Answered(client, answer), request, follow_redirects=follow, history=[])


class _Answered:
    """A client whose first request has its answer already; every attribute is the client's."""

    def __init__(self, client: Any, answer: Callable[[Any], Any]) -> None:
        self._netkit_client = client
        self._netkit_answers = [answer]

    def _send_single_request(self, request: Any) -> Any:
        send = self._netkit_answers.pop() if self._netkit_answers else self._netkit_client._send_single_request
        return send(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._netkit_client, name)
