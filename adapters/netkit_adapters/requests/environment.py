"""Whether the environment has anything to say to a request: proxies, a CA bundle, a netrc file.

Why: with `trust_env` on, requests reads the whole environment several times for each request, which costs more than
sending it. When there is nothing in it that requests could use, not asking gives the same answer.

Rules of this file:

- What can change is looked at anew for each request: variables may be set, and files may appear, at any time.
- One look serves one request: requests' own questions within it get the same answer.
- Where proxies come from elsewhere (macOS, Windows), the environment never counts as silent.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final

from requests import sessions
from requests.utils import NETRC_FILES

__all__ = ["is_silent", "look"]

_READABLE: Final = sys.platform not in ("darwin", "win32", "cygwin")
_BUNDLES: Final = (b"REQUESTS_CA_BUNDLE", b"CURL_CA_BUNDLE")

_sessions: Any = sessions
_ORIGINALS: Final = (_sessions.get_netrc_auth, _sessions.get_environ_proxies)

_look = threading.local()


def is_silent() -> bool:
    """True when no variable and no file could change what requests does."""
    known: bool | None = getattr(_look, "silent", None)
    return _is_silent() if known is None else known


class look:  # noqa: N801 - a context manager, written as one would write a function
    """`with look(): …` is one request: the environment is looked at once, at its beginning."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer = getattr(_look, "silent", None)
        _look.silent = _is_silent()

    def __exit__(self, *args: Any) -> None:
        _look.silent = self._outer


def _is_silent() -> bool:
    variables: Any = getattr(os.environ, "_data", None)
    if not _READABLE or not isinstance(variables, dict):
        return False
    if (_sessions.get_netrc_auth, _sessions.get_environ_proxies) != _ORIGINALS:
        return False  # somebody answers in the environment's place
    # One search over all names is several times faster than a question for each.
    if b"_proxy=" in b"=".join(variables).lower() + b"=":
        return False
    if any(variables.get(name) for name in _BUNDLES) or variables.get(b"NETRC"):
        return False
    return not any(_exists(path) for path in _netrc_paths(variables.get(b"HOME")))


_paths: dict[bytes | None, tuple[str, ...]] = {}


def _netrc_paths(home: bytes | None) -> tuple[str, ...]:
    paths = _paths.get(home)
    if paths is None:
        if len(_paths) > 16:
            _paths.clear()
        paths = _paths[home] = tuple(os.path.expanduser(f"~/{name}") for name in NETRC_FILES)
    return paths


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True
