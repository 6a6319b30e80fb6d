"""The HTTP/2 engine: correct under cancel and load, for asyncio and for threads, independent of any HTTP stack.

Example::

    engine = Engine()                              # or SyncEngine() for threads
    exchange = await engine.send(H2Request(key, ConnectSpec(host, port, ssl=context), b"GET", host, b"/", []))
    body = await exchange.read()
"""

from __future__ import annotations

from netkit.http2.engine import Engine
from netkit.http2.exchange import Exchange
from netkit.http2.options import ConnectSpec, H2Request, Http1Only, Http2Options, ProxySpec
from netkit.http2.protocol import Code
from netkit.http2.reactor import EngineStats
from netkit.http2.sync_engine import SyncEngine
from netkit.http2.sync_exchange import SyncExchange

__all__ = [
    "Code",
    "ConnectSpec",
    "Engine",
    "EngineStats",
    "Exchange",
    "H2Request",
    "Http1Only",
    "Http2Options",
    "ProxySpec",
    "SyncEngine",
    "SyncExchange",
]
