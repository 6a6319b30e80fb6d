"""`netkit.requests.get` and its like: requests' module functions over connections that outlive the call.

Rules of this file:

- Each call has a session of its own, as in requests: no cookie, header or auth passes from one call to the next.
- Connections, limits and counters are the process's: keyed by origin and TLS settings, as urllib3 keys them.
"""

from __future__ import annotations

from typing import Any

import requests
from requests import Session as Base

from netkit import fork
from netkit_adapters.requests.session import Session

__all__ = ["delete", "get", "head", "options", "patch", "post", "put", "request", "session"]

_shared: Session | None = None
_lock = fork.lock()


def _process_session() -> Session:
    """The session whose adapters and chain the module functions share; made at the first call."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Session()
        return _shared


class _OneCall(Session):
    """A session for one call that borrows its adapters and its chain."""

    def __init__(self) -> None:
        shared = _process_session()
        Base.__init__(self)
        self.adapters = shared.adapters
        self.__dict__["_netkit_wired"] = shared._netkit_wiring

    def close(self) -> None:
        """The adapters are the process's: nothing of this session's own is open."""


def request(method: str, url: str, **kwargs: Any) -> requests.Response:
    """`requests.request` with netkit inside; every argument is requests' own."""
    with _OneCall() as session:
        return session.request(method=method, url=url, **kwargs)


def get(url: str, params: Any = None, **kwargs: Any) -> requests.Response:
    """`requests.get` with netkit inside."""
    return request("get", url, params=params, **kwargs)


def options(url: str, **kwargs: Any) -> requests.Response:
    """`requests.options` with netkit inside."""
    return request("options", url, **kwargs)


def head(url: str, **kwargs: Any) -> requests.Response:
    """`requests.head` with netkit inside; like requests' it does not follow redirects unless told to."""
    kwargs.setdefault("allow_redirects", False)
    return request("head", url, **kwargs)


def post(url: str, data: Any = None, json: Any = None, **kwargs: Any) -> requests.Response:
    """`requests.post` with netkit inside."""
    return request("post", url, data=data, json=json, **kwargs)


def put(url: str, data: Any = None, **kwargs: Any) -> requests.Response:
    """`requests.put` with netkit inside."""
    return request("put", url, data=data, **kwargs)


def patch(url: str, data: Any = None, **kwargs: Any) -> requests.Response:
    """`requests.patch` with netkit inside."""
    return request("patch", url, data=data, **kwargs)


def delete(url: str, **kwargs: Any) -> requests.Response:
    """`requests.delete` with netkit inside."""
    return request("delete", url, **kwargs)


def session() -> Session:
    """`requests.session`: a new `netkit.Session`."""
    return Session()
