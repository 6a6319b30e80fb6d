"""Opening a connection: happy eyeballs, Unix sockets, CONNECT tunnels, TLS with ALPN; and the name of each failure.

Rules of this file:

- Whatever fails here failed before the request was sent: the verdict is always NOT_SENT.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from aiohappyeyeballs import start_connection

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.options import ConnectSpec, ProxySpec

__all__ = ["dial", "dial_failure"]

_MAX_HEAD: Final = 64 << 10


async def dial(spec: ConnectSpec, factory: Callable[[], asyncio.BaseProtocol]) -> tuple[Any, Any]:
    """Connect as `spec` says; returns (transport, protocol). The transport's "ssl_object" tells what ALPN chose."""
    loop = asyncio.get_running_loop()
    if spec.proxy is not None:
        transport, protocol = await _through_proxy(loop, spec, spec.proxy, factory)
    elif spec.unix_path is not None:
        name = (spec.server_hostname or spec.host) if spec.ssl else None
        transport, protocol = await loop.create_unix_connection(
            factory, spec.unix_path, ssl=spec.ssl, server_hostname=name
        )
    else:
        name = (spec.server_hostname or spec.host) if spec.ssl else None
        transport, protocol = await _tcp(loop, spec, spec.host, spec.port, spec.ssl, name, factory)
    return transport, protocol


async def _tcp(
    loop: asyncio.AbstractEventLoop,
    spec: ConnectSpec,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    server_hostname: str | None,
    factory: Callable[[], asyncio.BaseProtocol],
) -> tuple[Any, Any]:
    sock = await _connect(loop, spec, host, port)
    _socket_options(sock, spec)
    return await loop.create_connection(factory, sock=sock, ssl=context, server_hostname=server_hostname)


async def _connect(loop: asyncio.AbstractEventLoop, spec: ConnectSpec, host: str, port: int) -> socket.socket:
    """A connected socket. Not asyncio's own race of addresses: cancelled at the wrong moment it loses a socket."""
    local = None
    if spec.local_address is not None:
        local = await _addresses(loop, *spec.local_address)
    addresses = await _addresses(loop, host, port)
    return await start_connection(
        addresses, local_addr_infos=local, happy_eyeballs_delay=spec.happy_eyeballs_delay, loop=loop
    )


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
    try:
        address = ipaddress.ip_address(host)
        if "%" in host:
            raise ValueError("the interface's number is for the resolver to find")
    except ValueError:
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    where = (host, port, 0, 0) if address.version == 6 else (host, port)
    return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]


def _socket_options(sock: Any, spec: ConnectSpec) -> None:
    with contextlib.suppress(OSError):
        if spec.tcp_keepalive is not None:
            idle, interval, probes = spec.tcp_keepalive
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", probes)):
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, (idle + interval * probes) * 1000)
    for level, option, value in spec.socket_options:
        sock.setsockopt(level, option, value)


class _Tunnel(asyncio.Protocol):
    """Reads the head of a proxy's answer to CONNECT."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.head: asyncio.Future[bytes] = loop.create_future()
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if self.head.done():
            return
        if end >= 0:
            self.head.set_result(self._data[:end])
        elif len(self._data) > _MAX_HEAD:
            self.head.set_exception(_ProxyError("the proxy's answer to CONNECT is too long"))

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.head.done():
            self.head.set_exception(_ProxyError("the proxy closed the connection"))


class _ProxyError(Exception):
    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


async def _through_proxy(
    loop: asyncio.AbstractEventLoop, spec: ConnectSpec, proxy: ProxySpec, factory: Callable[[], asyncio.BaseProtocol]
) -> tuple[Any, Any]:
    name = proxy.host if proxy.ssl else None
    tunnel = _Tunnel(loop)
    transport, _ = await _tcp(loop, spec, proxy.host, proxy.port, proxy.ssl, name, lambda: tunnel)
    try:
        host = f"[{spec.host}]" if ":" in spec.host else spec.host
        lines = [f"CONNECT {host}:{spec.port} HTTP/1.1", f"Host: {host}:{spec.port}"]
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        lines += [f"{key}: {value}" for key, value in proxy.headers]
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        status_line = (await tunnel.head).split(b"\r\n", 1)[0].split(b" ", 2)
        status = int(status_line[1]) if len(status_line) > 1 and status_line[1].isdigit() else 0
        if not 200 <= status < 300:
            reason = status_line[2].decode("latin-1") if len(status_line) > 2 else ""
            raise _ProxyError(f"the proxy refused CONNECT: {status} {reason}".rstrip(), status)
        protocol = factory()
        if spec.ssl is None:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return transport, protocol
        secure = await loop.start_tls(
            transport, protocol, spec.ssl, server_hostname=spec.server_hostname or spec.host
        )
        protocol.connection_made(secure)  # type: ignore[arg-type]
        return secure, protocol
    except BaseException:
        transport.abort()
        raise


def dial_failure(error: BaseException, spec: ConnectSpec) -> TransportError:
    """The neutral error for a failed dial; its message names host and port, no credentials."""
    where = spec.unix_path or f"{spec.host}:{spec.port}"
    details: dict[str, Any] = {}
    kind = FailureKind.CONNECT
    if isinstance(error, ssl.SSLCertVerificationError):
        kind = FailureKind.CERTIFICATE
    elif isinstance(error, ssl.SSLError):
        kind = FailureKind.TLS
    elif isinstance(error, _ProxyError):
        kind = FailureKind.PROXY
        details["status"] = error.status
    elif isinstance(error, socket.gaierror):
        kind = FailureKind.DNS
    elif isinstance(error, TimeoutError):
        kind = FailureKind.CONNECT_TIMEOUT
    elif isinstance(error, ConnectionResetError) and spec.ssl is not None:
        kind = FailureKind.TLS
    text = "timed out" if kind is FailureKind.CONNECT_TIMEOUT else str(error) or type(error).__name__
    message = f"cannot connect to {where}: {text}"
    failure = TransportError(message, kind=kind, verdict=Verdict.NOT_SENT, **details)
    failure.__cause__ = error
    return failure
