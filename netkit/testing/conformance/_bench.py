"""What a rule gets to work with: sessions with and without the plugin, servers, and ways to wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack

from netkit.flow import run_sync
from netkit.testing.conformance._layer_bench import held
from netkit.testing.conformance._servers import Servers
from netkit.testing.conformance._session import Face, OpenOptions, Session
from netkit.testing.conformance._subject import Subject
from netkit.testing.mock_gpu import Answer, Exchange, Log, MockGPU, RequestRecord

__all__ = ["Bench", "in_threads", "run"]

T = TypeVar("T")
Handler = Callable[[Exchange], Answer | Coroutine[Any, Any, Answer]]


class Bench:
    """One subject on one face over one protocol. `url` is the main server's, `other` another origin's."""

    def __init__(self, subject: Subject, face: Face, http: str, servers: Servers) -> None:
        self.subject = subject
        self.face = face
        self.http = http
        self.servers = servers
        self.gpu = self._server("main", tls=http == "2")
        self.plugins = subject.plugins(http, self.gpu.url)

    @property
    def url(self) -> str:
        return self.gpu.url

    @property
    def other(self) -> MockGPU:
        """Another origin that speaks the same."""
        return self._server("other", tls=self.http == "2")

    @property
    def secure(self) -> MockGPU:
        """A server with TLS, its own authority, and optional client certificates."""
        return self._server("secure", tls=True)

    def _server(self, role: str, *, tls: bool) -> MockGPU:
        # The stacks' own classes speak HTTP/1.1, also where netkit is to speak HTTP/2: ALPN gives each its own.
        return self.servers.get("auto" if self.http == "2" else "1.1", tls=tls, role=role)

    def route(self, handler: Handler, *, gpu: MockGPU | None = None, name: str = "case") -> str:
        """Let `handler` answer a path of its own; returns its URL."""
        gpu = gpu or self.gpu
        path = f"/{name}/{self.servers.number()}"
        gpu.route(path, handler)
        return gpu.url + path

    @asynccontextmanager
    async def session(self, **options: Unpack[OpenOptions]) -> AsyncIterator[Session]:
        """netkit's session with the plugin on, and nothing else."""
        async with self._open(self.plugins, options) as session:
            yield session

    @asynccontextmanager
    async def native(self, **options: Unpack[OpenOptions]) -> AsyncIterator[Session]:
        """The stack's own session."""
        async with self._open(None, options) as session:
            yield session

    @asynccontextmanager
    async def _open(self, plugins: Any, options: OpenOptions) -> AsyncIterator[Session]:
        if self.gpu.ca_file is not None:
            options.setdefault("verify", self.gpu.ca_file)
        session = self.face.open(plugins, options)
        try:
            yield session
        finally:
            await session.close()

    async def both(self, scenario: Callable[[Session], Awaitable[T]], **options: Unpack[OpenOptions]) -> tuple[T, T]:
        """What `scenario` gives on the stack's own session, and on netkit's with the plugin."""
        async with self.native(**options) as session:
            expected = await scenario(session)
        async with self.session(**options) as session:
            return expected, await scenario(session)

    async def call(self, session: Session, method: str, url: str, **options: Any) -> Any:
        """A call with per-call options; where the stack has them per session only, on a session made with them."""
        fixed = {name: options[name] for name in ("verify", "cert", "proxy") if name in options}
        if fixed.keys() <= self.face.per_call:
            return await session.request(method, url, **options)
        rest = {name: value for name, value in options.items() if name not in fixed}
        own: OpenOptions = fixed  # type: ignore[assignment]
        async with self.session(**own) as made:
            return await made.request(method, url, **rest)

    async def failure(self, session: Session, method: str, url: str, **options: Any) -> Exception:
        """What a call raises; AssertionError when it does not."""
        try:
            got = await session.request(method, url, **options)
        except Exception as error:  # noqa: BLE001 - it is what was asked for
            return error
        raise AssertionError(f"{method} {url} was to fail, but the answer is {got.status}")

    def held(self, session: Session) -> dict[str, float]:
        """What `netkit.stats` says is held at present and is not zero, by dotted name. Without the pool plugin the
        connections are the stack's own business: httpcore 1.0 loses one to a call cancelled before it connects."""
        from netkit import stats

        found = held(stats(session.native))
        own = self.subject.name != "pool"
        return {name: value for name, value in found.items() if not (own and name.startswith("pool."))}

    def seen(self, url: str, *, gpu: MockGPU | None = None) -> list[RequestRecord]:
        """What the server saw of requests to `url`."""
        gpu = gpu or self.gpu
        path = url.removeprefix(gpu.url).partition("?")[0]
        return [record for record in gpu.log.requests if record.path == path]

    async def until(self, predicate: Callable[[Log], object], *, gpu: MockGPU | None = None) -> None:
        """Wait for the server's log to show it."""
        log = (gpu or self.gpu).log
        if self.face.is_async:
            await log.wait_async(predicate)
        else:
            log.wait(predicate)

    async def together(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
        """Run `jobs` at once, in tasks or in threads; raises what the first failing one raised."""
        if self.face.is_async:
            return list(await asyncio.gather(*(job() for job in jobs)))
        return in_threads([lambda job=job: run_sync(job()) for job in jobs])  # type: ignore[misc]


def in_threads(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run `jobs` in a thread each, all at once; raises what the first failing one raised."""
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []
    gate = threading.Barrier(len(jobs))

    def work(index: int, job: Callable[[], T]) -> None:
        try:
            gate.wait()
            results[index] = job()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index, job)) for index, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def run(face: Face, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a rule as its face demands: in this thread, or in a fresh event loop."""
    if not face.is_async:
        return run_sync(coroutine)
    # A loop factory keeps this from touching the thread's current loop, which belongs to the test run.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(_settled(coroutine) if face.stack == "aiohttp" else coroutine)


async def _settled(coroutine: Coroutine[Any, Any, T]) -> T:
    """What `coroutine` gives, once the connections that it closed are down.

    aiohttp's own session does not wait for a connection whose call ran out of time: its TLS is still being shut down
    when the session is closed, and with the loop gone nobody ends that. The warning then shows whenever garbage is
    collected, in a test that has nothing to do with it. What is never closed is still found.
    """
    try:
        return await coroutine
    finally:
        until = asyncio.get_running_loop().time() + 1.0
        while _is_connected(asyncio.get_running_loop(), until):  # noqa: ASYNC110 - nothing tells when a transport is down
            await asyncio.sleep(0.001)


def _is_connected(loop: Any, until: float) -> bool:
    transports = list(getattr(loop, "_transports", {}).values())
    return loop.time() < until and any(getattr(each, "_sock", None) is not None for each in transports)
