"""A urllib3 response over an HTTP/2 exchange: `read`, `read1`, `stream`, decoding and `close` as users know them.

Rules of this file:

- What has arrived is handed on at once; `stream(amt)` yields at most `amt` bytes and never waits to fill them.
- Closing before the end resets the stream; the connection lives on.
"""

from __future__ import annotations

import threading
import weakref
from http.client import HTTPMessage
from typing import TYPE_CHECKING, Any, Final

from requests import exceptions as native_errors
from urllib3 import HTTPHeaderDict
from urllib3 import exceptions as urllib3_errors
from urllib3.response import HTTPResponse

from netkit import fork
from netkit.errors import BodyClosed, DeadlineExceeded, FailureKind, TransportError, Verdict
from netkit.messages import ResponseBody
from netkit_adapters.requests.body import DRAIN_LIMIT
from netkit_adapters.requests.errors import classify, to_native

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    import requests

    from netkit.http2 import SyncExchange
    from netkit.messages import Pace

__all__ = ["ExchangeBody", "ExchangeFile", "ExchangeResponse", "Original"]

_WHOLE: Final = 1 << 62


class Original:
    """Stands where urllib3 keeps http.client's response: requests takes cookies from its `msg`."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.msg = HTTPMessage()
        for name, value in pairs:
            self.msg.add_header(name, value)

    def isclosed(self) -> bool:
        return True

    def close(self) -> None:
        pass


class ExchangeBody(ResponseBody):
    """The life of an HTTP/2 answer's body, as layers see it."""

    __slots__ = ("_reference", "file")

    decoded = True

    def __init__(self, exchange: SyncExchange) -> None:
        super().__init__()
        self.file = ExchangeFile(exchange, self)
        self._reference: Callable[[], requests.Response | None]

    @property
    def native(self) -> requests.Response:
        native = self._reference()
        if native is None:
            raise ReferenceError("the response of this body is gone")
        return native

    @native.setter
    def native(self, native: requests.Response) -> None:
        # Weak: in a cycle, a response that its caller drops would keep its stream open until a collection.
        self._reference = weakref.ref(native)

    def preload(self) -> None:
        """Read all of it now, past urllib3's machinery: for callers that did not ask for a stream.

        Raises what `Response.content` raises. Does nothing where a layer has read it already.
        """
        if self.native._content_consumed:
            return
        content = self.file.whole()
        if content is None:
            try:
                content = self.file.read()
            except urllib3_errors.HTTPError as error:
                raise self.late() or _as_requests(error) from error
        native = self.native
        native._content = content
        native._content_consumed = True

    def late(self) -> BaseException | None:
        """What its reader gets to see where its pace has ended it."""
        error = self.error
        if not isinstance(error, DeadlineExceeded):
            return None
        response = self._reference()
        native = to_native(error, None if response is None else response.request)
        native.__cause__ = error.__cause__
        return native

    async def read(self) -> bytes:
        try:
            return self.native.content or b""
        except Exception as error:
            failure = classify(error, processed=True)
            if failure is None:
                raise
            raise failure from error

    async def discard(self) -> None:
        self.file.drain(DRAIN_LIMIT)
        self.file.close()
        self.end(BodyClosed("discarded"))


class ExchangeFile:
    """The file that urllib3 reads from. `closed` only when nothing is left in it."""

    __slots__ = ("_body", "_exchange", "_left", "_over")

    def __init__(self, exchange: SyncExchange, body: ExchangeBody) -> None:
        self._exchange = exchange
        self._body = body
        self._left = b""
        self._over = False

    @property
    def closed(self) -> bool:
        return self._over and not self._left

    def isclosed(self) -> bool:
        return self._over and not self._left

    def read1(self, amount: int | None = None) -> bytes:
        """What is there, at most `amount` bytes; waits only while there is nothing. b"" at the end."""
        data = self._left
        if data:
            self._left = b""
        elif not self._over:
            data = self._next()
        if amount is not None and len(data) > amount:
            self._left = data[amount:]
            data = data[:amount]
        return data

    def read(self, amount: int | None = None) -> bytes:
        """`amount` bytes, fewer only at the end; None: all of it."""
        parts: list[bytes] = []
        wanted = _WHOLE if amount is None else amount
        while wanted and (data := self.read1(wanted)):
            parts.append(data)
            wanted -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def whole(self) -> bytes | None:
        """All of it, where it has arrived to its end and nothing was taken yet; else None."""
        exchange, body = self._exchange, self._body
        if self._over or self._left or body.pace is not None:
            return None
        if not exchange.ended or exchange.error is not None or exchange.held:
            return None
        data = exchange.read()
        if data:
            data = body.chunk(data)
        self._over = True
        body.end()
        return data

    def _next(self) -> bytes:
        pace = self._body.pace
        try:
            data = self._exchange.read_chunk() if pace is None else self._paced(pace)
        except TransportError as error:
            self._over = True
            late = pace.failure() if pace is not None and error.kind is FailureKind.READ_TIMEOUT else None
            self._body.end(late or error)
            raise _as_urllib3(error) from error
        except BaseException as error:
            self._over = True
            self._exchange.close()
            self._body.end(error)
            raise
        if data:
            return self._body.chunk(data)
        self._over = True
        self._body.end()
        return b""

    def _paced(self, pace: Pace) -> bytes:
        left = pace.left()
        if left <= 0:
            self._exchange.close()
            raise TransportError("no time is left", kind=FailureKind.READ_TIMEOUT, verdict=Verdict.PROCESSED)
        return self._exchange.read_chunk(min(left, threading.TIMEOUT_MAX))

    def drain(self, limit: int) -> None:
        """Take what has arrived already, at most `limit` bytes; waits for nothing."""
        try:
            while limit > 0 and self._exchange.ended and (data := self.read1()):
                limit -= len(data)
        except urllib3_errors.HTTPError:
            self._over = True

    def close(self) -> None:
        """Leave: the server is told, unless it has finished."""
        self._left = b""
        if not self._over:
            self._over = True
            self._exchange.close()
            self._body.end(BodyClosed("closed before its end"))

    def flush(self) -> None:
        pass


