"""The namespace of httpx2 with netkit inside: `from netkit import httpx2`."""

from typing import TYPE_CHECKING

from netkit._mirror import mirror

if TYPE_CHECKING:
    from httpx2 import *  # noqa: F403
    from netkit_adapters.httpx2 import *  # noqa: F403

mirror(__name__, "httpx2", "netkit_adapters.httpx2")
