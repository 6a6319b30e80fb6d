"""A connection to the server: resolved, connected, secured, with how long each took; and the name of each failure."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, Final

from netkit.cli.doctor.target import Target

__all__ = ["Refusal", "Wire", "bundle", "connect", "trust"]

_CHUNK: Final = 64 << 10
_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""As `requests.Session.merge_environment_settings` reads them: the first that says something."""


class Refusal(Exception):
    """The server cannot be talked to; the message says why, for people."""


class Wire:
    """A socket, plain or with TLS. `tcp_seconds` is one round trip, `tls_seconds` one or two and some work."""

    def __init__(self, sock: socket.socket, address: str, tcp_seconds: float, tls_seconds: float | None) -> None:
        self.socket = sock
        self.address = address
        self.tcp_seconds = tcp_seconds
        self.tls_seconds = tls_seconds
        self.last_heard = time.monotonic()

    @property
    def tls_version(self) -> str | None:
        return self.socket.version() if isinstance(self.socket, ssl.SSLSocket) else None

    @property
    def protocol(self) -> str | None:
        """What ALPN chose; None where the server chose nothing."""
        return self.socket.selected_alpn_protocol() if isinstance(self.socket, ssl.SSLSocket) else None

    def receive(self, deadline: float) -> bytes:
        """Some bytes, b"" at the end. Raises TimeoutError at `deadline`, other OSErrors where it broke."""
        self.socket.settimeout(_until(deadline))
        data = self.socket.recv(_CHUNK)
        self.last_heard = time.monotonic()
        return data

    def send(self, data: bytes, deadline: float) -> None:
        self.socket.settimeout(_until(deadline))
        self.socket.sendall(data)

    def waiting(self, deadline: float) -> bool:
        """Whether something can be read by then."""
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        return bool(select.select([self.socket], [], [], max(0.0, deadline - time.monotonic()))[0])

    def close(self) -> None:
        self.socket.close()

    def __repr__(self) -> str:
        return f"<Wire to {self.address} {self.tls_version or 'plain'}>"


def _until(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def bundle() -> tuple[str, str] | None:
    """The variable that tells requests where certificates are, and what it says; None: none does."""
    return next(((name, os.environ[name]) for name in _BUNDLES if os.environ.get(name)), None)


def trust(place: str | None, *, said_by: str = "", insecure: bool = False) -> ssl.SSLContext:
    """The context of every connection, with the certificates of a file or folder; None: SSL_CERT_FILE's, else the
    system's. Raises `Refusal`, which names who said so, where `place` cannot be used."""
    folder = place is not None and os.path.isdir(place)
    try:
        context = ssl.create_default_context(cafile=None if folder else place, capath=place if folder else None)
    except (OSError, ssl.SSLError) as error:
        said = f"{said_by}: {place}" if said_by else place
        raise Refusal(f"{said}: no certificates can be read from it ({error.strerror or error})") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def connect(target: Target, context: ssl.SSLContext, protocols: list[str], deadline: float) -> Wire:
    """Connect, offering `protocols` by ALPN. Raises `Refusal`."""
    place = f"{target.host} port {target.port}"
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Refusal(f"{target.host}: the name is not known ({error.strerror or error})") from error
    sock, seconds = _first(found, place, deadline)
    address = str(sock.getpeername()[0])
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if target.scheme == "http":
        return Wire(sock, address, seconds, None)
    context.set_alpn_protocols(protocols)
    started = time.monotonic()
    try:
        sock.settimeout(_until(deadline))
        secured = context.wrap_socket(sock, server_hostname=target.host)
    except OSError as error:
        sock.close()
        raise Refusal(_tls_failure(error, place)) from error
    return Wire(secured, address, seconds, time.monotonic() - started)


def _first(found: Sequence[tuple[Any, ...]], place: str, deadline: float) -> tuple[socket.socket, float]:
    """The first address that answers, and how long it took."""
    failure: OSError = OSError("no address")
    for family, kind, number, _, address in found:
        sock = socket.socket(family, kind, number)
        try:
            sock.settimeout(_until(deadline))
            started = time.monotonic()
            sock.connect(address)
            return sock, time.monotonic() - started
        except OSError as error:
            sock.close()
            failure = error
    if isinstance(failure, TimeoutError):
        raise Refusal(f"{place}: no answer to the connect; a firewall, or the wrong address?") from failure
    if isinstance(failure, ConnectionRefusedError):
        raise Refusal(f"{place}: connection refused; does the server run, and on this port?") from failure
    raise Refusal(f"{place}: cannot connect ({failure.strerror or failure})") from failure


def _tls_failure(error: OSError, place: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or "verification failed"
        return f"{place}: the certificate is not trusted ({why}); --ca FILE names who signed it"
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"{place}: that is no TLS; is it http:// here?"
    if isinstance(error, TimeoutError):
        return f"{place}: connected, but nothing comes in the TLS handshake"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"{place}: the TLS handshake failed ({error.reason.replace('_', ' ').lower()})"
    return f"{place}: the connection ended in the TLS handshake; is it http:// here, or a client certificate needed?"
