"""Many requests through one session: several at once, answers in order. `netkit.map`.

Rules of this file:

- At most `concurrency` calls run at once, and no request is taken from its source before there is room for it: at
  most twice as many are begun or answered as have been handed out.
- Answers come in the order of their requests, whatever the order in which servers give them.
- Whoever stops early leaves nothing running: tasks are cancelled and waited for; threads, which nobody can cancel,
  are waited for, and begin nothing new.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sized,
)
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

from netkit.messages import Request
from netkit.runtime import Asyncio, Event, Spawned

__all__ = ["AsyncMap", "map"]

log = logging.getLogger("netkit")

Progress: TypeAlias = Callable[[int, "int | None"], None]


def map(
    target: Any,
    requests: Iterable[Any] | AsyncIterable[Any],
    *,
    concurrency: int = 16,
    return_exceptions: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Send many requests, several at once, and give their answers in order.

    Example::

        session = netkit.Session()
        for answer in netkit.map(session, ({"url": url, "json": {"input": text}} for text in texts)):
            store(answer.json())

        async with netkit.AsyncClient() as client:
            async for answer in netkit.map(client, requests, concurrency=64):
                ...
            answers = await netkit.map(client, requests)          # or all of them, as a list

        vectors = netkit.map(sdk.embeddings.create, ({"model": "m", "input": text} for text in texts))

    `target` is a session or client of any stack, with or without netkit, or a function (an SDK's method). Each of
    `requests` is a table of arguments for the session's own `request()` (`method` may be left out: POST with a body,
    GET without) or for the function; a URL to GET; a native request of the stack (`requests.Request`,
    `requests.PreparedRequest`, `httpx.Request`); or a `netkit.Request`. They are taken as there is room.

    A session that blocks gives an iterator, its calls run in threads; an asynchronous one gives an `AsyncMap`. Both
    see the `netkit.overrides` of the place where they are made, and bodies are read already, also aiohttp's.

    Args:
        concurrency: calls at once. The session's pool must have room for them.
        return_exceptions: give what a call raised in its place among the answers. Otherwise it is raised when its
            turn comes, and everything else is given up.
        progress: `progress(done, total)` after each call, in the order in which calls end, one at a time, in the
            thread or task of that call; `total` is None where `requests` has no length. What it raises is logged.

    Raises:
        ValueError: `concurrency` is less than 1.
        TypeError: `target` can send nothing, or requests that come asynchronously meet a session that blocks.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be ≥ 1, got {concurrency}")
    if not (callable(getattr(target, "request", None)) or callable(target)):
        raise TypeError(f"neither a session nor a function: {type(target).__module__}.{type(target).__qualname__}")
    told = _Progress(progress, len(requests) if isinstance(requests, Sized) else None)
    if _is_async(target):
        context = contextvars.copy_context()
        return AsyncMap(_in_tasks(target, requests, concurrency, return_exceptions, told, context))
    if not isinstance(requests, Iterable):
        raise TypeError("requests that come asynchronously need an asynchronous session")
    return _in_threads(target, iter(requests), concurrency, return_exceptions, told, contextvars.copy_context())


class AsyncMap(AsyncIterator[Any]):
    """Answers to come: `async for` gives them one by one, `await` all of them as a list. `aclose()` gives up the
    rest, and so does leaving `async with`."""

    def __init__(self, answers: AsyncGenerator[Any, None]) -> None:
        self._answers = answers

    def __aiter__(self) -> AsyncIterator[Any]:
        # The generator itself: who leaves the loop drops it, and with it what still runs.
        return self._answers

    async def __anext__(self) -> Any:
        return await anext(self._answers)

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        return self._all().__await__()

    async def _all(self) -> list[Any]:
        return [answer async for answer in self._answers]

    async def aclose(self) -> None:
        await self._answers.aclose()

    async def __aenter__(self) -> AsyncMap:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Progress:
    def __init__(self, callback: Progress | None, total: int | None) -> None:
        self._callback = callback
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def one(self) -> None:
        if self._callback is None:
            return
        with self._lock:
            self._done += 1
            try:
                self._callback(self._done, self._total)
            except Exception:
                # Whoever watches must not change what the caller gets.
                log.exception("netkit: the progress callback of netkit.map failed")


def _is_async(target: Any) -> bool:
    if callable(getattr(target, "request", None)):
        return hasattr(target, "__aenter__")
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004


def _send(target: Any, request: Any) -> Any:
    """Begin one call: its answer, or something to await for it."""
    if not callable(getattr(target, "request", None)):
        return target(**request) if isinstance(request, Mapping) else target(request)
    if isinstance(request, str):
        return target.request("GET", request)
    if isinstance(request, Request):
        body = "content" if hasattr(target, "build_request") else "data"
        content = {body: request.body.open()} if request.body.size != 0 else {}
        return target.request(request.method, request.url, headers=dict(request.headers.items()), **content)
    if isinstance(request, Mapping):
        arguments = dict(request)
        has_body = any(arguments.get(name) is not None for name in ("json", "data", "content", "files"))
        return target.request(arguments.pop("method", "POST" if has_body else "GET"), **arguments)
    if hasattr(target, "prepare_request"):
        prepared = request if hasattr(request, "prepare_body") else target.prepare_request(request)
        return target.send(prepared, **target.merge_environment_settings(prepared.url, {}, None, None, None))
    return target.send(request)


def _in_threads(
    target: Any,
    source: Any,
    concurrency: int,
    return_exceptions: bool,
    progress: _Progress,
    context: contextvars.Context,
) -> Generator[Any]:
    def call(request: Any) -> Any:
        try:
            return _send(target, request)
        finally:
            progress.one()

    executor = ThreadPoolExecutor(concurrency, thread_name_prefix="netkit-map")
    waiting: deque[Future[Any]] = deque()
    wait = True
    ended: BaseException | None = None
    try:
        while True:
            while ended is None and len(waiting) < 2 * concurrency:
                try:
                    request = next(source)
                except Exception as end:  # noqa: BLE001 - raised once the answers before it are out
                    ended = end
                else:
                    waiting.append(executor.submit(context.copy().run, call, request))
            if not waiting:
                break
            future = waiting.popleft()
            error = future.exception()
            if error is not None and not (return_exceptions and isinstance(error, Exception)):
                raise error
            yield future.result() if error is None else error
            del future, error
        if ended is not None and not isinstance(ended, StopIteration):
            raise ended
    except (KeyboardInterrupt, SystemExit):
        wait = False
        raise
    finally:
        executor.shutdown(wait=wait, cancel_futures=True)
        ended = None


class _Slot:
    __slots__ = ("answer", "done", "error", "spawned")

    def __init__(self) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.spawned: Spawned


async def _in_tasks(
    target: Any,
    requests: Any,
    concurrency: int,
    return_exceptions: bool,
    progress: _Progress,
    context: contextvars.Context,
) -> AsyncGenerator[Any, None]:
    runtime = Asyncio()
    source = _source(requests)
    window: deque[_Slot] = deque()
    running = 0
    changed: Event = runtime.event()
    ended = False
    failure: Exception | None = None

    async def call(slot: _Slot, request: Any) -> None:
        nonlocal running
        try:
            slot.answer = await _read(await _send(target, request))
        except BaseException as error:
            slot.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            running -= 1
            slot.done = True
            progress.one()
            changed.set()

    try:
        while True:
            while not ended and running < concurrency and len(window) < 2 * concurrency:
                if window and window[0].done:
                    break
                try:
                    request = await anext(source)
                except StopAsyncIteration:
                    ended = True
                except Exception as error:  # noqa: BLE001 - raised once the answers before it are out
                    ended, failure = True, error
                else:
                    slot = _Slot()
                    running += 1
                    slot.spawned = runtime.spawn(call(slot, request), name="map", context=context.copy())
                    window.append(slot)
            if not window:
                break
            if not window[0].done:
                changed = runtime.event()
                await changed.wait()
                continue
            slot = window.popleft()
            if slot.error is not None and not (return_exceptions and isinstance(slot.error, Exception)):
                raise slot.error
            yield slot.answer if slot.error is None else slot.error
            del slot
        if failure is not None:
            raise failure
    finally:
        for slot in window:
            slot.spawned.cancel()
        for slot in window:
            while not slot.spawned.done():
                await runtime.sleep(0)


async def _source(requests: Any) -> AsyncIterator[Any]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


async def _read(answer: Any) -> Any:
    """aiohttp answers before the body is there, and keeps its connection until then."""
    read = getattr(type(answer), "read", None)
    if read is not None and inspect.iscoroutinefunction(read):
        await answer.read()
    return answer
