"""A real `requests.Response` for the answer of an exchange.

Rules of this file:

- It is what `HTTPAdapter.build_response` would make of the same answer.
- All private use of requests' responses for HTTP/2 stands here; `_KNOWS_FIELDS` says whether it fits.
"""

from __future__ import annotations

import datetime
from collections import OrderedDict
from functools import lru_cache
from http.client import responses
from typing import TYPE_CHECKING, Any, Final

import requests
from requests.cookies import RequestsCookieJar, extract_cookies_to_jar
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers

from netkit.headers import Headers
from netkit.messages import Response
from netkit_adapters.requests.raw import ExchangeBody, ExchangeResponse, Original

if TYPE_CHECKING:
    from netkit.http2 import SyncExchange

__all__ = ["respond"]

_FIELDS: Final = (
    "_content", "_content_consumed", "_next", "status_code", "headers", "raw", "url", "encoding", "history", "reason",
    "cookies", "elapsed", "request",
)  # fmt: skip
_KNOWS_FIELDS: Final = tuple(vars(requests.Response())) == _FIELDS
_NO_TIME: Final = datetime.timedelta(0)
_new: Final = object.__new__


def _response(
    prepared: requests.PreparedRequest,
    status: int,
    headers: dict[str, str],
    *,
    raw: ExchangeResponse,
    reason: str,
    encoding: str | None,
) -> requests.Response:
    """A response as `HTTPAdapter.build_response` makes it. Its constructor fills it with what is replaced at once:
    where its fields are those that we know, they are set directly."""
    native: requests.Response = _new(requests.Response) if _KNOWS_FIELDS else requests.Response()
    fields: Any = CaseInsensitiveDict.__new__(CaseInsensitiveDict)
    fields._store = OrderedDict((name, (name, value)) for name, value in headers.items())
    native.__dict__.update(
        _content=False,
        _content_consumed=False,
        _next=None,
        status_code=status,
        headers=fields,
        raw=raw,
        url=prepared.url or "",
        encoding=encoding,
        history=[],
        reason=reason,
        cookies=RequestsCookieJar(),
        elapsed=_NO_TIME,
        request=prepared,
    )
    return native


def respond(exchange: SyncExchange, prepared: requests.PreparedRequest) -> Response:
    """The neutral response, with the native one inside it."""
    pairs = [(_NAMES.get(name) or _name(name), value.decode("latin-1")) for name, value in exchange.headers]
    joined: dict[str, str] = {}
    cookies = False
    for name, value in pairs:
        if name in joined:
            joined[name] = f"{joined[name]}, {value}"
        else:
            joined[name] = value
        cookies = cookies or name == "set-cookie"
    body = ExchangeBody(exchange)
    reason = responses.get(exchange.status, "")
    raw = ExchangeResponse(
        body.file,
        headers=pairs,
        status=exchange.status,
        reason=reason,
        # requests looks for cookies only where there is an original response: most answers have none.
        original_response=Original(pairs) if cookies else None,
        request_method=prepared.method,
        request_url=prepared.url,
    )
    native = _response(
        prepared, exchange.status, joined, raw=raw, reason=reason, encoding=_encoding(joined.get("content-type"))
    )
    if cookies:
        extract_cookies_to_jar(native.cookies, prepared, raw)
    body.native = native
    extensions = {
        "http_version": "HTTP/2",
        "connection_id": exchange.connection_id,
        "stream_id": exchange.stream_id,
    }
    return Response(exchange.status, lambda: Headers(pairs), body, extensions=extensions, native=native)


_NAMES: Final[dict[bytes, str]] = {}
"""Header names that servers sent, as text. Bounded in number and length: a server that invents names is decoded each
time."""


def _name(raw: bytes) -> str:
    name = raw.decode("latin-1")
    if len(_NAMES) < 1024 and len(raw) <= 64:
        _NAMES[raw] = name
    return name


@lru_cache(maxsize=256)
def _encoding(content_type: str | None) -> str | None:
    headers: CaseInsensitiveDict[str] = CaseInsensitiveDict()
    if content_type is not None:
        headers["content-type"] = content_type
    return get_encoding_from_headers(headers)
