"""Four faces of one implementation, driven by the same tests: httpx and httpx2, sync and async."""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from netkit.testing import MockGPU


class Face:
    """One stack in one world. Tests are written as for threads; in the async world a loop runs each step."""

    def __init__(self, stack: str, asynchronous: bool) -> None:
        self.stack = stack
        self.asynchronous = asynchronous
        self.native: Any = importlib.import_module(stack)
        self.adapter: Any = importlib.import_module(f"netkit_adapters.{stack}")
        self._runner = asyncio.Runner() if asynchronous else None
        self._clients: list[Any] = []

    def __repr__(self) -> str:
        return f"{self.stack}-{'async' if self.asynchronous else 'sync'}"

    @property
    def Client(self) -> Any:
        return self.adapter.AsyncClient if self.asynchronous else self.adapter.Client

    @property
    def NativeClient(self) -> Any:
        return self.native.AsyncClient if self.asynchronous else self.native.Client

    @property
    def HTTPTransport(self) -> Any:
        return self.native.AsyncHTTPTransport if self.asynchronous else self.native.HTTPTransport

    def backend(self, transport: Any) -> Any:
        """What opens the sockets of a stock transport, netkit's part of it aside."""
        found = transport._pool._network_backend
        return getattr(found, "_netkit_inner", found)

    def run(self, result: Any) -> Any:
        """The outcome of a call: in the async world, of awaiting it."""
        if self._runner is None:
            return result

        async def waited() -> Any:
            return await result

        return self._runner.run(waited())

    def wait(self, gpu: MockGPU, holds: Callable[[Any], object]) -> None:
        """Wait until `holds(log)` of the server's log; a loop has its turns meanwhile."""
        waiting: Any = gpu.log.wait_async(holds) if self.asynchronous else gpu.log.wait(holds)
        self.run(waiting)

    def keep(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def client(self, gpu: MockGPU | None = None, **arguments: Any) -> Any:
        if gpu is not None:
            arguments.setdefault("verify", context_of(gpu))
            arguments.setdefault("base_url", gpu.url)
        return self.keep(self.Client(**arguments))

    def transport(self, handler: Any) -> Any:
        """A transport of the user's own: `handler(request) -> response`."""
        native = self.native

        class Sync(native.BaseTransport):  # type: ignore[misc, name-defined]
            def handle_request(self, request: Any) -> Any:
                return handler(request)

        class Async(native.AsyncBaseTransport):  # type: ignore[misc, name-defined]
            async def handle_async_request(self, request: Any) -> Any:
                return handler(request)

        return Async() if self.asynchronous else Sync()

    def read(self, response: Any) -> bytes:
        return self.run(response.aread() if self.asynchronous else response.read())  # type: ignore[no-any-return]

    def close(self, thing: Any) -> None:
        self.run(thing.aclose() if self.asynchronous else thing.close())

    @contextmanager
    def stream(self, client: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        context = client.stream(*args, **kwargs)
        response = self.run(context.__aenter__()) if self.asynchronous else context.__enter__()
        try:
            yield response
        finally:
            self.run(context.__aexit__(None, None, None)) if self.asynchronous else context.__exit__(None, None, None)

    def chunks(self, response: Any) -> Iterator[bytes]:
        """The raw body, step by step."""
        if not self.asynchronous:
            yield from response.iter_raw()
            return
        iterator: AsyncIterator[bytes] = response.aiter_raw()

        async def step() -> bytes:
            # Called in the loop, which then knows the generator and closes it if the test leaves early.
            return await anext(iterator)

        while True:
            try:
                yield self.run(step())
            except StopAsyncIteration:
                return

    def finish(self) -> None:
        for client in self._clients:
            if not client.is_closed:
                self.close(client)
        if self._runner is not None:
            self._runner.close()


def context_of(gpu: MockGPU) -> ssl.SSLContext:
    """TLS settings that trust `gpu`."""
    return ssl.create_default_context(cafile=str(gpu.ca_file))


EMBED = {"model": "mock-embed", "input": "a"}
PATH = "/v1/embeddings"


def served(http: str) -> Literal["1.1", "auto"]:
    """What a server offers for its clients to speak `http`."""
    return "auto" if http == "2" else "1.1"
