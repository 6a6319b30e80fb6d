"""Faults of HTTP/2: streams reset, GOAWAY, SETTINGS, windows, PING, floods. On HTTP/1.1 they raise (see the log)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from netkit.testing.mock_gpu import frames
from netkit.testing.mock_gpu.exchange import Gone
from netkit.testing.mock_gpu.signals import Signal

from ._base import ConnectionFault, Fault, Proceed
from ._outputs import Cut

if TYPE_CHECKING:
    from netkit.testing.mock_gpu.connection import Connection
    from netkit.testing.mock_gpu.exchange import Exchange

__all__ = [
    "ContinuationFlood",
    "DelayedSettings",
    "Flood",
    "GoAway",
    "OversizeHeaders",
    "PingUnanswered",
    "ResetStream",
    "SettingsChange",
    "StalledWindow",
]

REFUSED_STREAM = 7


@dataclass(frozen=True, kw_only=True)
class ResetStream(Fault):
    """RST_STREAM with any code, at any point.

    Attributes:
        code: REFUSED_STREAM (7) by default.
        at: "request" (its head), "body" (the whole request), "head" (after the answer's head), "events" (after
            `events` writes of the body).
    """

    code: int = REFUSED_STREAM
    at: Literal["request", "body", "head", "events"] = "request"
    events: int = 1

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        codec = exchange.connection.http2
        if self.at in ("request", "body"):
            if self.at == "body":
                await exchange.body.wait()
            codec.reset(exchange, self.code)
            return
        events = 0 if self.at == "head" else self.events
        exchange.output = Cut(exchange, lambda: codec.reset(exchange, self.code), limit=None, events=events)
        await proceed()


@dataclass(frozen=True, kw_only=True)
class GoAway(Fault):
    """GOAWAY when this request arrives; streams up to `last_stream` are answered, later ones never processed.

    `GoAway(request=10, times=None)` recycles every connection at its tenth request.

    Attributes:
        last_stream: None means this request's stream, so that it is answered; 0 is a valid value.
        two_step: first GOAWAY(2**31-1), then the real one, which names the highest stream that came meanwhile.
        gap: seconds between the two steps.
        until: a Signal; where given, the second step is taken when the test sets it, instead of after `gap`.
        then: "close" when the streams that remain have ended, "keep" the connection open for the client to close.
    """

    last_stream: int | None = None
    code: int = 0
    debug: bytes = b""
    two_step: bool = False
    gap: float = 0.05
    until: Signal | None = None
    then: Literal["close", "keep"] = "close"

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        codec = exchange.connection.http2
        stream = exchange.stream or 0
        if self.two_step:
            codec.write_raw(frames.goaway(2**31 - 1, 0, b"going away soon"))
            await (asyncio.sleep(self.gap) if self.until is None else self.until.wait_async(None))
        last = self.last_stream
        if last is None:
            last = codec.highest_stream if self.two_step else stream
        codec.goaway(self.code, last, debug=self.debug)
        if self.then == "close":
            codec.finish_then_close()
        if exchange.is_open:
            await proceed()


@dataclass(frozen=True, kw_only=True)
class SettingsChange(Fault):
    """SETTINGS in flight when this request arrives, by number: `SettingsChange(settings={3: 1})`; then the answer.

    The client's ACK shows in the log as "settings_acked"; hold the answer with a Hold behind this fault.
    """

    settings: Mapping[int, int] = field(default_factory=dict)

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        exchange.connection.settings(self.settings)
        await proceed()


@dataclass(frozen=True, kw_only=True)
class DelayedSettings(ConnectionFault):
    """Nothing is sent for `seconds` after the connection is up: not the SETTINGS, not an answer, not an ACK."""

    seconds: float = 0.1
    settings: Mapping[int, int] = field(default_factory=dict)
    times: int | None = None

    def start(self, connection: Connection) -> None:
        connection.plan.settings_after = self.seconds
        connection.plan.settings.update(self.settings)


@dataclass(frozen=True, kw_only=True)
class StalledWindow(ConnectionFault):
    """The client may send `initial` body bytes per stream and never gets credit back (no WINDOW_UPDATE at all)."""

    initial: int = 65_535
    times: int | None = None

    def start(self, connection: Connection) -> None:
        connection.plan.settings[4] = self.initial
        connection.plan.drop.add("WINDOW_UPDATE")


@dataclass(frozen=True, kw_only=True)
class PingUnanswered(ConnectionFault):
    """The client's PING is never acknowledged; all else works."""

    times: int | None = None

    def start(self, connection: Connection) -> None:
        connection.plan.drop.add("PING_ACK")


