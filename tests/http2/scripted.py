"""A scripted HTTP/2 server: full control of frames, a log of everything it saw, a thread of its own.

Rules of this file:

- `Script` methods run in the server's loop; tests look at `server.log` and wait with `server.wait(condition)`.
- `conn.raw(...)` writes frames that no protocol machine would; mixing them with machine output is the test's duty.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import ngh2

from netkit.http2 import ConnectSpec, H2Request

HEADERS, DATA, RST, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 1, 0, 3, 4, 6, 7, 8, 9


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream_id) + payload


class Script:
    """What the server does; the default answers every complete request with what it saw of it."""

    settings: dict[int, int] = {3: 100}
    auto_window = True
    settings_delay = 0.0
    read = True

    def opened(self, conn: Conn) -> None: ...

    def headers(self, conn: Conn, stream_id: int, headers: dict[bytes, bytes], end: bool) -> None:
        if end:
            self.complete(conn, stream_id)

    def data(self, conn: Conn, stream_id: int, data: bytes, end: bool) -> None:
        if end:
            self.complete(conn, stream_id)

    def complete(self, conn: Conn, stream_id: int) -> None:
        conn.answer(stream_id, body=conn.echo(stream_id))

    def reset(self, conn: Conn, stream_id: int, code: int) -> None: ...


class Conn(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.script = server.script
        self.loop = server.loop
        self.number = 0
        self.requests: dict[int, dict[bytes, bytes]] = {}
        self.field_lists: dict[int, list[tuple[bytes, bytes]]] = {}
        self.hashes: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.open: set[int] = set()
        self.peak = 0
        self.machine = ngh2.Connection(
            ngh2.Role.SERVER,
            ngh2.Configuration(
                auto_window_update=self.script.auto_window, stream_reset_rate_limit=(1_000_000, 1_000_000)
            ),
        )
        self.ready = False
        self.transport: Any = None
        self.early = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections.append(self)
        self.number = len(self.server.connections)
        self.note("open")
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None and ssl_object.selected_alpn_protocol() != "h2":
            self.note("http1")
            return
        if self.script.settings_delay:
            self.loop.call_later(self.script.settings_delay, self.begin)
        else:
            self.begin()

    def begin(self) -> None:
        self.ready = True
        self.machine.initiate_connection(self.script.settings)
        self.note("settings")
        self.script.opened(self)
        self.flush()
        if self.early:
            self.data_received(b"")

    def note(self, what: str, *details: Any) -> None:
        self.server.note(self.number, what, *details)

    def flush(self) -> None:
        try:
            data = self.machine.data_to_send()
        except ngh2.NGH2Error:
            data = b""
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)
        self.handle()

    def raw(self, *frames: bytes) -> None:
        self.flush()
        self.transport.write(b"".join(frames))

    def later(self, delay: float, call: Callable[..., Any], *args: Any) -> None:
        def run() -> None:
            if self.transport is not None:
                call(*args)
                self.flush()

        self.loop.call_later(delay, run)

    def data_received(self, data: bytes) -> None:
        if not self.ready:
            self.early += data
            return
        data, self.early = self.early + data, b""
        if not self.script.read:
            return
        try:
            self.machine.receive_data(data)
        except ngh2.NGH2Error as error:
            self.note("error", str(error))
            self.transport.close()
            return
        self.handle()
        self.flush()

    def handle(self) -> None:
        events = self.machine.events()
        # A request and its reset may arrive together: nothing can be answered then.
        gone = {event.stream_id for event in events if isinstance(event, ngh2.StreamClosed)}
        for event in events:
            if isinstance(event, ngh2.RequestReceived) and event.stream_id in gone:
                self.note("headers", event.stream_id, dict(event.headers).get(b":path"))
                continue
            if isinstance(event, ngh2.DataReceived) and event.stream_id not in self.hashes:
                continue
            if isinstance(event, ngh2.RequestReceived):
                sid = event.stream_id
                self.requests[sid] = dict(event.headers)
                self.field_lists[sid] = list(event.headers)
                self.hashes[sid] = hashlib.sha256()
                self.sizes[sid] = 0
                self.open.add(sid)
                self.peak = max(self.peak, len(self.open))
                self.note("headers", sid, dict(event.headers).get(b":path"))
                self.script.headers(self, sid, dict(event.headers), event.end_stream)
            elif isinstance(event, ngh2.DataReceived):
                sid = event.stream_id
                self.hashes[sid].update(event.data)
                self.sizes[sid] += len(event.data)
                self.note("data", sid, len(event.data))
                self.script.data(self, sid, event.data, event.end_stream)
            elif isinstance(event, ngh2.TrailersReceived):
                self.script.data(self, event.stream_id, b"", True)
            elif isinstance(event, ngh2.StreamReset):
                self.note("reset", event.stream_id, event.error_code)
                self.script.reset(self, event.stream_id, event.error_code)
            elif isinstance(event, ngh2.StreamClosed):
                self.open.discard(event.stream_id)
            elif isinstance(event, ngh2.GoAwayReceived):
                self.note("goaway", event.error_code)
            elif isinstance(event, ngh2.PingReceived):
                self.note("ping")
            elif isinstance(event, ngh2.SettingsReceived):
                self.note("client_settings", dict(event.settings))
            elif isinstance(event, ngh2.SettingsAcknowledged):
                self.note("settings_ack")
            elif isinstance(event, ngh2.WindowUpdated):
                self.note("window", event.stream_id, event.increment)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self.note("lost")

    # --- what scripts do

    def echo(self, stream_id: int) -> bytes:
        path = self.requests[stream_id][b":path"].decode()
        digest = self.hashes[stream_id].hexdigest()
        return json.dumps(
            {"path": path, "sha256": digest, "size": self.sizes[stream_id], "connection": self.number}
        ).encode()

    def head(
        self,
        stream_id: int,
        status: bytes = b"200",
        headers: list[tuple[bytes, bytes]] | None = None,
        end: bool = False,
    ) -> None:
        self.machine.send_response(stream_id, [(b":status", status), *(headers or [])], end_stream=end)

    def answer(
        self,
        stream_id: int,
        status: bytes = b"200",
        body: bytes = b"ok",
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        if stream_id not in self.open:
            return
        self.head(stream_id, status, headers)
        self.machine.send_data(stream_id, body, end_stream=True)
        self.note("answer", stream_id)

    def send(self, stream_id: int, data: bytes, end: bool = False) -> None:
        if stream_id in self.open:
            self.machine.send_data(stream_id, data, end_stream=end)

    def refuse(self, stream_id: int, code: int) -> None:
        self.machine.reset_stream(stream_id, code)

    def goaway(self, last: int, code: int = 0) -> None:
        self.raw(frame(GOAWAY, 0, 0, struct.pack(">II", last, code)))
        self.note("goaway_sent", last)

    def set(self, **settings: int) -> None:
        names = {"max_streams": 3, "window": 4}
        self.machine.update_settings({names[name]: value for name, value in settings.items()})
        self.flush()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Server:
    """`with Server(script) as server:`; `server.port`, `server.log`, `server.connections`."""

    def __init__(self, script: Script | None = None, context: ssl.SSLContext | None = None) -> None:
        self.script = script or Script()
        self.context = context
        self.loop = asyncio.new_event_loop()
        self.connections: list[Conn] = []
        self.log: list[tuple[Any, ...]] = []
        self.port = 0
        self._changed = threading.Condition()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="scripted-server")

    def note(self, *entry: Any) -> None:
        with self._changed:
            self.log.append((*entry, time.monotonic()))
            self._changed.notify_all()

    def entries(self, what: str, connection: int | None = None) -> list[tuple[Any, ...]]:
        with self._changed:
            return [e for e in self.log if e[1] == what and connection in (None, e[0])]

    def wait(self, condition: Callable[[], Any], timeout: float = 20.0) -> Any:
        """Until `condition()` holds; asked again whenever the log grows."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (result := condition()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"the server never saw it; last entries: {self.log[-12:]}")
                self._changed.wait(min(left, 0.2))
            return result

    async def until(self, condition: Callable[[], Any], timeout: float = 20.0) -> Any:
        return await asyncio.to_thread(self.wait, condition, timeout)

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Run something in the server's loop and flush all connections."""

        def run() -> None:
            function(*args)
            for conn in self.connections:
                if conn.transport is not None:
                    conn.flush()

        self.loop.call_soon_threadsafe(run)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()

    async def _end(self) -> None:
        for conn in self.connections:
            conn.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)

    def __enter__(self) -> Server:
        async def listen() -> None:
            self._server = await self.loop.create_server(
                lambda: Conn(self), "127.0.0.1", self.port, ssl=self.context, backlog=1024
            )
            self.port = self._server.sockets[0].getsockname()[1]

        self._thread.start()
        asyncio.run_coroutine_threadsafe(listen(), self.loop).result(10)
        return self

    def stop_listening(self) -> None:
        assert self._server is not None
        self.loop.call_soon_threadsafe(self._server.close)

    def __exit__(self, *_: object) -> None:
        def stop() -> None:
            assert self._server is not None
            self._server.close()
            self.loop.stop()

        self.loop.call_soon_threadsafe(stop)
        self._thread.join(10)


def request_to(
    port: int,
    path: str = "/",
    method: str = "GET",
    body: Any = None,
    headers: list[tuple[bytes, bytes]] | None = None,
    context: ssl.SSLContext | None = None,
    **extra: Any,
) -> H2Request:
    """A request to a scripted server; 20 s read and write timeouts unless the test says otherwise."""
    extra = {"read_timeout": 20.0, "write_timeout": 20.0, **extra}
    key = extra.pop("key", ("127.0.0.1", port, id(context)))
    spec = extra.pop("connect", None) or ConnectSpec("127.0.0.1", port, ssl=context)
    return H2Request(
        key,
        spec,
        method.encode(),
        f"127.0.0.1:{port}".encode(),
        path.encode(),
        headers or [],
        body,
        scheme=b"https" if context else b"http",
        **extra,
    )
