"""The server's inside, on its own loop: takes exchanges from connections, asks faults and routes, delivers."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from .application import Application
from .exchange import Answer, Exchange, Gone
from .gpus import Gpus

if TYPE_CHECKING:
    from netkit.testing.faults import FaultScript

    from .connection import Connection
    from .log import Log
    from .options import Options
    from .wire import Wire

__all__ = ["Backend"]


class Backend:
    """Shared by all connections of one server."""

    def __init__(self, options: Options, log: Log, faults: FaultScript) -> None:
        self.options = options
        self.log = log
        self.faults = faults
        self.gpus = Gpus(
            options.gpus,
            launch=options.launch_ms / 1000,
            per_item=options.per_item_ms / 1000,
            queue_size=options.queue_size,
            max_streams=options.max_streams,
        )
        self.connections: dict[int, Connection] = {}
        self.wires: set[Wire] = set()
        """Every wire that holds a socket, ended or not."""
        self.open = self.peak = self.requests = self.accepted = 0
        self.application = Application(self)
        self._released: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Backend connections={len(self.connections)} open={self.open} requests={self.requests}>"

    def next_connection(self) -> int:
        self.accepted += 1
        return self.accepted

    def next_request(self) -> int:
        self.requests += 1
        return self.requests

    def reset_statistics(self) -> None:
        """Count from zero, save what is open."""
        self.gpus.reset()
        self.peak = self.open

    def close_connections(self, how: str, *, idle_only: bool) -> int:
        """End connections: "fin", "reset", "goaway"."""
        if how not in ("fin", "reset", "goaway"):
            raise ValueError(f"how must be fin, reset or goaway, not {how!r}")
        chosen = [c for c in tuple(self.connections.values()) if not (idle_only and c.open)]
        for connection in chosen:
            if how == "goaway" and connection.is_http2:
                connection.goaway()
            elif how == "reset":
                connection.reset()
            else:
                connection.close()
        return len(chosen)

    def opened(self, exchange: Exchange) -> None:
        self.open += 1
        self.peak = max(self.peak, self.open)
        self.log._opened(exchange)

    def ended(self, exchange: Exchange) -> None:
        self.open -= 1
        self.log._ended(exchange)

    def begin(self, exchange: Exchange) -> None:
        """Answer an exchange whose head is there: at once where nothing has to be waited for, else in a task."""
        if self.faults.is_active or not exchange.body.complete:
            self.spawn(exchange, self._serve(exchange))
            return
        result = self.application.answer_whole(exchange)
        if not isinstance(result, Answer):
            self.spawn(exchange, self._deliver_later(exchange, result), result)
        elif isinstance(result.body, bytes) and exchange.connection.codec is not None:
            exchange.connection.codec.send_whole(exchange, result)
        else:
            self.spawn(exchange, self.deliver(exchange, result))

    def spawn(self, exchange: Exchange, *work: Coroutine[Any, Any, Any]) -> None:
        """Run the first of `work`, which may await the others; it is cancelled when the client leaves."""
        task = asyncio.get_running_loop().create_task(self._guard(exchange, work[0]))
        exchange.task = task
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._done(task, work))

    def _done(self, task: asyncio.Task[None], work: tuple[Coroutine[Any, Any, Any], ...]) -> None:
        self._tasks.discard(task)
        for coroutine in work:
            coroutine.close()  # a task cancelled before its first step has never started them

    async def all_released(self) -> None:
        """Until no connection holds a socket."""
        while self.wires:
            self._released = asyncio.get_running_loop().create_future()
            await self._released

    def released(self, wire: Wire) -> None:
        """This wire has let go of its socket."""
        self.wires.discard(wire)
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    async def stop(self) -> None:
        """Cancel what still runs."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def answer(self, exchange: Exchange) -> None:
        """The plain answer, without faults: what a fault calls when it is done with its own."""
        await self.deliver(exchange, await self.application.answer(exchange))

    async def deliver(self, exchange: Exchange, answer: Answer) -> None:
        """Write an answer through the exchange's output."""
        body = answer.body
        try:
            await self._write(exchange, answer)
        finally:
            if not isinstance(body, bytes):
                await _discard(body)

    async def _write(self, exchange: Exchange, answer: Answer) -> None:
        output, body, headers = exchange.output, answer.body, answer.headers
        length = len(body) if isinstance(body, bytes) else answer.length
        silent = exchange.method == "HEAD" or answer.status in (204, 304)
        if length is not None and answer.status != 204 and not any(n.lower() == "content-length" for n, _ in headers):
            headers = [*headers, ("content-length", str(length))]
        await output.head(answer.status, headers)
        if isinstance(body, bytes) and not silent:
            await output.data(body)
        elif not isinstance(body, bytes) and not silent:
            async for piece in body:
                await output.data(piece)
        await output.end([] if silent else answer.trailers)

    async def _serve(self, exchange: Exchange) -> None:
        await self.faults.run(exchange, lambda: self.answer(exchange))

    async def _deliver_later(self, exchange: Exchange, pending: Coroutine[Any, Any, Answer]) -> None:
        await self.deliver(exchange, await self.application.finish(exchange, pending))

    async def _guard(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (Gone, asyncio.CancelledError):
            # Cancelled means that the client left or the server stops: both have been recorded, nobody awaits.
            exchange.finish("server_closed")
        except Exception as error:  # noqa: BLE001 - a broken route or fault must show in the log, not in a client's hang
            detail = {"error": "".join(traceback.format_exception(error))}
            self.log._event("handler_error", exchange.connection.id, exchange.stream, detail=detail)
            exchange.connection.reset()


async def _discard(body: Any) -> None:
    close = getattr(body, "aclose", None)
    if close is not None:
        await close()
