"""Native headers, requests and responses made field by field, where their constructors would work out what is known.

Rules of this file:

- What is made here is what the stack's own constructor makes. That this is so is tried at import, for each stack;
  where it is not, and where a constructor has been replaced since, the constructor is called.
"""

from __future__ import annotations

from importlib import import_module
from json import JSONEncoder
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from netkit_adapters.httpx.stack import Stack

__all__ = ["Field", "Making"]

Field = tuple[bytes, bytes, bytes]
"""A header field as the stacks keep it: name, name in lower case, value."""

_new: Final = object.__new__
_PROBE: Final = {"é": [1, 2.5, None, True, "\u2028"]}


class Making:
    """One stack's messages from inside."""

    def __init__(self, stack: Stack) -> None:
        native = stack.native
        self._headers: Any = native.Headers
        self._request: Any = native.Request
        self._response: Any = native.Response
        self._bytes: Any = stack.byte_stream
        self._kinds = (native.Headers, native.Request, native.Response)
        self._constructors = self._found()
        self._encode = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
        self._content: Any = import_module(f"{stack.name}._content").__dict__
        self._encoders = self._of_json()
        self._works = self._is_right()
        self._encodes = self._is_right_for_json()

    def works(self) -> bool:
        """Whether messages may be made here; asked for each."""
        return self._works and self._found() == self._constructors

    def fields(self, headers: Any) -> list[Field]:
        """What native headers hold: their own list, not to be changed."""
        found: list[Field] = headers._list
        return found

    def request(self, method: str, url: Any, fields: list[Field], extensions: dict[str, Any], content: bytes) -> Any:
        """A request that was built with `content` and has been read."""
        made = _new(self._request)
        made.method = method
        made.url = url
        made.headers = headers = _new(self._headers)
        headers._list = fields
        headers._encoding = None
        made.extensions = extensions
        made.stream = self._bytes(content)
        made._content = content
        return made

    def response(self, status: int, pairs: list[tuple[bytes, bytes]], stream: Any, extensions: dict[str, Any]) -> Any:
        """A response as a transport makes it; names in `pairs` are in lower case, as HTTP/2 has them."""
        if not self.works():
            return self._response(status, headers=pairs, stream=stream, extensions=extensions)
        made = _new(self._response)
        made.status_code = status
        made.headers = headers = _new(self._headers)
        headers._list = [(name, name, value) for name, value in pairs]
        headers._encoding = None
        made._request = made.next_request = None
        made.extensions = extensions
        made.history = []
        made.is_closed = made.is_stream_consumed = False
        made.default_encoding = "utf-8"
        made.stream = stream
        made._num_bytes_downloaded = 0
        return made

    def json(self, value: Any) -> bytes | None:
        """`value` as the stack encodes it; None where somebody else encodes JSON in its place."""
        if not self._encodes or self._of_json() != self._encoders:
            return None
        return self._encode(value).encode("utf-8")

    def _found(self) -> list[Any]:
        return [kind.__init__ for kind in self._kinds]

    def _of_json(self) -> tuple[Any, Any, Any]:
        content = self._content
        return content.get("json_dumps"), content.get("encode_json"), JSONEncoder.encode

    def _is_right(self) -> bool:
        pairs, stream, asked = [(b"x-a", b"1"), (b"x-a", b"2")], self._bytes(b"abc"), {"a": 1}
        self._works = True
        try:
            own = self._response(201, headers=pairs, stream=stream, extensions=asked)
            ours = self.response(201, pairs, stream, {"a": 1})
            built = self._request(
                "PUT", "http://host.test/", headers=[(b"X-A", b"1")], stream=stream, extensions=asked
            )
            built.read()
            made = self.request("PUT", built.url, [(b"X-A", b"x-a", b"1")], {"a": 1}, b"abc")
        except (AttributeError, TypeError):
            return False
        made.stream = stream
        return _seen(own) == _seen(ours) and _seen(built) == _seen(made)

    def _is_right_for_json(self) -> bool:
        encode = self._encoders[1]
        if encode is None:
            return False
        stream = encode(_PROBE)[1]
        if type(stream) is not self._bytes or b"".join(stream) != self._encode(_PROBE).encode("utf-8"):
            return False
        try:
            encode([float("nan")])
        except ValueError:
            return True
        return False


def _seen(message: Any) -> dict[str, Any]:
    return {**message.__dict__, "headers": message.headers.__dict__}
