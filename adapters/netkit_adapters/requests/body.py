"""Watching a urllib3 response without replacing it.

Rules of this file:

- The caller keeps the very object that urllib3 made; only its class changes, to a subclass that also tells netkit.
- A chunk is told as it is taken off the wire, before content decoding; nothing is merged, split or held back.
- The end is told once: complete, failed, closed early, or collected as garbage.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Final, cast

from urllib3.exceptions import ReadTimeoutError
from urllib3.response import HTTPResponse
from urllib3.util.response import is_fp_closed

from netkit.errors import BodyClosed
from netkit.messages import ResponseBody
from netkit_adapters.requests.errors import classify, to_native

if TYPE_CHECKING:
    from collections.abc import Generator

    import requests

    from netkit.messages import Pace

__all__ = ["NativeBody", "ObservedHTTPResponse"]

DRAIN_LIMIT: Final = 65536
"""Up to this many bytes an unwanted answer is read to keep its connection; beyond it the connection is closed."""


class ObservedHTTPResponse(HTTPResponse):
    """A urllib3 response whose body netkit watches."""

    _netkit_body: NativeBody

    def _raw_read(self, amt: int | None = None, *, read1: bool = False) -> bytes:
        try:
            data = super()._raw_read(amt, read1=read1)
        except BaseException as error:
            self._netkit_body.fail(error)
            raise
        if data:
            data = self._netkit_body.chunk(data)
        if (not data or not self.length_remaining) and is_fp_closed(self._fp):
            self._netkit_body.end()
        return data

    def _handle_chunk(self, amt: int | None) -> bytes:
        return self._netkit_body.chunk(super()._handle_chunk(amt))

    def read_chunked(self, amt: int | None = None, decode_content: bool | None = None) -> Generator[bytes]:
        try:
            yield from super().read_chunked(amt, decode_content=decode_content)
        except GeneratorExit:
            self._netkit_body.end(BodyClosed("left before its end"))
            raise
        except BaseException as error:
            self._netkit_body.fail(error)
            raise
        if is_fp_closed(self._fp):
            self._netkit_body.end()

    def close(self) -> None:
        super().close()
        self._netkit_body.end(BodyClosed("closed before its end"))


class NativeBody(ResponseBody):
    """The body of a `requests.Response`."""

    __slots__ = ("_reference", "_watched")

    decoded = True

    def __init__(self, native: requests.Response) -> None:
        super().__init__()
        # Weak: a cycle through the raw response would keep its socket open until a collection.
        self._reference = weakref.ref(native)
        self._watched = False

    def __del__(self) -> None:
        # In a cycle the file below may be the first to go, and what stands on it then counts as closed already.
        if not self.ended:
            self.end(BodyClosed("dropped before its end"))

    @property
    def _native(self) -> requests.Response:
        native = self._reference()
        if native is None:
            raise ReferenceError("the response of this body is gone")
        return native

    def _observed(self) -> None:
        if self._watched:
            return
        self._watched = True
        raw: Any = self._native.raw
        if self._native._content_consumed or type(raw) is not HTTPResponse:
            # Already read, or a stand-in that cannot be watched: for netkit its life ends here.
            self.end()
            return
        watched = cast(ObservedHTTPResponse, raw)
        watched.__class__ = ObservedHTTPResponse
        watched._netkit_body = self

    def limit(self, pace: Pace) -> None:
        super().limit(pace)
        # Between http.client and its socket: there every wait can be seen, and none begins before the last has ended.
        buffered = getattr(getattr(self._native.raw, "_fp", None), "fp", None)
        source: Any = getattr(buffered, "raw", None)
        sock = getattr(source, "_sock", None)
        if self.pace is None or sock is None:
            return
        readinto = source.readinto

        def paced(buffer: Any) -> Any:
            left = pace.left()
            if left <= 0:
                raise TimeoutError("timed out")
            sock.settimeout(left if left != math.inf else None)
            return readinto(buffer)

        source.readinto = paced

    def fail(self, error: BaseException) -> None:
        """End it with `error`; raises what its pace says instead of a time-out."""
        failure = None
        if self.pace is not None and isinstance(error, ReadTimeoutError):
            failure = self.pace.failure()
        self.end(failure or error)
        if failure is not None:
            native = self._reference()
            raise to_native(failure, None if native is None else native.request) from error

    async def read(self) -> bytes:
        try:
            return self._native.content or b""
        except Exception as error:
            failure = classify(error, processed=True)
            if failure is None:
                raise
            raise failure from error

    async def discard(self) -> None:
        left = getattr(self._native.raw, "length_remaining", None)
        try:
            if left is not None and left <= DRAIN_LIMIT:
                self._native.content  # noqa: B018 - reading is what frees the connection
        except Exception:  # noqa: BLE001 - the answer was unwanted; closing is all that is left to do
            pass
        finally:
            self._native.close()
            self.end(BodyClosed("discarded"))
