"""MockGPU: the server as tests and benchmarks hold it, in a thread and a loop of its own.

Rules of this file:
- The public methods are called from any thread or loop; they reach the server's loop by `call_soon_threadsafe` only.
- After a fork the child's copy is dead: its descriptors point nowhere, its methods do nothing to the parent.
- `close` leaves no thread, task, socket, file or warning behind.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from netkit.testing.faults._base import Faults, FaultScript

from .application import Handler
from .backend import Backend
from .certificates import Certificates
from .handle import ConnectionHandle
from .log import Log
from .options import Options
from .running import Running
from .state import Stats, stats_of

__all__ = ["MockGPU"]

_T = TypeVar("_T")
_ALPN = {"auto": ["h2", "http/1.1"], "1.1": ["http/1.1"], "2": ["h2"]}


class MockGPU:
    """A GPU inference server for tests. Takes the fields of `Options` and `faults`.

    Example::

        with MockGPU(launch_ms=0, faults=[faults.Status(503)]) as gpu:
            requests.post(gpu.url + "/v1/embeddings", json={"input": "a"}, verify=gpu.ca_file)
            assert gpu.log.requests[0].status == 503

    `async with` works too; the server never runs in the caller's loop.
    """

    def __init__(self, *, faults: Iterable[Faults] = (), **options: Any) -> None:
        self.options = Options(**options)
        self.log = Log(size=self.options.log_size)
        self.faults = FaultScript()
        self.faults.push(*faults)
        self.port = self.options.port
        self.ca_file: str | None = None
        self.client_file: str | None = None
        """A certificate and key (one PEM file) that the server accepts from a client."""
        self._routes: list[tuple[str, Handler, dict[str, Any]]] = []
        self._thread: threading.Thread | None = None
        self._running: Running | None = None
        self._directory: str | None = None
        self._process = os.getpid()

    def __repr__(self) -> str:
        state = "running" if self._running is not None else "stopped"
        return f"<MockGPU {self.url} {state} http={self.options.http}>"

    @property
    def url(self) -> str:
        """Scheme, host and port, without a slash at the end. The port is known once the server runs."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{'https' if self.options.tls else 'http'}://{host}:{self.port}"

    # Start and stop.

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        launched = asyncio.wrap_future(self._launch())
        try:
            await asyncio.shield(launched)
        except asyncio.CancelledError:
            # The thread that was begun would outlive whoever gave up.
            await asyncio.wait([launched])
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finished = self._ask_to_stop()
        if finished is not None:
            await asyncio.wrap_future(finished)
        self.close()

    def start(self) -> None:
        """Serve. Returns when connections are accepted.

        Raises:
            OSError: the address is in use.
            RuntimeError: it runs already.
        """
        self._launch().result(timeout=30)

    def close(self) -> None:
        """Stop serving; open connections are closed. Idempotent; does nothing in a forked child."""
        finished = self._ask_to_stop()
        if finished is not None and self._thread is not None:
            self._thread.join()
            self._thread = None
            self._running = None
        if self._directory is not None and os.getpid() == self._process:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    # What tests do to it.

    def stats(self) -> Stats:
        """GPU use, queue, requests, connections, as of now."""
        return stats_of(self._backend)

    def script(self, *faults: Faults) -> None:
        """Replace the fault script."""
        self.faults.clear()
        self.faults.push(*faults)

    def reset(self) -> None:
        """Forget log and statistics; connections, routes and faults stay."""
        self.log.clear()
        self._call(self._backend.reset_statistics)

    def route(
        self, path: str, handler: Handler, *, methods: tuple[str, ...] | None = None, streaming: bool = False
    ) -> None:
        """Add or replace a route; see `application`. Before or after the start."""
        if self._running is None:
            self._routes.append((path, handler, {"methods": methods, "streaming": streaming}))
        else:
            self._backend.application.route(path, handler, methods=methods, streaming=streaming)

    def pause_listening(self) -> None:
        """Close the listening socket: connects are refused. Open connections stay."""
        self._call(self._live.pause_listening)

    def resume_listening(self) -> None:
        """Listen again, on the same port."""
        self._call_async(self._live.resume_listening)

    def connection(self, number: int) -> ConnectionHandle:
        """A handle on an open connection by its id in the log (1 is the first accepted).

        Raises:
            LookupError: it is not open.
        """
        if number not in self._backend.connections:
            raise LookupError(f"connection {number} is not open; open are {sorted(self._backend.connections)}")
        return ConnectionHandle(self._backend.connections[number], self._call)

    def close_connections(self, how: str = "fin", *, idle_only: bool = True) -> int:
        """End connections now: "fin", "reset", or "goaway" (HTTP/2; HTTP/1.1 gets FIN). Returns how many."""
        return self._call(lambda: self._backend.close_connections(how, idle_only=idle_only))

    # Inside.

    @property
    def _live(self) -> Running:
        if self._running is None or os.getpid() != self._process:
            raise RuntimeError("the mock server does not run")
        return self._running

    @property
    def _backend(self) -> Backend:
        if self._running is None:
            raise RuntimeError("the mock server was not started")
        return self._running.backend

    def _call(self, action: Callable[[], _T]) -> _T:
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - handed to the caller
                done.set_exception(error)

        self._live.loop.call_soon_threadsafe(run)
        return done.result(timeout=10)

    def _call_async(self, action: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._live.loop).result(timeout=10)

    def _launch(self) -> concurrent.futures.Future[None]:
        if self._thread is not None:
            raise RuntimeError("the mock server runs already")
        self._process = os.getpid()
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        # Not a daemon, which may be killed in the middle of a write. It ends by itself with the main thread.
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="netkit-mock-gpu")
        self._thread.start()
        return ready

    def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory(self.options.loop)) as runner:
                runner.run(self._main(ready))
        except Exception as error:
            if not ready.done():
                self._thread = None
                ready.set_exception(error)
            else:
                raise

    async def _main(self, ready: concurrent.futures.Future[None]) -> None:
        context = self._certify() if self.options.tls else None
        running = Running(Backend(self.options, self.log, self.faults), context)
        for path, handler, more in self._routes:
            running.backend.application.route(path, handler, **more)
        await running.listen(self.port)
        self.port = running.port
        self._running = running
        ready.set_result(None)
        try:
            await running.until_stopped()
        finally:
            await running.end()
            running.finished.set_result(None)

    def _certify(self) -> ssl.SSLContext:
        self._directory = tempfile.mkdtemp(prefix="netkit-mock-gpu-")
        certificates = Certificates(Path(self._directory), self.options.hostnames, host=self.options.host)
        self.ca_file, self.client_file = certificates.ca_file, certificates.client_file
        return certificates.server_context(
            _ALPN[self.options.http], client_certificate=self.options.client_certificate
        )

    def _ask_to_stop(self) -> concurrent.futures.Future[None] | None:
        running = self._running
        if running is None or os.getpid() != self._process:
            return None
        if not running.finished.done():
            try:
                running.loop.call_soon_threadsafe(running.stop.set)
            except RuntimeError:  # the loop has just closed
                pass
        return running.finished


def _loop_factory(wanted: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if wanted != "asyncio":
        try:
            import uvloop
        except ImportError:
            if wanted == "uvloop":
                raise
        else:
            return uvloop.new_event_loop
    return asyncio.SelectorEventLoop if hasattr(socket, "AF_UNIX") else asyncio.new_event_loop
