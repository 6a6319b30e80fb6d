"""Certificates of one server: a fresh authority, a server certificate, one for clients (trustme)."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Certificates"]

_NAMES = ("127.0.0.1", "localhost", "::1")


class Certificates:
    """Written into `directory`: `ca_file` (trust this), `client_file` (certificate and key of a client, PEM)."""

    def __init__(self, directory: Path, hostnames: Iterable[str] = (), *, host: str = "127.0.0.1") -> None:
        import trustme

        self._authority = trustme.CA(organization_name="netkit mock GPU")
        names: dict[str, None] = dict.fromkeys([*_NAMES, *hostnames, *([host] if _is_specific(host) else [])])
        self._server = self._authority.issue_cert(*names)
        self.ca_file = str(directory / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca_file)
        self.client_file = str(directory / "client.pem")
        self._authority.issue_cert("client@netkit.test").private_key_and_cert_chain_pem.write_to_path(
            self.client_file
        )

    def server_context(self, protocols: list[str], *, client_certificate: str) -> ssl.SSLContext:
        """A server's context that offers `protocols` by ALPN; `client_certificate`: "no", "optional", "required"."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        context.set_alpn_protocols(protocols)
        if client_certificate != "no":
            self._authority.configure_trust(context)
            required = client_certificate == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


def _is_specific(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return bool(host)
