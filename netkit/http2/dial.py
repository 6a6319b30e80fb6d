"""Opening a connection: happy eyeballs, Unix sockets, CONNECT tunnels, TLS with ALPN; and the name of each failure.

Rules of this file:

- Whatever fails here failed before the request was sent: the verdict is always NOT_SENT.
- Whoever is cancelled here leaves no socket behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aiohappyeyeballs import start_connection

from netkit.errors import FailureKind, TransportError, Verdict
from netkit.http2.line import Line
from netkit.http2.options import ConnectSpec, ProxySpec
from netkit.http2.transport import SocketTransport

if TYPE_CHECKING:
    from netkit.http2.connection import Connection

__all__ = ["dial", "dial_failure"]

_MAX_HEAD: Final = 64 << 10
_WITHOUT_READERS: Final[Any] = getattr(asyncio, "ProactorEventLoop", ())
"""Windows' own loop watches no sockets: there asyncio's transport serves."""


async def dial(
    spec: ConnectSpec, factory: Callable[[], Connection], keepalive: tuple[int, int, int] | None = None
) -> tuple[Any, Any]:
    """Connect as `spec` says; returns (transport, protocol). The transport's "ssl_object" tells what ALPN chose.

    `keepalive`: seconds idle, seconds between probes, probes.
    """
    loop = asyncio.get_running_loop()
    sock = await _open(loop, spec, keepalive)
    try:
        line = Line(loop, sock)
        if spec.proxy is not None:
            await _tunnel(line, spec, spec.proxy)
        name = spec.server_hostname or spec.host
        if isinstance(loop, _WITHOUT_READERS):
            if line.tls is not None:
                raise _ProxyError("TLS inside TLS needs a selector event loop")
            hostname = name if spec.ssl is not None else None
            made = await loop.create_connection(factory, sock=sock, ssl=spec.ssl, server_hostname=hostname)
            return made[0], made[1]
        if spec.ssl is not None:
            await line.secure(spec.ssl, name)
        protocol = factory()
        return SocketTransport(loop, sock, protocol, line.tls, line.early), protocol
    except BaseException:
        sock.close()
        raise


async def _open(
    loop: asyncio.AbstractEventLoop, spec: ConnectSpec, keepalive: tuple[int, int, int] | None
) -> socket.socket:
    """A connected socket: to the server, or to its proxy."""
    if spec.unix_path is not None and spec.proxy is None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, spec.unix_path)
        except BaseException:
            sock.close()
            raise
        return sock
    where = spec if spec.proxy is None else spec.proxy
    sock = await _connect(loop, spec, where.host, where.port)
    _socket_options(sock, spec, keepalive)
    return sock


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


def _socket_options(sock: Any, spec: ConnectSpec, keepalive: tuple[int, int, int] | None) -> None:
    with contextlib.suppress(OSError):
        if keepalive is not None:
            idle, interval, probes = keepalive
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", probes)):
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, (idle + interval * probes) * 1000)
    for level, option, value in spec.socket_options:
        sock.setsockopt(level, option, value)


class _ProxyError(Exception):
    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


async def _tunnel(line: Line, spec: ConnectSpec, proxy: ProxySpec) -> None:
    """Ask the proxy for a way through to the server."""
    if proxy.ssl is not None:
        await line.secure(proxy.ssl, proxy.host)
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    lines = [f"CONNECT {host}:{spec.port} HTTP/1.1", f"Host: {host}:{spec.port}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    lines += [f"{key}: {value}" for key, value in proxy.headers]
    await line.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    head = b""
    while (end := head.find(b"\r\n\r\n")) < 0:
        if len(head) > _MAX_HEAD:
            raise _ProxyError("the proxy's answer to CONNECT is too long")
        received = await line.receive()
        if not received:
            raise _ProxyError("the proxy closed the connection")
        head += received
    line.early = head[end + 4 :]
    status_line = head[:end].split(b"\r\n", 1)[0].split(b" ", 2)
    status = int(status_line[1]) if len(status_line) > 1 and status_line[1].isdigit() else 0
    if not 200 <= status < 300:
        reason = status_line[2].decode("latin-1") if len(status_line) > 2 else ""
        raise _ProxyError(f"the proxy refused CONNECT: {status} {reason}".rstrip(), status)


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
