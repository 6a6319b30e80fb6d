"""Clients that hide nothing: HTTP/1.1 by h11 and HTTP/2 by h2, each on one blocking socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h11
import pytest
from h2.connection import ConnectionState

from netkit.testing import MockGPU
from netkit.testing.mock_gpu import frames

TIMEOUT = 10.0


def dial(gpu: MockGPU, alpn: list[str] | None = None, *, client_file: str | None = None) -> socket.socket:
    plain = socket.create_connection((gpu.options.host, gpu.port), timeout=TIMEOUT)
    if not gpu.options.tls:
        return plain
    context = ssl.create_default_context(cafile=gpu.ca_file)
    if alpn:
        context.set_alpn_protocols(alpn)
    if client_file:
        context.load_cert_chain(client_file)
    try:
        return context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
    except BaseException:
        plain.close()
        raise


@dataclass
class Reply:
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    informational: list[int] = field(default_factory=list)
    trailers: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class Http1Client:
    """`request` writes one, `reply` reads one."""

    def __init__(self, gpu: MockGPU, **dialing: Any) -> None:
        self.socket = dial(gpu, ["http/1.1"], **dialing)
        self.state = h11.Connection(h11.CLIENT)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Http1Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self, method: str, target: str, body: bytes = b"", headers: list[tuple[str, str]] | None = None
    ) -> None:
        every = [("Host", "localhost"), *(headers or [])]
        if body or method in ("POST", "PUT"):
            every.append(("Content-Length", str(len(body))))
        data = self.state.send(h11.Request(method=method, target=target, headers=every))
        if body:
            data += self.state.send(h11.Data(data=body))
        self.socket.sendall(data + self.state.send(h11.EndOfMessage()))

    def reply(self) -> Reply:
        reply = Reply()
        while True:
            event = self.state.next_event()
            if event is h11.NEED_DATA:
                self.state.receive_data(self.socket.recv(65536))
            elif isinstance(event, h11.InformationalResponse):
                reply.informational.append(event.status_code)
            elif isinstance(event, h11.Response):
                reply.status = event.status_code
                reply.headers = [(n.decode(), v.decode("latin-1")) for n, v in event.headers.raw_items()]
            elif isinstance(event, h11.Data):
                reply.body += bytes(event.data)
                reply.pieces.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                reply.trailers = [(n.decode(), v.decode()) for n, v in event.headers]
                reply.ended = True
                if self.state.our_state is h11.DONE and self.state.their_state is h11.DONE:
                    self.state.start_next_cycle()
                return reply
            else:
                raise AssertionError(f"the server ended the connection: {event!r}")

    def call(self, *request: Any, **more: Any) -> Reply:
        self.request(*request, **more)
        return self.reply()

    def at_end(self) -> bytes:
        """What comes until FIN; ConnectionResetError on RST."""
        got, how = self.rest()
        if how == "reset":
            raise ConnectionResetError
        return got

    def rest(self) -> tuple[bytes, str]:
        """What comes until the end, and whether that was "fin" or "reset".

        Python's ssl reports a TCP reset as an end of file without close_notify: with TLS that counts as reset.
        """
        got = b""
        try:
            while piece := self.socket.recv(65536):
                got += piece
        except (ConnectionResetError, ssl.SSLEOFError):
            return got, "reset"
        return got, "fin"


class Http2Client:
    """`request` opens a stream, `read` takes events in until a condition holds."""

    def __init__(self, gpu: MockGPU, *, window: int | None = None) -> None:
        self.socket = dial(gpu, ["h2"])
        config = h2.config.H2Configuration(
            client_side=True, header_encoding="latin-1", validate_inbound_headers=False
        )
        self.state = h2.connection.H2Connection(config)
        if window is not None:
            self.state.local_settings.update({4: window})
            self.state.local_settings.acknowledge()
        self.state.initiate_connection()
        self.auto_credit = window is None
        self.replies: dict[int, Reply] = {}
        self.events: list[h2.events.Event] = []
        self.goaways: list[tuple[int, int]] = []
        self.settings: list[dict[int, int]] = []
        self.fin = False
        self.buffer = b""
        self.flush()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def flush(self) -> None:
        if data := self.state.data_to_send():
            self.socket.sendall(data)

    def request(self, method: str, target: str, body: bytes | None = None, *, end: bool = True) -> int:
        stream: int = self.state.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", target)]
        self.state.send_headers(stream, head, end_stream=end and body is None)
        self.replies[stream] = Reply()
        if body is not None:
            for start in range(0, len(body), 16_384):
                part = body[start : start + 16_384]
                self.state.send_data(stream, part, end_stream=end and start + len(part) == len(body))
        self.flush()
        return stream

    def read(self, until: Callable[[Http2Client], object]) -> None:
        while not until(self):
            data = self.socket.recv(65536)
            if not data:
                self.fin = True
                assert until(self), "the server ended the connection"
                return
            self.buffer += data
            taken = 0
            for kind, _, _, start, taken in frames.split(self.buffer):
                for event in self.state.receive_data(self.buffer[start:taken]):
                    self.take(event)
                if kind == frames.GOAWAY:  # h2 takes it for the end; RFC 9113 lets the streams below go on
                    self.state.state_machine.state = ConnectionState.CLIENT_OPEN
            self.buffer = self.buffer[taken:]
            self.flush()

    def take(self, event: h2.events.Event) -> None:
        self.events.append(event)
        reply = self.replies.get(getattr(event, "stream_id", None) or 0, Reply())
        if isinstance(event, h2.events.InformationalResponseReceived):
            reply.informational.append(int(dict(event.headers)[":status"]))
        elif isinstance(event, h2.events.ResponseReceived):
            reply.status = int(dict(event.headers)[":status"])
            reply.headers = [(name, value) for name, value in event.headers if not name.startswith(":")]
        elif isinstance(event, h2.events.DataReceived):
            reply.body += event.data
            reply.pieces.append(event.data)
            if self.auto_credit:
                self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            reply.trailers = list(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            reply.ended = True
        elif isinstance(event, h2.events.StreamReset):
            reply.reset = int(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaways.append((event.last_stream_id, int(event.error_code)))
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self.settings.append({int(key): change.new_value for key, change in event.changed_settings.items()})

    def reply(self, stream: int) -> Reply:
        self.read(lambda _: self.replies[stream].ended or self.replies[stream].reset is not None)
        return self.replies[stream]

    def call(self, *request: Any) -> Reply:
        return self.reply(self.request(*request))


@pytest.fixture
def http1() -> Iterator[Callable[..., Http1Client]]:
    clients: list[Http1Client] = []

    def connect(gpu: MockGPU, **dialing: Any) -> Http1Client:
        clients.append(Http1Client(gpu, **dialing))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def http2() -> Iterator[Callable[..., Http2Client]]:
    clients: list[Http2Client] = []

    def connect(gpu: MockGPU, **more: Any) -> Http2Client:
        clients.append(Http2Client(gpu, **more))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