@dataclass(frozen=True, kw_only=True)
class Flood(Fault):
    """`count` PING or SETTINGS frames, or empty DATA on this stream, before the answer."""

    kind: Literal["ping", "settings", "empty_data"] = "ping"
    count: int = 10_000

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        codec = exchange.connection.http2
        if self.kind == "empty_data":
            stream = exchange.stream or 0
            codec.write_raw(frames.frame(frames.HEADERS, 0x4, stream, frames.literal_headers([(b":status", b"200")])))
            unit = frames.frame(frames.DATA, 0, stream)
        else:
            unit = frames.ping()
        for start in range(0, self.count, 500):
            number = min(500, self.count - start)
            if self.kind == "settings":  # the engine must know of them: it counts the ACKs
                for _ in range(number):
                    codec.change_settings({})
            else:
                codec.write_raw(unit * number)
            await asyncio.sleep(0)
            if not exchange.is_open:
                raise Gone("the client had enough")
        if self.kind != "empty_data":
            await proceed()
        else:
            await asyncio.get_running_loop().create_future()


@dataclass(frozen=True, kw_only=True)
class OversizeHeaders(Fault):
    """An answer whose header list has `size` bytes, in one field per `field_size`; HTTP/1.1 too."""

    size: int = 1024 * 1024
    field_size: int = 4096

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        count = max(1, self.size // self.field_size)
        fields = [(f"x-filler-{number}", "f" * self.field_size) for number in range(count)]
        await exchange.body.wait()
        if not exchange.connection.is_http2:
            await exchange.output.head(200, [("content-length", "0"), *fields])
            await exchange.output.end([])
            return
        block = [(b":status", b"200"), *((name.encode(), value.encode()) for name, value in fields)]
        _forge(exchange, frames.literal_headers(block), finish=True)
        await asyncio.get_running_loop().create_future()


@dataclass(frozen=True, kw_only=True)
class ContinuationFlood(Fault):
    """An answer that begins with HEADERS and goes on with `count` CONTINUATION frames that never end it."""

    count: int = 10_000
    size: int = 1

    async def run(self, exchange: Exchange, proceed: Proceed) -> None:
        codec = exchange.connection.http2
        stream = exchange.stream or 0
        filler = frames.literal_headers([(b"x-filler", b"f" * self.size)])
        head = frames.frame(frames.HEADERS, 0, stream, frames.literal_headers([(b":status", b"200")]))
        unit = frames.frame(frames.CONTINUATION, 0, stream, filler)
        codec.write_raw(head)
        for start in range(0, self.count, 500):
            codec.write_raw(unit * min(500, self.count - start))
            await asyncio.sleep(0)
        await asyncio.get_running_loop().create_future()


def _forge(exchange: Exchange, block: bytes, *, finish: bool) -> None:
    """A header block cut into frames of 16 KiB, past the engine (whose HPACK table it does not touch)."""
    stream, limit = exchange.stream or 0, 16_384
    pieces = [block[start : start + limit] for start in range(0, len(block), limit)]
    out = []
    for number, piece in enumerate(pieces):
        flags = 0x4 if number == len(pieces) - 1 else 0
        if number == 0 and finish:
            flags |= 0x1
        out.append(frames.frame(frames.HEADERS if number == 0 else frames.CONTINUATION, flags, stream, piece))
    exchange.connection.http2.write_raw(b"".join(out))
