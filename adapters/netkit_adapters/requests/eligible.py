"""Which requests HTTP/2 may serve under requests: those that requests' own, untouched machinery would have sent.

Rules of this file:

- An `HTTPAdapter` with ordinary settings. A subclass, a patch of requests, urllib3 or http.client, or a setting that
  netkit does not know: the adapter itself.
- Asked for each request: settings are looked at, nothing is opened or read.
"""

from __future__ import annotations

import http.client
import io
from typing import Any, Final

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3 import HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool

from netkit.green import threads_are_green

__all__ = ["is_eligible"]


def _seams() -> tuple[Any, ...]:
    return (
        HTTPAdapter.send,
        HTTPAdapter.get_connection_with_tls_context,
        HTTPAdapter.build_response,
        requests.Response.__init__,
        HTTPConnectionPool.urlopen,
        HTTPConnectionPool._make_request,
        HTTPConnectionPool._get_conn,
        HTTPConnectionPool.ConnectionCls,
        HTTPSConnectionPool.urlopen,
        HTTPSConnectionPool._make_request,
        HTTPSConnectionPool._get_conn,
        HTTPSConnectionPool.ConnectionCls,
        PoolManager.connection_from_host,
        PoolManager.connection_from_pool_key,
        HTTPConnection.connect,
        HTTPConnection.request,
        HTTPConnection.getresponse,
        HTTPSConnection.connect,
        HTTPSConnection.request,
        http.client.HTTPConnection.putrequest,
        http.client.HTTPConnection.endheaders,
        http.client.HTTPConnection.getresponse,
    )


_ORIGINALS: Final = _seams()
"""Where mocking libraries take hold; compared for each request with what stood there at import."""

_POOL_KEYWORDS: Final = frozenset({"maxsize", "block", "socket_options"})


def is_eligible(adapter: Any, body: Any, timeout: Any) -> bool:
    """Whether a request with this prepared body and timeout may go past `adapter`.

    requests has words, or ways, of its own for timeouts that it refuses and for files in text mode; green threads
    wait in ways that the engine's loop cannot wake.
    """
    return (
        _is_stock(adapter)
        and _seams() == _ORIGINALS
        and not threads_are_green()
        and _is_timeout(timeout)
        and not _is_text(body)
    )


def _is_stock(adapter: Any) -> bool:
    """A plain HTTPAdapter whose retries and pool settings are requests' own."""
    if type(adapter) is not HTTPAdapter or "send" in adapter.__dict__:
        return False
    retries = adapter.max_retries
    return (
        retries.total == 0
        and retries.read is False
        and adapter.poolmanager.connection_pool_kw.keys() <= _POOL_KEYWORDS
    )


def _is_timeout(value: Any) -> bool:
    """What requests accepts as a timeout without a word."""
    if isinstance(value, tuple):
        return len(value) == 2 and all(not isinstance(part, tuple) and _is_timeout(part) for part in value)
    if isinstance(value, (int, float)):
        return not isinstance(value, bool) and value > 0
    return value is None or isinstance(value, urllib3.Timeout)


def _is_text(body: Any) -> bool:
    """A file in text mode: its length in characters is what requests takes for its length."""
    return hasattr(body, "read") and isinstance(body, io.TextIOBase)
