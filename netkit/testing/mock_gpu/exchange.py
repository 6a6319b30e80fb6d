"""One request and its answer, whatever the protocol below.

Rules of this file:
- Only the server's loop touches an exchange; other threads see its `record()`.
- An exchange ends once; `finish` says how.
- Everything that leaves goes through `output`, which a fault may replace by one that drips, cuts or lies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec

from .body import Body, Gone
from .log import RequestRecord

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Answer", "Body", "Exchange", "Gone", "HeaderList", "Output"]

HeaderList = list[tuple[str, str]]


@dataclass(slots=True)
class Answer:
    """What a route gives back.

    Attributes:
        body: bytes, or an async iterator of pieces (sent as they come).
        length: Content-Length of an iterated body; None means chunked on HTTP/1.1. Bytes know their own.
        trailers: sent after an iterated body.
    """

    status: int = 200
    headers: HeaderList = field(default_factory=list)
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None
    trailers: HeaderList = field(default_factory=list)

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: HeaderList | None = None) -> Answer:
        """An answer with a JSON body."""
        return cls(status, [("content-type", "application/json"), *(headers or ())], msgspec.json.encode(value))

    @classmethod
    def text(cls, value: str, status: int = 200, headers: HeaderList | None = None) -> Answer:
        """An answer with a plain text body."""
        return cls(status, [("content-type", "text/plain; charset=utf-8"), *(headers or ())], value.encode())

    @classmethod
    def error(
        cls,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: HeaderList | None = None,
    ) -> Answer:
        """An error in the shape of OpenAI's API."""
        body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        return cls.json(body, status, headers)


class Output(Protocol):
    """Where an answer goes: once `head`, any number of `data`, once `end`."""

    async def informational(self, status: int, headers: HeaderList) -> None: ...
    async def head(self, status: int, headers: HeaderList) -> None: ...
    async def data(self, chunk: bytes) -> None: ...
    async def end(self, trailers: HeaderList) -> None: ...


class Exchange:
    """One request under way. Routes read from it, faults do things to it."""

    __slots__ = (
        "_query", "authority", "body", "bytes_sent", "connection", "content", "ended", "events_sent", "first_byte",
        "head_pace", "headers", "id", "method", "number", "outcome", "output", "path", "protocol", "query",
        "reset_code", "status", "stream", "target", "task", "time", "unread_code", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        *,
        identity: int,
        number: int,
        stream: int | None,
        protocol: str,
        method: str,
        target: str,
        authority: str,
        headers: HeaderList,
        body: Body,
        output: Output,
    ) -> None:
        self.connection = connection
        self.id = identity
        self.number = number
        self.stream = stream
        self.protocol = protocol
        self.method = method
        self.target = target
        self.authority = authority
        self.headers = headers
        self.body = body
        self.output = output
        path, _, self.query = target.partition("?")
        self.path = unquote(path) if "%" in path else path
        self.time = time.monotonic()
        self.content = b""
        """The whole request body, once a route asked for it (all do, save the streaming ones)."""
        self.first_byte: float | None = None
        self.ended: float | None = None
        self.status: int | None = None
        self.bytes_sent = self.events_sent = 0
        self.outcome = "open"
        self.reset_code: int | None = None
        self.task: asyncio.Task[None] | None = None
        self.head_pace: tuple[int, float] | None = None
        """For slow heads: bytes per piece, seconds between two."""
        self.unread_code: int | None = 0
        """HTTP/2: the code of the RST_STREAM that follows an answer whose request is not whole; None sends none."""
        self.waiters: list[asyncio.Future[None]] = []
        self._query: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.id} {self.method} {self.target} {self.outcome}>"

    @property
    def parameters(self) -> dict[str, str]:
        """The query, decoded; of repeated names the last."""
        if self._query is None:
            self._query = dict(parse_qsl(self.query, keep_blank_values=True))
        return self._query

    @property
    def is_open(self) -> bool:
        return self.ended is None

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever the case; None if there is none."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def json(self) -> Any:
        """The body as JSON. Raises msgspec.DecodeError (a ValueError) where it is not."""
        return msgspec.json.decode(self.content)

    def finish(self, outcome: str, *, reset_code: int | None = None) -> None:
        """Say how it ended. Later calls change nothing."""
        if self.ended is None:
            self.ended = time.monotonic()
            self.outcome = outcome
            self.reset_code = reset_code
            self.connection.exchange_ended(self)
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait_ended(self) -> None:
        """Until the answer was sent, or the exchange was cut."""
        if self.is_open:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            await waiter

    def leave(self, outcome: str, *, reset_code: int | None = None) -> None:
        """The client is gone, or the connection: end, and stop whatever works on the answer."""
        self.finish(outcome, reset_code=reset_code)
        self.body.fail(Gone(outcome))
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def record(self) -> RequestRecord:
        body = self.body
        kept = body.kept()
        return RequestRecord(
            id=self.id,
            connection=self.connection.id,
            number=self.number,
            stream=self.stream,
            protocol=self.protocol,
            method=self.method,
            target=self.target,
            path=self.path,
            query=self.query,
            authority=self.authority,
            headers=tuple(self.headers),
            body=kept,
            digest=body.sha256() if kept is None else None,
            body_size=body.size,
            body_complete=body.complete,
            time=self.time,
            first_byte=self.first_byte,
            ended=self.ended,
            status=self.status,
            bytes_sent=self.bytes_sent,
            events_sent=self.events_sent,
            outcome=self.outcome,
            reset_code=self.reset_code,
        )
