"""HTTP/2 under requests: a session's prepared requests as exchanges of the engine.

Rules of this file:

- Where anything is not requests' own (`eligible`) or has no equal on HTTP/2 (`destinations`), the adapter is called.
- What the engine took from a body before it was known who sends it is there again for the adapter, or the call fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from requests.structures import CaseInsensitiveDict
from urllib3 import connectionpool
from urllib3.exceptions import InsecureRequestWarning

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2 import H2Request, Http1Only, Http2Options, SyncEngine, SyncExchange
from netkit.http2.port import could_not_connect
from netkit.http2.recorded import Recorded
from netkit.http2.upload import LengthMismatch
from netkit.messages import Body, Response
from netkit_adapters.requests.answer import respond
from netkit_adapters.requests.destinations import Destinations
from netkit_adapters.requests.eligible import is_eligible
from netkit_adapters.requests.negotiation import Negotiation
from netkit_adapters.requests.upload import chunks_of

if TYPE_CHECKING:
    from netkit.messages import Request
    from netkit_adapters.requests.messages import Exchange

__all__ = ["RequestsHttp2"]


class RequestsHttp2:
    """`netkit.http2.port.Http2Port` for one requests session."""

    missing: str | None = None

    def __init__(self) -> None:
        self._negotiation = Negotiation()
        self._destinations = Destinations()

    def engine(self, options: Http2Options, on_event: Callable[[str, dict[str, Any]], None]) -> SyncEngine:
        # requests lets answers be read on when their session is closed, as `with Session()` around a stream does.
        return SyncEngine(options, on_event=on_event, finish_open=True)

    def target(self, request: Request, *, prior_knowledge: bool) -> H2Request | None:
        exchange: Exchange = request.native
        adapter, prepared, arguments = exchange.peek(request)
        url = prepared.url or ""
        if not (url.startswith("https:") or prior_knowledge):
            return None
        if not is_eligible(adapter, prepared.body, arguments.get("timeout")):
            return None
        destination = self._destinations.find(url, arguments, request.extensions.get("server_hostname"))
        if destination is None:
            return None
        headers = _fields(prepared.headers)
        body, timeout = request.body, request.timeout
        reopen = None
        content: Any = body.content
        if content is None:
            if body.replayable:
                reopen = partial(_reopened, body)
            # Each attempt begins at the beginning; a one-shot body has one attempt.
            content = Recorded(chunks_of(prepared.body if exchange.taken_over else body.open()))
        return H2Request(
            destination.key,
            destination.spec,
            _bytes(prepared.method or "GET"),
            destination.authority,
            destination.path,
            headers,
            content or None,
            scheme=destination.scheme,
            body_size=body.size,
            reopen=reopen,
            replayable=body.replayable,
            connect_timeout=timeout.connect,
            read_timeout=timeout.read,
            write_timeout=timeout.read,
            pool_timeout=timeout.pool,
        )

    async def exchange(self, engine: SyncEngine, request: Request, target: H2Request) -> Response | None:
        native: Exchange = request.native
        connect = target.connect
        # A connection verified for another name than its URL's must not get into urllib3's pool for that URL.
        direct = connect.ssl is not None and connect.proxy is None and connect.server_hostname is None
        try:
            if direct and not self._negotiation.speaks_http2(engine, request, target):
                return None
            outcome = engine.send(target)
        except BaseException as error:
            if could_not_connect(error):
                _leave_to_native(native, request, target)
                return None
            native.begin(request, opens_body=False)
            if isinstance(error, TransportError) and error.verdict is Verdict.NOT_SENT:
                error.details["body_started"] = not _put_back(native, request, target)
            if isinstance(error, LengthMismatch):
                failure = TransportError(str(error), kind=FailureKind.WRITE, verdict=Verdict.AMBIGUOUS)
                raise failure from error
            raise
        if isinstance(outcome, Http1Only):
            self._negotiation.forget(target)
            _leave_to_native(native, request, target)
            return None
        if type(target.body) is Recorded:
            target.body.forget()
        _, prepared, arguments = native.begin(request, opens_body=False)
        if target.connect.ssl is not None and not arguments.get("verify", True):
            _warn_of_unverified(outcome, str(target.connect.host))
        return respond(outcome, prepared)


def _warn_of_unverified(outcome: SyncExchange, host: str) -> None:
    """urllib3 says so for each such request, in its own module's name, by which programs' filters know it; a drop-in
    that kept silent would hide it."""
    try:
        warnings.warn_explicit(
            f"Unverified HTTPS request is being made to host {host!r}.",
            InsecureRequestWarning,
            filename=connectionpool.__file__,
            lineno=connectionpool.HTTPSConnectionPool._validate_conn.__code__.co_firstlineno,
            module=connectionpool.__name__,
            registry=vars(connectionpool).setdefault("__warningregistry__", {}),
        )
    except Warning:  # as errors: nobody is left to read the answer
        outcome.close()
        raise


def _leave_to_native(native: Exchange, request: Request, target: H2Request) -> None:
    """The stack's own transport sends it: the whole body, also where the engine has taken the first of it already."""
    if not _put_back(native, request, target):
        native.begin(request, opens_body=False)
        raise TransportError(
            "the server asked for HTTP/1.1 when part of a body that cannot be sent twice was gone",
            kind=FailureKind.REFUSED,
            verdict=Verdict.REFUSED,
        )


def _put_back(native: Exchange, request: Request, target: H2Request) -> bool:
    """Make the body whole again for another attempt; False where that cannot be done any more."""
    body = target.body
    if not isinstance(body, Recorded) or not body.started:
        return True
    if target.replayable:
        native.attempted = True  # so that it is taken from its beginning
        return True
    again = body.again()
    if again is None:
        return False
    native.instead(request, again)
    return True


def _reopened(body: Body) -> Iterator[bytes]:
    return chunks_of(body.open())


def _fields(headers: Any) -> list[tuple[bytes, bytes]]:
    if type(headers) is CaseInsensitiveDict:
        try:
            return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers._store.values()]
        except AttributeError:
            pass  # bytes, or None for a header that is not to be sent
    return [(_bytes(name), _bytes(value)) for name, value in headers.items() if value is not None]


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")
