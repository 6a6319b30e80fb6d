"""Header fields: case-insensitive, several values to a name, order kept, immutable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, overload

__all__ = ["SECRET_HEADERS", "Headers", "is_secret"]

_SECRET_PARTS: Final = ("token", "secret", "password", "api-key", "apikey", "authori", "authenti", "subscription-key")
SECRET_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "api-key", "x-api-key", "x-auth-token"}
)
"""Names whose values never appear in a repr, a log line, a span or an exception."""


def is_secret(name: str) -> bool:
    """Whether a header of this name carries a credential: those that are known, and those whose name says so."""
    name = name.lower()
    return name in SECRET_HEADERS or any(part in name for part in _SECRET_PARTS)


class Headers:
    """An immutable list of (name, value) pairs.

    Example::

        headers = Headers([("Accept", "a"), ("accept", "b")])
        headers["ACCEPT"]          # "a, b", joined as RFC 9110 section 5.2 allows
        headers.get_all("accept")  # ["a", "b"]
        headers.set("X-Id", "1")   # a changed copy
    """

    __slots__ = ("_index", "_pairs")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple(pairs)
        self._index: dict[str, list[str]] | None = None

    def items(self) -> tuple[tuple[str, str], ...]:
        """Every pair as given, in order."""
        return self._pairs

    def by_name(self) -> Mapping[str, list[str]]:
        """Every value, in order, by lower-cased name, in the order of first appearance. Not to be changed."""
        index = self._index
        if index is None:
            index = {}
            for key, value in self._pairs:
                lowered = key.lower()
                if lowered in index:
                    index[lowered].append(value)
                else:
                    index[lowered] = [value]
            # Kept from the first question on: several layers ask several.
            self._index = index
        return index

    def get_all(self, name: str) -> list[str]:
        """Every value of `name`, in order; an empty list when there is none."""
        return list((self._index or self.by_name()).get(name.lower(), ()))

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        """The values of `name` joined with ", ", or `default`. Set-Cookie cannot be joined: its first value."""
        values = (self._index or self.by_name()).get(name.lower())
        if not values:
            return default
        return values[0] if len(values) == 1 or name.lower() == "set-cookie" else ", ".join(values)

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in (self._index or self.by_name())

    def __iter__(self) -> Iterator[str]:
        """Each name once, lower-cased, in the order of first appearance."""
        return iter(self._index or self.by_name())

    def __len__(self) -> int:
        return len(self._pairs)

    def set(self, name: str, value: str) -> Headers:
        """A copy in which `name` has exactly this value, where it stood first, else at the end."""
        lowered, pairs, done = name.lower(), [], False
        for key, old in self._pairs:
            if key.lower() != lowered:
                pairs.append((key, old))
            elif not done:
                pairs.append((key, value))
                done = True
        if not done:
            pairs.append((name, value))
        return Headers(pairs)

    def add(self, name: str, value: str) -> Headers:
        """A copy with one more pair at the end."""
        return Headers((*self._pairs, (name, value)))

    def remove(self, name: str) -> Headers:
        """A copy without any value of `name`."""
        lowered = name.lower()
        return Headers(pair for pair in self._pairs if pair[0].lower() != lowered)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Headers):
            return NotImplemented
        return [(k.lower(), v) for k, v in self._pairs] == [(k.lower(), v) for k, v in other._pairs]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [(k, "…" if is_secret(k) else v) for k, v in self._pairs]
        return f"Headers({shown!r})"
