"""Requests built like one before: what the stack worked out for a method, a URL and headers is not worked out again.

Merging and normalising headers is half of what a small call costs its client. Built this way are requests whose call
names a method, a URL as text, and JSON, bytes or nothing as body; all else is the stack's own business.

Rules of this file:

- A template is what the stack's own `build_request` made. Once, a request is built from it with the same arguments
  and compared; where they differ, that template is never used.
- A template holds for the client's headers, base URL and parameters as they were; cookies and overridden methods send
  the call to the stack.
- A template keeps no body, and no header that only one call has.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from netkit_adapters.httpx.urls import Addresses

if TYPE_CHECKING:
    from netkit_adapters.httpx.making import Field, Making
    from netkit_adapters.httpx.stack import Stack

__all__ = ["Builder", "Building", "signed_as"]

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_TEMPLATES: Final = 256
"""Templates kept per client; beyond it they are made anew."""

MAX_LENGTH: Final = 2048
"""Characters of a URL that is kept."""

_STOCK: Final = attrgetter(
    "headers",
    "cookies",
    "params",
    "timeout",
    "base_url",
    "_merge_headers",
    "_merge_cookies",
    "_merge_queryparams",
)
_UNKNOWN: Final[Any] = object()
_OWN_LENGTH: Final = (b"content-length", b"transfer-encoding")


class Building:
    """How one stack builds requests, as it was at import."""

    def __init__(self, stack: Stack, making: Making) -> None:
        client: Any = stack.client
        self.making = making
        self.bytes: Any = stack.byte_stream
        self.default: Any = stack.native.USE_CLIENT_DEFAULT
        self.unset = type(self.default)
        self.timeout: Any = stack.native.Timeout
        self.build: Any = client.build_request
        self.stock: Any = _STOCK(client)
        self._client = client
        self._merge_url: Any = client._merge_url
        self._known: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()

    def is_stock(self, kind: type) -> bool:
        """Whether clients of this kind merge as the stack's own do, netkit's memory of URLs aside."""
        if _STOCK(kind) != self.stock or self._client._merge_url is not self._merge_url:
            return False
        known = self._known.get(kind)
        if known is None:
            merging = [owner for owner in kind.__mro__ if "_merge_url" in owner.__dict__]
            known = self._known[kind] = len(merging) == 2 and merging[1].__dict__["_merge_url"] is self._merge_url
        return known


def signed_as(native: Any) -> Callable[[Function], Function]:
    """A method with the name, the signature and the documentation of `native`."""

    def sign(function: Function) -> Function:
        functools.update_wrapper(function, native)
        return function

    return sign


class _Template:
    """The URL and header fields of a request; `length` is where its Content-Length stands, None where it has none."""

    __slots__ = ("fields", "length", "url")

    def __init__(self, url: Any, fields: list[Field], length: int | None) -> None:
        self.url = url
        self.fields = fields
        self.length = length


class Builder:
    """The templates of one client. Safe from any thread."""

    __slots__ = ("_building", "_kept", "addresses")

    def __init__(self, building: Building) -> None:
        self.addresses = Addresses()
        self._building = building
        self._kept: tuple[Any, Any, dict[Any, _Template | None]] = (None, None, {})

    def build(self, client: Any, native: Callable[..., Any], method: Any, url: Any, options: dict[str, Any]) -> Any:
        """What `native(method, url, **options)`, the client's `build_request` under netkit's, gives."""
        key = self._key(client, native, method, url, options)
        if key is None:
            return native(method, url, **options)
        making = self._building.making
        headers, base = making.fields(client.headers), client.base_url
        known_headers, known_base, known = self._kept
        if known_base is not base or known_headers != headers:
            known = {}
            self._kept = (headers.copy(), base, known)
        template = known.get(key, _UNKNOWN)
        if template is None:
            return native(method, url, **options)
        if template is not _UNKNOWN:
            made = self._from(template, client, method, options)
            return native(method, url, **options) if made is None else made
        headers = headers.copy()
        made = native(method, url, **options)
        if making.fields(client.headers) == headers:
            # Nobody has changed them meanwhile, in another thread.
            if len(known) >= MAX_TEMPLATES:
                known.clear()
            known[key] = self._learned(client, method, headers, options, made)
        return made

    def _key(self, client: Any, native: Any, method: Any, url: Any, options: dict[str, Any]) -> Any:
        """What a template holds for; None for a call that has none."""
        building, kind = self._building, ""
        if type(method) is not str or type(url) is not str or len(url) > MAX_LENGTH:
            return None
        for name, value in options.items():
            if value is None or name == "timeout":
                continue
            if kind or not (name == "json" or (name == "content" and type(value) is bytes and value)):
                return None
            kind = name
        if getattr(native, "__func__", None) is not building.build or not building.is_stock(type(client)):
            return None
        if client.params or client.cookies or not building.making.works():
            return None
        return method, url, kind

    def _learned(
        self, client: Any, method: str, client_headers: list[Field], options: dict[str, Any], made: Any
    ) -> _Template | None:
        if type(made.stream) is not self._building.bytes or any(name in _OWN_LENGTH for _, name, _ in client_headers):
            return None
        fields = self._building.making.fields(made.headers).copy()
        lengths = [index for index, (_, name, _) in enumerate(fields) if name == b"content-length"]
        if len(lengths) > 1:
            return None
        template = _Template(made.url, fields, lengths[0] if lengths else None)
        again = self._from(template, client, method, options)
        if again is None or _seen(again) != _seen(made):
            return None
        self.addresses.keep(template.url)
        return template

    def _from(self, template: _Template, client: Any, method: str, options: dict[str, Any]) -> Any:
        """None where the stack's own way of encoding is not known."""
        building = self._building
        content: bytes | None
        if (json := options.get("json")) is not None:
            content = building.making.json(json)
            if content is None:
                return None
        else:
            content = options.get("content") or b""
        timeout = options.get("timeout", building.default)
        timeout = client.timeout if isinstance(timeout, building.unset) else building.timeout(timeout)
        fields = template.fields.copy()
        if template.length is not None:
            name, lower, _ = fields[template.length]
            fields[template.length] = (name, lower, b"%d" % len(content))
        return building.making.request(method.upper(), template.url, fields, {"timeout": timeout.as_dict()}, content)


def _seen(request: Any) -> dict[str, Any]:
    return {
        **request.__dict__,
        "headers": request.headers.__dict__,
        "stream": (type(request.stream), b"".join(request.stream)),
    }
