"""The namespace of httpx with netkit inside: `from netkit import httpx`."""

from typing import TYPE_CHECKING

from netkit._mirror import mirror

if TYPE_CHECKING:
    from httpx import *  # noqa: F403
    from netkit_adapters.httpx import *  # noqa: F403

mirror(__name__, "httpx", "netkit_adapters.httpx")
