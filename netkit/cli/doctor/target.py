"""Which server to look at, with which headers; and texts made safe to print.

Rules of this file:

- Values of headers and what a URL holds beside its path are sent to that server and shown to nobody.
- A server's words are quoted in one bounded line without control characters: a terminal obeys those.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from netkit.errors import ConfigError

__all__ = ["Target", "parse"]

_QUOTED: Final = 160
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_OWN: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type"})


@dataclass(frozen=True)
class Target:
    """`path` may have a query. `headers` are the caller's own; neither they nor the query are in any repr."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def authority(self) -> str:
        """Host and, where it is not the scheme's own, port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def shown(self) -> str:
        """The URL as it may be printed."""
        return self.origin + self.path.partition("?")[0]

    def quote(self, text: str | bytes) -> str:
        """What a server said, fit for a terminal: one line, bounded, without what this target keeps secret."""
        said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        for secret in self._secrets():
            said = said.replace(secret, "***")
        said = " ".join(_CONTROL.sub(" ", said).split())
        return said if len(said) <= _QUOTED else f"{said[: _QUOTED - 1]}…"

    def _secrets(self) -> list[str]:
        """The longest first, so that none leaves its end behind."""
        values = [value for _, value in self.headers]
        parts = [part for value in values for part in re.split(r"[\s=;,]+", value) if len(part) >= 6]
        # A server may repeat what it decoded.
        parts += [part for part in map(_password, values) if len(part) >= 4]
        query = self.path.partition("?")[2]
        parts += [part for part in re.split(r"[=&]", query) if len(part) >= 6]
        return sorted({*values, *parts} - {""}, key=len, reverse=True)


def _password(value: str) -> str:
    """That of Basic credentials; "" for another header's value."""
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded).decode("utf-8", "replace").partition(":")[2]
    except ValueError:
        return ""


def parse(url: str, headers: list[str], *, command: str = "doctor") -> Target:
    """A target from `URL` and `Name: value` lines. Raises `ConfigError` in `command`'s name, never with a value."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{command}: that is no URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or _CONTROL.search(url) or " " in url:
        raise ConfigError(f"{command}: the URL must be http://HOST… or https://HOST…")
    pairs = [_header(line, command) for line in headers]
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        pairs.append(("authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
    try:
        host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    except UnicodeError as error:
        raise ConfigError(f"{command}: that is no host name") from error
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii():
        raise ConfigError(f"{command}: the URL's path must be percent-encoded")
    return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path, tuple(pairs))


def _header(line: str, command: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    name, value = name.strip().lower(), value.strip()
    if not colon or not _TOKEN.fullmatch(name):
        raise ConfigError(f"{command}: --header must be 'Name: value'")
    if name in _OWN:
        raise ConfigError(f"{command}: --header: {name} is not yours to set")
    if _CONTROL.search(value) or not value.isascii():
        raise ConfigError(f"{command}: --header: the value of {name} must be printable ASCII")
    return name, value
