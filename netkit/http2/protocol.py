"""The seam between the engine and a sans-IO HTTP/2 protocol machine.

Rules of this file:

- A machine does no I/O, owns no timer and never calls the engine except through the `Sink` it was given, from
  inside `receive()` or `output()`.
- Receive windows: connection credit returns by itself as data arrives, unless `hold_connection()`; stream credit
  returns by itself until `hold_stream()`, from then on only through `refill_stream()`.
- Every identifier here is a numeric stream id, every code a numeric HTTP/2 error code (RFC 9113 section 7).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

__all__ = ["MACHINES", "Code", "Header", "Machine", "MachineError", "MachineFactory", "Sink", "machine_factory"]

Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = Sequence[Header]


class Code:
    """HTTP/2 error codes (RFC 9113 section 7)."""

    NO_ERROR: Final = 0x0
    PROTOCOL_ERROR: Final = 0x1
    INTERNAL_ERROR: Final = 0x2
    FLOW_CONTROL_ERROR: Final = 0x3
    REFUSED_STREAM: Final = 0x7
    CANCEL: Final = 0x8
    ENHANCE_YOUR_CALM: Final = 0xB
    HTTP_1_1_REQUIRED: Final = 0xD

    NAMES: Final = (
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    )

    @classmethod
    def name(cls, code: int) -> str:
        """`CANCEL (8)`, as errors show it."""
        return f"{cls.NAMES[code] if code < len(cls.NAMES) else 'unknown'} ({code})"


class MachineError(Exception):
    """The peer broke the protocol or a limit, or the machine failed: the connection is lost. `code` says why."""

    def __init__(self, message: str, code: int = Code.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class Sink(Protocol):
    """What a machine tells its connection."""

    def on_head(self, stream_id: int, headers: Headers, end: bool) -> None: ...
    def on_informational(self, stream_id: int, headers: Headers) -> None: ...
    def on_data(self, stream_id: int, data: bytes, end: bool) -> None: ...
    def on_trailers(self, stream_id: int, headers: Headers) -> None: ...
    def on_reset(self, stream_id: int, code: int) -> None:
        """The peer reset the stream."""

    def on_broken(self, stream_id: int, code: int, message: str) -> None:
        """The machine itself gave the stream up: the answer broke a rule, or could not be framed."""

    def on_settings(self, max_streams: int | None) -> None:
        """The peer's SETTINGS; `max_streams` is None when this frame did not name it."""

    def on_settings_ack(self) -> None: ...
    def on_ping(self) -> None: ...
    def on_pong(self, payload: bytes) -> None: ...
    def on_window(self, stream_id: int) -> None: ...
    def on_goaway(self, last_stream_id: int, code: int, reason: bytes) -> None: ...
    def on_terminated(self, code: int) -> None:
        """The machine will neither read nor write again."""


class Machine(Protocol):
    """One client connection's protocol state."""

    name: str

    def start(self) -> None:
        """Queue preface, SETTINGS and the connection window."""

    def request(self, headers: Headers, end: bool) -> int:
        """Queue request headers; returns the new stream's id. Raises `MachineError` when none can be opened."""
        ...

    def send(self, stream_id: int, data: bytes, end: bool) -> None:
        """Queue body bytes; they leave as the peer's windows allow, joined to full frames."""

    def queued(self, stream_id: int) -> int:
        """Body bytes of this stream that no frame holds yet."""
        ...

    def blocked(self, stream_id: int) -> bool:
        """True when body bytes are queued and the peer's windows let none of them out."""
        ...

    def reset(self, stream_id: int, code: int) -> None: ...
    def ping(self, payload: bytes) -> None: ...
    def goaway(self, code: int) -> None: ...
    def receive(self, data: bytes | bytearray | memoryview, sink: Sink) -> None:
        """Feed bytes from the peer. Raises `MachineError` when the connection is lost."""

    def output(self, limit: int, sink: Sink) -> bytes:
        """At most about `limit` bytes to write now; b"" when there is nothing to do."""
        ...

    def wants_write(self) -> bool: ...
    def hold_stream(self, stream_id: int) -> None: ...
    def refill_stream(self, stream_id: int, size: int) -> bool:
        """Let the peer send up to `size` bytes on this held stream, counted from now. False: not yet, since it may
        still send half of that, or an earlier grant has not left; ask again when more was read."""
        ...

    def hold_connection(self) -> None: ...
    def release_connection(self) -> None: ...
    def connection_credit(self) -> int:
        """Bytes that the peer may still send on the whole connection."""
        ...


MachineFactory: TypeAlias = Callable[..., Machine]
"""Called with stream_window, connection_window, max_frame_size, max_streams, max_header_list as keywords."""

MACHINES: Final = {"ngh2": "netkit.http2._ngh2:Ngh2Machine", "h2": "netkit.http2._h2:H2Machine"}


def machine_factory(name: str | None = None) -> MachineFactory:
    """The machine called `name`, else ngh2 if importable, else h2.

    Raises ImportError when neither library is installed (`pip install netkit-http[http2]`), ValueError for an
    unknown name.
    """
    if name is not None and name not in MACHINES:
        raise ValueError(f"unknown HTTP/2 protocol machine {name!r}: use one of {', '.join(sorted(MACHINES))}")
    missing: ImportError | None = None
    for candidate in [name] if name else MACHINES:
        module, _, attribute = MACHINES[candidate].partition(":")
        try:
            factory: MachineFactory = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            missing = error
        else:
            return factory
    raise ImportError("HTTP/2 needs ngh2 or h2: pip install netkit-http[http2]") from missing
