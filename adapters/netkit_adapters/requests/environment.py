"""Whether the environment has anything to say to a request: proxies, a CA bundle, a netrc file.

Why: with `trust_env` on, requests reads the whole environment several times for each request, which costs more than
sending it. When there is nothing in it that requests could use, not asking gives the same answer.

Rules of this file:

- What can change is looked at anew for each request: variables may be set, and files may appear, at any time.
- Where proxies come from elsewhere (macOS, Windows), the environment never counts as silent.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from operator import itemgetter
from typing import Any, Final

from requests import sessions, utils
from requests.utils import NETRC_FILES

__all__ = ["is_silent"]

_READABLE: Final = sys.platform not in ("darwin", "win32", "cygwin")
_SPEAKING: Final = (b"REQUESTS_CA_BUNDLE", b"CURL_CA_BUNDLE", b"NETRC")

_in_sessions: Final = itemgetter("get_netrc_auth", "get_environ_proxies")
_in_utils: Final = itemgetter("getproxies", "should_bypass_proxies")
_ORIGINALS: Final = _in_sessions(sessions.__dict__), _in_utils(utils.__dict__)

# As os.path.exists(), several times cheaper where there is nothing.
_exists: Final = partial(os.access, mode=os.F_OK, effective_ids=os.access in os.supports_effective_ids)


def is_silent() -> bool:
    """True when no variable and no file could change what requests does."""
    variables: Any = getattr(os.environ, "_data", None)
    if not _READABLE or not isinstance(variables, dict):
        return False
    if (_in_sessions(sessions.__dict__), _in_utils(utils.__dict__)) != _ORIGINALS:
        return False  # somebody answers in the environment's place
    # One search over all names is several times faster than a question for each.
    if b"_proxy=" in b"=".join(variables).lower() + b"=":
        return False
    if any(map(variables.get, _SPEAKING)):
        return False
    return not any(map(_exists, _netrc_paths(variables.get(b"HOME"))))


_paths: dict[bytes | None, tuple[str, ...]] = {}


def _netrc_paths(home: bytes | None) -> tuple[str, ...]:
    paths = _paths.get(home)
    if paths is None:
        if len(_paths) > 16:
            _paths.clear()
        paths = _paths[home] = tuple(os.path.expanduser(f"~/{name}") for name in NETRC_FILES)
    return paths
