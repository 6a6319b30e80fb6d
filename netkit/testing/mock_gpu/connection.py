"""One client connection: the wire below, the protocol above, and the handle by which faults and tests reach both.

Rules of this file: called in the server's loop only. Tests in other threads go through `MockGPU.connection(n)`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .exchange import Answer, Body, Exchange, HeaderList, Output
from .http1 import Http1
from .http2 import Http2
from .log import ConnectionRecord
from .wire import Wire

if TYPE_CHECKING:
    import ssl

    from .backend import Backend

__all__ = ["Codec", "Connection", "Plan"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_OUTCOMES = {"client": "client_left", "client_reset": "client_left"}


class Codec(Protocol):
    """HTTP/1.1 or HTTP/2: bytes in, exchanges out, and back."""

    @property
    def name(self) -> str: ...
    def receive(self, data: bytes) -> None: ...
    def writable(self) -> None: ...
    def lost(self) -> None: ...
    def exchange_ended(self, exchange: Exchange) -> None: ...
    def send_whole(self, exchange: Exchange, answer: Answer) -> None: ...
    def write_raw(self, data: bytes) -> None: ...
    def finish_then_close(self) -> None: ...
    def flush(self) -> None: ...


@dataclass(slots=True)
class Plan:
    """What connection faults want an HTTP/2 connection to do differently from its start.

    Attributes:
        settings: SETTINGS by number, over those of the server's options.
        settings_after: seconds for which everything that we would send is held back.
        drop: frame types never sent: "WINDOW_UPDATE", "PING_ACK", "SETTINGS_ACK".
    """

    settings: dict[int, int] = field(default_factory=dict)
    settings_after: float = 0.0
    drop: set[str] = field(default_factory=set)


class Connection:
    """See the module. `id` counts from 1 in the order of acceptance."""

    def __init__(self, backend: Backend, context: ssl.SSLContext | None) -> None:
        self.backend = backend
        self.id = backend.next_connection()
        self.time = time.monotonic()
        self.closed: float | None = None
        self.wire = Wire(backend.options, context, self)
        self.codec: Codec | None = None
        self.plan = Plan()
        self.requests = 0
        self.peak = 0
        self.open: dict[int, Exchange] = {}
        self.server_name: str | None = None
        self._tls = context is not None
        self._tls_error: str | None = None
        self._early = b""
        backend.connections[self.id] = self
        backend.log._accepted(self.id, self.record)

    def __repr__(self) -> str:
        protocol = self.codec.name if self.codec else "new"
        return f"<Connection {self.id} {protocol} open={len(self.open)} {self.wire!r}>"

    @property
    def is_http2(self) -> bool:
        return isinstance(self.codec, Http2)

    @property
    def http2(self) -> Http2:
        """The HTTP/2 protocol of this connection.

        Raises:
            RuntimeError: it speaks something else.
        """
        if not isinstance(self.codec, Http2):
            raise RuntimeError(f"connection {self.id} does not speak HTTP/2")
        return self.codec

    # Called by the wire.

    def accepted(self) -> None:
        """TCP is up; not a byte was read."""
        self.backend.wires.add(self.wire)
        self.note("accepted", {})
        self.backend.faults.on_connection(self)

    def connected(self, alpn: str | None) -> None:
        """TLS is up, or there is none."""
        http = self.backend.options.http
        if alpn == "h2" or http == "2":
            self.codec = Http2(self)
        elif alpn == "http/1.1" or http == "1.1" or self._tls:
            self.codec = Http1(self)

    def receive(self, data: bytes) -> None:
        if self.codec is None:
            data = self._early + data
            if len(data) < len(_PREFACE) and _PREFACE.startswith(data):
                self._early = data
                return
            self._early = b""
            self.codec = Http2(self) if data.startswith(_PREFACE) else Http1(self)
        self.codec.receive(data)

    def writable(self) -> None:
        if self.codec is not None:
            self.codec.writable()

    def ended(self, by: str) -> None:
        self.closed = time.monotonic()
        self.backend.connections.pop(self.id, None)
        for exchange in tuple(self.open.values()):
            exchange.leave(_OUTCOMES.get(by, "server_closed"))
        if self.codec is not None:
            self.codec.lost()
        self.note("closed", {"by": by})
        self.backend.log._lost(self.id, self.record())

    def released(self) -> None:
        """The socket is gone."""
        self.backend.released(self.wire)

    def note(self, kind: str, detail: dict[str, Any]) -> None:
        if kind == "tls_failed":
            self._tls_error = str(detail.get("error"))
        self.backend.log._event(kind, self.id, detail=detail)

    # Called by the protocol.

    def exchange(
        self,
        *,
        stream: int | None,
        protocol: str,
        method: str,
        target: str,
        authority: str,
        headers: HeaderList,
        body: Body,
        output: Output,
    ) -> Exchange:
        """A new exchange, entered in the log."""
        self.requests += 1
        exchange = Exchange(
            self,
            identity=self.backend.next_request(),
            number=self.requests,
            stream=stream,
            protocol=protocol,
            method=method,
            target=target,
            authority=authority,
            headers=headers,
            body=body,
            output=output,
        )
        self.open[exchange.id] = exchange
        self.peak = max(self.peak, len(self.open))
        self.backend.opened(exchange)
        return exchange

    def exchange_ended(self, exchange: Exchange) -> None:
        self.open.pop(exchange.id, None)
        self.backend.ended(exchange)
        if self.codec is not None and not self.wire.is_closed:
            self.codec.exchange_ended(exchange)

    # Called by faults, and by tests through MockGPU.connection.

    def close(self) -> None:
        """Flush, close_notify, FIN."""
        self.flush()
        self.wire.close()

    def half_close(self) -> None:
        """FIN now, and go on reading."""
        self.flush()
        self.wire.half_close()

    def reset(self) -> None:
        """TCP RST (SO_LINGER 0), after what was already answered."""
        self.flush()
        self.wire.reset()

    def black_hole(self) -> None:
        """Read and write nothing from now on, and keep the socket open."""
        self.note("fault", {"name": "black_hole"})
        self.wire.swallow()

    def flush(self) -> None:
        """Hand everything that the protocol has ready to the wire."""
        if self.codec is not None:
            self.codec.flush()

    def write_raw(self, data: bytes) -> None:
        """Put bytes on the wire past the protocol (on HTTP/2: between two frames)."""
        if self.codec is None:
            self.wire.write(data)
        else:
            self.codec.write_raw(data)

    def delay(self, seconds: float) -> None:
        """Act as if the connection were accepted only `seconds` from now. For `ConnectionFault.start`."""
        self.wire.sleep(seconds)

    def goaway(self, code: int = 0, last_stream: int | None = None, *, debug: bytes = b"") -> None:
        """HTTP/2 GOAWAY; `last_stream` None means the last one received. On HTTP/1.1 a RuntimeError."""
        self.http2.goaway(code, last_stream, debug=debug)

    def settings(self, settings: Mapping[int, int]) -> None:
        """HTTP/2 SETTINGS in flight, by number."""
        self.http2.change_settings(settings)

    def ping(self) -> None:
        """HTTP/2 PING; the answer is logged as "ping_acked"."""
        self.http2.ping()

    def record(self) -> ConnectionRecord:
        tls = self.wire.tls
        return ConnectionRecord(
            id=self.id,
            time=self.time,
            closed=self.closed,
            closed_by=self.wire.closed_by,
            peer=self.wire.peer,
            protocol=self.codec.name if self.codec else None,
            tls=self._tls,
            handshake_done=self.wire.handshake_done,
            tls_error=self._tls_error,
            server_name=self.server_name,
            client_certificate=bool(tls and self.wire.handshake_done and tls.getpeercert(binary_form=True)),
            requests=self.requests,
            open_requests=len(self.open),
            peak_requests=self.peak,
            bytes_in=self.wire.bytes_in,
            bytes_out=self.wire.bytes_out,
        )
