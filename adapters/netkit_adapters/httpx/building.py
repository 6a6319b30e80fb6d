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
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
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
_OWN_LENGTH: Final = (b"content-length", b"transfer-encoding")


class Building:
    """How one stack builds requests, as it was at import."""

    def __init__(self, stack: Stack) -> None:
        client: Any = stack.client
        self.request: Any = stack.native.Request
        self.bytes: Any = stack.byte_stream
        self.default: Any = stack.native.USE_CLIENT_DEFAULT
        self.unset = type(self.default)
        self.timeout: Any = stack.native.Timeout
        self.build: Any = client.build_request
        self.stock: Any = _STOCK(client)
        self._client = client
        self._merge_url: Any = client._merge_url
        self._known: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
        self.json: Any = getattr(import_module(f"{stack.name}._content"), "encode_json", None)

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

    def __init__(self, url: Any, fields: list[tuple[bytes, bytes]], length: int | None) -> None:
        self.url = url
        self.fields = fields
        self.length = length


class Builder:
    """The templates of one client. Safe from any thread."""

    __slots__ = ("_building", "_kept")

    def __init__(self, building: Building) -> None:
        self._building = building
        self._kept: tuple[Any, Any, dict[Any, _Template | None]] = (None, None, {})

    def build(self, client: Any, native: Callable[..., Any], method: Any, url: Any, options: dict[str, Any]) -> Any:
        """What `native(method, url, **options)`, the client's `build_request` under netkit's, gives."""
        key = self._key(client, native, method, url, options)
        if key is None:
            return native(method, url, **options)
        headers, base = client.headers.raw, client.base_url
        known_headers, known_base, known = self._kept
        if known_base is not base or known_headers != headers:
            known = {}
            self._kept = (headers, base, known)
        if key in known:
            template = known[key]
            if template is None:
                return native(method, url, **options)
            return self._from(template, client, method, options)
        made = native(method, url, **options)
        if client.headers.raw == headers:
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
            if kind or not (
                (name == "json" and building.json is not None)
                or (name == "content" and type(value) is bytes and value)
            ):
                return None
            kind = name
        if getattr(native, "__func__", None) is not building.build or not building.is_stock(type(client)):
            return None
        return None if client.params or client.cookies else (method, url, kind)

    def _learned(
        self, client: Any, method: str, client_headers: list[tuple[bytes, bytes]], options: dict[str, Any], made: Any
    ) -> _Template | None:
        if type(made.stream) is not self._building.bytes or any(k.lower() in _OWN_LENGTH for k, _ in client_headers):
            return None
        fields = made.headers.raw
        lengths = [index for index, (name, _) in enumerate(fields) if name.lower() == b"content-length"]
        if len(lengths) > 1:
            return None
        template = _Template(made.url, fields, lengths[0] if lengths else None)
        again = self._from(template, client, method, options)
        same = (
            (again.method, again.url, again.headers.raw, again.extensions, again.content)
            == (made.method, made.url, fields, made.extensions, made.content)
            and type(again.stream) is type(made.stream)
            and again.__dict__.keys() == made.__dict__.keys()
        )
        return template if same else None

    def _from(self, template: _Template, client: Any, method: str, options: dict[str, Any]) -> Any:
        building = self._building
        stream: Any
        if (json := options.get("json")) is not None:
            stream = building.json(json)[1]
        else:
            stream = building.bytes(options.get("content") or b"")
        timeout = options.get("timeout", building.default)
        timeout = client.timeout if isinstance(timeout, building.unset) else building.timeout(timeout)
        fields = template.fields
        if template.length is not None:
            size = sum(map(len, stream))
            fields = fields.copy()
            fields[template.length] = (fields[template.length][0], b"%d" % size)
        request = building.request(
            method, template.url, headers=fields, extensions={"timeout": timeout.as_dict()}, stream=stream
        )
        request.read()
        return request
