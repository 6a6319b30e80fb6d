"""HTTP/2 on a wire of one's own, by the engine's protocol machine: a stream at a time, and the peer's settings."""

from __future__ import annotations

import ssl
import statistics
import time
from collections.abc import Callable

from netkit.cli.doctor.frames import Frames
from netkit.cli.doctor.reply import ANNOUNCED, MAX_BODY, PIECE, Reply, Upload
from netkit.cli.doctor.target import Target
from netkit.cli.doctor.wire import Refusal, Wire
from netkit.http2 import Code, Http2Options
from netkit.http2.protocol import Headers, MachineError, machine_factory

__all__ = ["Http2"]

_OUTPUT = 1 << 20


class _Stream:
    """What has come on the one stream that is open."""

    def __init__(self) -> None:
        self.id = 0
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.status = 0
        self.ended = False
        self.reset: int | None = None


class Http2:
    """A connection; `reusable` is False once a GOAWAY came or it broke."""

    name = "HTTP/2"

    def __init__(self, wire: Wire, target: Target, deadline: float) -> None:
        """Say hello and wait for the server's SETTINGS. Raises `Refusal` where none come."""
        options = Http2Options()
        self.wire = wire
        self.reusable = True
        self.frames = Frames()
        self._target = target
        self._stream = _Stream()
        self._pongs = 0
        self._machine = machine_factory()(
            stream_window=options.stream_window,
            connection_window=options.connection_window,
            max_frame_size=options.max_frame_size,
            max_streams=options.max_streams,
            max_header_list=options.max_header_list,
        )
        self._machine.start()
        try:
            self._until(lambda: self.frames.settled, deadline)
        except (OSError, Refusal) as error:
            raise Refusal("no HTTP/2 settings came") from error

    def ask(self, method: str, path: str, deadline: float, content: bytes | None = None) -> Reply:
        """One exchange. Raises `Refusal` where the stream or the connection ends instead of an answer."""
        started = time.monotonic()
        stream = self._begin(method, path, None if content is None else len(content))
        if content is not None:
            self._machine.send(stream.id, content, True)
        self._until(lambda: stream.ended or stream.reset is not None or len(stream.body) > MAX_BODY, deadline)
        seconds = time.monotonic() - started
        if not stream.ended:
            if stream.reset is None:
                self._machine.reset(stream.id, Code.CANCEL)
                self._flush(deadline)
            elif not stream.status or stream.reset != Code.NO_ERROR:
                raise Refusal(f"the server resets the stream: {Code.name(stream.reset)}")
        return Reply(stream.status, tuple(stream.headers), bytes(stream.body[:MAX_BODY]), seconds)

    def announce(self, path: str, patience: float, deadline: float) -> Upload:
        """Announce a large body, send a piece, see what comes within `patience` seconds, and cancel."""
        stream = self._begin("POST", path, ANNOUNCED)
        self._machine.send(stream.id, b" " * PIECE, False)
        soon = min(deadline, time.monotonic() + patience)
        try:
            self._until(lambda: bool(stream.status) or stream.reset is not None, soon)
        except TimeoutError:
            self._machine.reset(stream.id, Code.CANCEL)
            self._flush(deadline)
            return Upload(None)
        except (Refusal, OSError):
            self.reusable = False
            return Upload(stream.status or None, "closes")
        try:
            self._until(lambda: stream.reset is not None, min(deadline, time.monotonic() + 0.5))
        except TimeoutError:
            self._machine.reset(stream.id, Code.CANCEL)
            self._flush(deadline)
        except (Refusal, OSError):
            self.reusable = False
            return Upload(stream.status or None, "closes")
        return Upload(stream.status or None, "stays" if stream.reset is None else "resets")

    def ping(self, times: int, deadline: float) -> float:
        """The median round trip of some PINGs, in seconds."""
        taken = []
        for number in range(times):
            started, wanted = time.monotonic(), self._pongs + 1
            self._machine.ping(number.to_bytes(8, "big"))
            self._until(lambda wanted=wanted: self._pongs >= wanted, deadline)  # type: ignore[misc]
            taken.append(time.monotonic() - started)
        return statistics.median(taken)

    def closing(self) -> str | None:
        """Something has come while nobody asked: why the connection is over, None if it is not."""
        deadline = time.monotonic() + 0.05
        try:
            self._hear(deadline)
            self._flush(deadline)
        except TimeoutError:
            return None
        except (OSError, Refusal):
            return "closed"
        return None if self.reusable else "GOAWAY"

    def close(self) -> None:
        try:
            self._machine.goaway(Code.NO_ERROR)
            self._flush(time.monotonic() + 0.5)
        except (OSError, Refusal, MachineError):
            pass  # it is over anyway
        self.wire.close()

    def _begin(self, method: str, path: str, size: int | None) -> _Stream:
        fields = {":method": method, ":scheme": self._target.scheme, ":authority": self._target.authority}
        fields |= {":path": path, "accept": "*/*", "user-agent": "netkit-doctor"}
        fields |= {name: value for name, value in self._target.headers if name != "accept-encoding"}
        if size is not None:
            fields |= {"content-type": "application/json", "content-length": str(size)}
        headers = [(name.encode(), value.encode("ascii")) for name, value in fields.items()]
        stream = self._stream = _Stream()
        try:
            stream.id = self._machine.request(headers, size is None)
        except MachineError as error:
            raise Refusal("the connection takes no more requests") from error
        return stream

    def _until(self, is_done: Callable[[], bool], deadline: float) -> None:
        self._flush(deadline)
        while not is_done():
            self._hear(deadline)
            self._flush(deadline)

    def _hear(self, deadline: float) -> None:
        try:
            data = self.wire.receive(deadline)
        except ssl.SSLError as error:
            self.reusable = False
            raise Refusal("TLS broke") from error
        if not data:
            self.reusable = False
            raise Refusal("the server closed the connection")
        self.frames.feed(data)
        try:
            self._machine.receive(data, self)
        except MachineError as error:
            self.reusable = False
            raise Refusal("what the server says is no HTTP/2") from error

    def _flush(self, deadline: float) -> None:
        while True:
            try:
                data = self._machine.output(_OUTPUT, self)
            except MachineError as error:
                self.reusable = False
                raise Refusal("the HTTP/2 connection broke") from error
            if not data:
                return
            self.wire.send(data, deadline)

    # --- what the machine tells

    def on_head(self, stream_id: int, headers: Headers, end: bool) -> None:
        if stream_id == self._stream.id:
            said = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
            status = dict(said).get(":status", "0")
            self._stream.status = int(status) if status.isdecimal() else 0
            self._stream.headers = [pair for pair in said if not pair[0].startswith(":")]
            self._stream.ended = end

    def on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        if stream_id == self._stream.id:
            self._stream.body += data
            self._stream.ended = end

    def on_trailers(self, stream_id: int, headers: Headers) -> None:
        if stream_id == self._stream.id:
            self._stream.ended = True

    def on_reset(self, stream_id: int, code: int) -> None:
        if stream_id == self._stream.id:
            self._stream.reset = code

    def on_broken(self, stream_id: int, code: int, message: str) -> None:
        self.on_reset(stream_id, code)

    def on_goaway(self, last_stream_id: int, code: int, reason: bytes) -> None:
        self.reusable = False

    def on_terminated(self, code: int) -> None:
        self.reusable = False

    def on_pong(self, payload: bytes) -> None:
        self._pongs += 1

    def on_informational(self, stream_id: int, headers: Headers) -> None: ...
    def on_settings(self, max_streams: int | None) -> None: ...
    def on_settings_ack(self) -> None: ...
    def on_ping(self) -> None: ...
    def on_window(self, stream_id: int) -> None: ...
