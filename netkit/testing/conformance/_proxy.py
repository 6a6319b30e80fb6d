"""A small proxy: forwards absolute-form requests, tunnels CONNECT, and remembers what it was asked.

Rules of this file:

- Only the proxy's own loop thread touches connections; `seen` is appended to there and read anywhere.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from urllib.parse import urlsplit

__all__ = ["Proxy"]


class Proxy:
    """A forward and CONNECT proxy on loopback. `seen` holds one request line per request, as "GET http://…"."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        ready: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="netkit-conformance-proxy", daemon=True
        )
        self._thread.start()
        self.port = ready.result(timeout=10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop; open tunnels are cut."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _serve(self, ready: concurrent.futures.Future[int]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(reader, writer))
            tasks[task] = writer
            task.add_done_callback(tasks.pop)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        await asyncio.sleep(0)  # who has just been accepted is told so
        for task, writer in tuple(tasks.items()):
            task.cancel()
            writer.close()  # a task that has not begun will not do it
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, version = head.partition(b"\r\n")[0].decode().split(" ", 2)
            self.seen.append(f"{method} {target}")
            if method == "CONNECT":
                host, _, port = target.rpartition(":")
                onward_reader, onward = await asyncio.open_connection(host, int(port))
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                parts = urlsplit(target)
                onward_reader, onward = await asyncio.open_connection(parts.hostname, parts.port)
                path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
                rest = head.partition(b"\r\n")[2]
                onward.write(f"{method} {path} {version}\r\n".encode() + rest)
            await self._both_ways(reader, writer, onward_reader, onward)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            # A client that leaves, or a target that refuses: the connection ends, the proxy goes on.
            pass
        finally:
            writer.close()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        onward_reader: asyncio.StreamReader,
        onward: asyncio.StreamWriter,
    ) -> None:
        pumps = [
            asyncio.ensure_future(_pump(reader, onward)),
            asyncio.ensure_future(_pump(onward_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            onward.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
