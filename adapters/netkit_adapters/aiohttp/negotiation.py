"""The first connection to an origin: aiohttp's connector opens it, and the protocol that the server chose uses it.

Rules of this file:

- One request negotiates; the others of a cold burst wait for its outcome, each no longer than its connect timeout.
- h2: the engine takes the connection over. HTTP/1.1: the connector keeps it, idle. No handshake is made for nothing.
- What fails is aiohttp's own failure, from its own code, proxies included; it is not remembered. Who waited then goes
  on to aiohttp.
- Which protocol a server speaks is a fact of the server: HTTP/1.1 is remembered by host and port, whatever the TLS
  settings.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import ClientTimeout, TCPConnector
from aiohttp.helpers import ceil_timeout

from netkit import fork
from netkit_adapters.aiohttp.messages import copy_of
from netkit_adapters.aiohttp.pool import DrivenConnector

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

    from netkit.http2 import Engine, H2Request

__all__ = ["Negotiation"]

REMEMBER: Final = 600.0
"""Seconds for which a server that chose HTTP/1.1 is not asked again."""

LIMIT: Final = 4096
_create_connection: Final = TCPConnector._create_connection


class Negotiation:
    """What is known of the origins of one session."""

    def __init__(self) -> None:
        self.http2: set[Any] = set()
        """Keys whose server chose HTTP/2: the engine opens further connections by itself."""
        self.http1: dict[tuple[str, int], float] = {}
        self._asking: dict[Any, asyncio.Future[bool | None]] = {}
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._asking = {}

    def knows_http1(self, host: str, port: int) -> bool:
        until = self.http1.get((host, port))
        return until is not None and time.monotonic() < until

    def remember_http1(self, target: H2Request) -> None:
        if len(self.http1) >= LIMIT:
            self.http1.clear()
        self.http2.discard(target.key)
        self.http1[(target.connect.host, target.connect.port)] = time.monotonic() + REMEMBER

    async def ask(self, engine: Engine, req: Any, target: H2Request, timeout: ClientTimeout) -> bool | None:
        """Whether the server speaks HTTP/2; None where that could not be found out by someone else's connection.

        Raises what aiohttp raises when it cannot connect.
        """
        loop, key = asyncio.get_running_loop(), target.key
        while key not in self.http2 and not self.knows_http1(target.connect.host, target.connect.port):
            asking = self._asking.get((loop, key))
            if asking is None:
                return await self._lead(engine, req, target, timeout)
            limits = [limit for limit in (timeout.connect, timeout.sock_connect) if limit]
            try:
                async with asyncio.timeout(min(limits) if limits else None):
                    if await asyncio.shield(asking) is None:
                        return None
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {req.url}") from error
        return key in self.http2

    async def _lead(self, engine: Engine, req: Any, target: H2Request, timeout: ClientTimeout) -> bool:
        place = (asyncio.get_running_loop(), target.key)
        future = self._asking[place] = place[0].create_future()
        outcome: bool | None = None
        try:
            protocol = await _open(req, target, timeout)
            outcome = self._settle(engine, req, target, protocol)
            return outcome
        except asyncio.CancelledError:
            # The next in line leads.
            outcome = False
            raise
        finally:
            self._asking.pop(place, None)
            future.set_result(outcome)

    def _settle(self, engine: Engine, req: Any, target: H2Request, protocol: ResponseHandler) -> bool:
        transport: Any = protocol.transport
        tls = None if transport is None else transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            if len(self.http2) >= LIMIT:
                self.http2.clear()
            self.http2.add(target.key)
            _adopt(engine, target, protocol)
            return True
        self.remember_http1(target)
        _keep(req, protocol)
        return False


async def _open(req: Any, target: H2Request, timeout: ClientTimeout) -> ResponseHandler:
    """A new connection, as `BaseConnector.connect` makes one, with both protocols on offer."""
    connector = req._session._connector
    asking = copy_of(req)
    asking._ssl = target.connect.ssl or True
    for trace in req._traces:
        await trace.send_connection_create_start()
    try:
        async with ceil_timeout(timeout.connect, timeout.ceil_threshold):
            protocol = await _create_connection(connector, asking, req._traces, timeout)
    except TimeoutError as error:
        raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {req.url}") from error
    except (aiohttp.ClientConnectorError, aiohttp.ClientConnectorCertificateError) as error:
        # It names the TLS settings: the user's, not those that the offer was made with.
        error._conn_key = req.connection_key
        raise
    for trace in req._traces:
        await trace.send_connection_create_end()
    if connector._closed:
        protocol.close()
        raise aiohttp.ClientConnectionError("Connector is closed.")
    return protocol


def _adopt(engine: Engine, target: H2Request, protocol: ResponseHandler) -> None:
    """Hand the transport, and what has arrived on it, over to the engine."""
    transport: Any = protocol.transport
    received, protocol._tail = protocol._tail, b""
    protocol.transport = None
    engine.reactor(asyncio.get_running_loop()).pool(target).dialer.take_over(transport, received)


def _keep(req: Any, protocol: ResponseHandler) -> None:
    """Check the connection in where aiohttp looks for one first."""
    connector, key = req._session._connector, req.connection_key
    if isinstance(connector, DrivenConnector):
        connector._netkit_pool.opened_ahead(protocol, key)
    connector._acquired.add(protocol)
    connector._release(key, protocol)
