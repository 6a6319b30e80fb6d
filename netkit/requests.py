"""The namespace of requests with netkit inside: `from netkit import requests`."""

from typing import TYPE_CHECKING

from netkit._mirror import mirror

if TYPE_CHECKING:
    from requests import *  # noqa: F403
    from netkit_adapters.requests import *  # noqa: F403

mirror(__name__, "requests", "netkit_adapters.requests")