_making: Final = fork.lock(reentrant=True)
_MADE_LATER: Final = "_netkit_made_of"


class ExchangeResponse(HTTPResponse):
    """A `urllib3.HTTPResponse` of version 20.

    It is made when something of it is first asked for, which for most answers is never: their bodies are read from
    the exchange, and requests' own response holds the rest.
    """

    def __init__(
        self,
        file: ExchangeFile,
        *,
        headers: list[tuple[str, str]],
        status: int,
        reason: str,
        original_response: Any,
        request_method: str | None,
        request_url: str | None,
    ) -> None:
        # requests looks for it in every response.
        self._original_response = original_response
        self.__dict__[_MADE_LATER] = file, headers, status, reason, request_method, request_url

    def __getattr__(self, name: str) -> Any:
        with _making:
            given = self.__dict__
            made_of = given.get(_MADE_LATER)
            if made_of is not None:
                set_before = {key: value for key, value in given.items() if key != _MADE_LATER}
                file, headers, status, reason, method, url = made_of
                super().__init__(
                    body=file,
                    headers=HTTPHeaderDict(headers),
                    status=status,
                    version=20,
                    version_string="HTTP/2",
                    reason=reason,
                    preload_content=False,
                    decode_content=False,
                    request_method=method,
                    request_url=url,
                )
                given.update(set_before)
                del given[_MADE_LATER]
        if name in given:
            return given[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def closed(self) -> bool:
        made_of = self.__dict__.get(_MADE_LATER)
        return super().closed if made_of is None else made_of[0].closed

    def release_conn(self) -> None:
        """It holds no connection: a stream is over when its body is."""

    def _raw_read(self, amt: int | None = None, *, read1: bool = False) -> bytes:
        try:
            return super()._raw_read(amt, read1=read1)
        except urllib3_errors.ReadTimeoutError as error:
            file: Any = self._fp
            late = file._body.late()
            if late is None:
                raise
            raise late from error

    def stream(self, amt: int | None = 2**16, decode_content: bool | None = None) -> Generator[bytes]:
        if amt == 0:
            return
        # read1() gives b"" only at the end: what has arrived goes out, decoded, without waiting for `amt` bytes.
        while data := self.read1(amt, decode_content=decode_content):
            try:
                yield data
            except GeneratorExit:
                # As urllib3: whoever drops the iterator of an answer of unknown length leaves, else he may read on.
                if self.length_remaining is None:
                    self.close()
                raise


def _as_urllib3(error: TransportError) -> urllib3_errors.HTTPError:
    if error.kind is FailureKind.READ_TIMEOUT:
        return urllib3_errors.ReadTimeoutError(None, None, "Read timed out.")  # type: ignore[arg-type]
    if error.kind is FailureKind.TLS:
        return urllib3_errors.SSLError(error)
    return urllib3_errors.ProtocolError(f"Connection broken: {error}", error)


def _as_requests(error: urllib3_errors.HTTPError) -> Exception:
    """As `Response.iter_content` translates."""
    if isinstance(error, urllib3_errors.ReadTimeoutError):
        return native_errors.ConnectionError(error)
    if isinstance(error, urllib3_errors.SSLError):
        return native_errors.SSLError(error)
    return native_errors.ChunkedEncodingError(error)
