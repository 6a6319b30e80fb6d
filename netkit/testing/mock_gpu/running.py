"""The parts of a server that exist only while it serves: listener, stop signal, open wires; a fork disowns them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import ssl
import threading
import weakref

from .backend import Backend
from .connection import Connection
from .wire import redirect

__all__ = ["Running"]

_GRACE = 0.5


class Running:
    """Belongs to the server's loop, save `finished`."""

    def __init__(self, backend: Backend, context: ssl.SSLContext | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.backend = backend
        self.stop = asyncio.Event()
        self.finished: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.port = 0
        self._context = context
        self._server: asyncio.Server | None = None
        self._descriptors: list[int] = []
        if context is not None:
            context.sni_callback = self._note_name
        _ALIVE.add(self)

    async def listen(self, port: int) -> None:
        options = self.backend.options
        self._server = await self.loop.create_server(
            lambda: Connection(self.backend, self._context).wire, options.host, port, backlog=options.backlog
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._descriptors = [listener.fileno() for listener in self._server.sockets]

    def pause_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._descriptors = []

    async def resume_listening(self) -> None:
        if self._server is None:
            await self.listen(self.port)

    async def until_stopped(self) -> None:
        main = threading.main_thread()
        while main.is_alive():  # a test run that dies without close() must not hang in this thread
            try:
                async with asyncio.timeout(1.0):
                    await self.stop.wait()
                return
            except TimeoutError:
                continue

    async def end(self) -> None:
        self.pause_listening()
        await self.backend.stop()
        for connection in tuple(self.backend.connections.values()):
            connection.close()
        await self._released(_GRACE)
        for wire in tuple(self.backend.wires):
            wire.abort()
        await self._released(_GRACE)

    async def _released(self, seconds: float) -> None:
        """Until no socket is left, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.backend.all_released()
        except TimeoutError:
            return

    def disown(self) -> None:
        for descriptor in self._descriptors:
            redirect(descriptor)
        for wire in tuple(self.backend.wires):
            wire.disown()

    def _note_name(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        for connection in tuple(self.backend.connections.values()):
            if connection.wire.tls is tls:
                connection.server_name = name


_ALIVE: weakref.WeakSet[Running] = weakref.WeakSet()


def _disown_all() -> None:
    for running in tuple(_ALIVE):
        running.disown()


os.register_at_fork(after_in_child=_disown_all)
