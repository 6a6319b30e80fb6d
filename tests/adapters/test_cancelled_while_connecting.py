"""Spawned work that is cancelled while it connects ends then, in threads: the server is sent nothing."""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3.connection

import netkit
from netkit.runtime import Threads

PLUGINS: dict[str, Any] = {"http2": False, "retry": False}


class Silent:
    """A server that takes one connection, notes what comes until the client leaves, and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.received = b""
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while data := connection.recv(65536):
                self.received += data
        self.left.set()

    def close(self) -> None:
        self._thread.join(30)
        self._listener.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


class Caller:
    """A call in spawned work; `cancel` may be called from inside of it, as soon as it is under way."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._known = threading.Event()
        self.ended = threading.Event()
        self.answered = False
        self._job = Threads().spawn(self._work(), name="call")
        self._known.set()

    async def _work(self) -> None:
        self._known.wait()
        try:
            self._call()
            self.answered = True
        finally:
            self.ended.set()

    def cancel(self) -> None:
        self._known.wait()
        self._job.cancel()


def test_requests(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = urllib3.connection.HTTPConnection.connect

    def connect_and_cancel(self: Any) -> None:
        caller.cancel()  # there is no socket yet
        connect(self)

    monkeypatch.setattr(urllib3.connection.HTTPConnection, "connect", connect_and_cancel)
    with netkit.Session(plugins=PLUGINS, config=netkit.Config()) as session:
        caller = Caller(lambda: session.get(silent.url))
        assert caller.ended.wait(30)
        assert silent.left.wait(30)
    assert (caller.answered, silent.received) == (False, b"")


@pytest.mark.parametrize("moment", ["connection.connect_tcp.started", "connection.connect_tcp.complete"])
@pytest.mark.parametrize("stack", ["httpx", "httpx2"])
def test_httpx(silent: Silent, stack: str, moment: str) -> None:
    traced: list[str] = []

    def trace(name: str, info: dict[str, Any]) -> None:
        traced.append(name)
        if name == moment:
            caller.cancel()

    adapter: Any = importlib.import_module(f"netkit_adapters.{stack}")
    with adapter.Client(plugins=PLUGINS, config=netkit.Config(), timeout=None) as client:
        caller = Caller(lambda: client.get(silent.url, extensions={"trace": trace}))
        assert caller.ended.wait(30)
        assert silent.left.wait(30)
    assert (caller.answered, silent.received) == (False, b"")
    assert traced[:2] == ["connection.connect_tcp.started", "connection.connect_tcp.complete"]
