"""HTTP/1.1, one exchange at a time, on a wire of one's own: nothing is resent, everything has its deadline."""

from __future__ import annotations

import http.client
import io
import time
from typing import Any

from netkit.cli.doctor.reply import ANNOUNCED, MAX_BODY, PIECE, Reply, Upload
from netkit.cli.doctor.target import Target
from netkit.cli.doctor.wire import Refusal, Wire

__all__ = ["Http1"]

_ALERT = "\x15\x03"
"""The first bytes of a TLS alert: its type, and the major version."""


class Http1:
    """A connection. `reusable` is False once the server has said or shown that it closes."""

    name = "HTTP/1.1"

    def __init__(self, wire: Wire, target: Target) -> None:
        self.wire = wire
        self.reusable = True
        self.version = ""
        self._target = target

    def ask(self, method: str, path: str, deadline: float, content: bytes | None = None) -> Reply:
        """One exchange. Raises `Refusal` where the answer is none, OSError where the connection breaks."""
        started = time.monotonic()
        self.wire.send(self._head(method, path, None if content is None else len(content)), deadline)
        if content is not None:
            self.wire.send(content, deadline)
        response = self._read(method, deadline)
        body = response.read(MAX_BODY)
        self.reusable = not response.will_close and (response.isclosed() or not response.read(1))
        return self._reply(response, body, time.monotonic() - started)

    def announce(self, path: str, patience: float, deadline: float) -> Upload:
        """Announce a large body, send a piece, and see what comes within `patience` seconds. Ends the connection."""
        self.reusable = False
        self.wire.send(self._head("POST", path, ANNOUNCED), deadline)
        try:
            self.wire.send(b" " * PIECE, deadline)
            if not self.wire.waiting(min(deadline, time.monotonic() + patience)):
                return Upload(None)
            response = self._read("POST", deadline)
            response.read(MAX_BODY)
        except (OSError, Refusal):
            return Upload(None, "resets")
        return Upload(response.status, "closes" if response.will_close or self._ends(deadline) else "stays")

    def _ends(self, deadline: float) -> bool:
        """Whether the server closes behind its answer within half a second."""
        soon = min(deadline, time.monotonic() + 0.5)
        try:
            return self.wire.waiting(soon) and not self.wire.receive(soon)
        except TimeoutError:
            return False
        except OSError:
            return True

    def closing(self) -> str | None:
        """Something has come while nobody asked: why the connection is over, None if it is not."""
        try:
            return "unasked bytes" if self.wire.receive(time.monotonic() + 0.05) else "closed"
        except TimeoutError:
            return None  # TLS's own: a session ticket
        except OSError:
            return "reset"

    def close(self) -> None:
        self.wire.close()

    def _head(self, method: str, path: str, size: int | None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._target.authority}", "Accept: */*"]
        names = {name for name, _ in self._target.headers}
        if "user-agent" not in names:
            lines.append("User-Agent: netkit-doctor")
        lines += [f"{name}: {value}" for name, value in self._target.headers if name != "accept-encoding"]
        if size is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {size}"]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _read(self, method: str, deadline: float) -> http.client.HTTPResponse:
        source: Any = _Source(self.wire, deadline)
        response = http.client.HTTPResponse(source, method=method)
        try:
            response.begin()
        except http.client.HTTPException as error:
            raise Refusal(self._no_answer(error)) from error
        self.version = f"HTTP/{response.version // 10}.{response.version % 10}"
        return response

    def _no_answer(self, error: http.client.HTTPException) -> str:
        silent = isinstance(error, http.client.RemoteDisconnected)
        said = "the server closed the connection without an answer" if silent else "what the server says is no HTTP"
        # How a server that wants TLS answers what is none: an alert (RFC 8446, 6), or nothing.
        tls = silent or _ALERT in str(error)
        first = not self.version and self._target.scheme == "http"
        return f"{said}; is it https:// here?" if tls and first else said

    def _reply(self, response: http.client.HTTPResponse, body: bytes, seconds: float) -> Reply:
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        return Reply(response.status, headers, body, seconds)


class _Source(io.RawIOBase):
    """What `http.client` reads from; closing it leaves the wire open."""

    def __init__(self, wire: Wire, deadline: float) -> None:
        super().__init__()
        self._wire = wire
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._wire.socket.settimeout(max(0.001, self._deadline - time.monotonic()))
        count = self._wire.socket.recv_into(buffer)
        self._wire.last_heard = time.monotonic()
        return count
