"""The namespace of aiohttp with netkit inside: `from netkit import aiohttp`."""

from typing import TYPE_CHECKING

from netkit._mirror import mirror

if TYPE_CHECKING:
    from aiohttp import *  # noqa: F403
    from netkit_adapters.aiohttp import *  # noqa: F403

mirror(__name__, "aiohttp", "netkit_adapters.aiohttp")
