"""The addresses behind a name, asked for again from time to time.

Rules of this file:

- One caller asks; the others go on with what was known. A name that cannot be resolved keeps its last addresses, and
  before its first is used as it is: the transport's own error is then the caller's.
"""

from __future__ import annotations

import ipaddress
import random
import socket
from typing import Final

from netkit.runtime import Runtime
from netkit_plugins.balance.service import Target

__all__ = ["REFRESH", "Addresses"]

REFRESH: Final = 30.0
SPREAD: Final = 0.1
MAX_ADDRESSES: Final = 256


class Addresses:
    """Of one endpoint's name."""

    def __init__(self, target: Target, interval: float) -> None:
        self._named = target
        self._interval = interval
        self._next = 0.0
        self._asking = False
        self.fixed = _is_address(target.host)
        self.targets: tuple[Target, ...] = (target,)

    def is_due(self, now: float) -> bool:
        return not self.fixed and not self._asking and now >= self._next

    async def refresh(self, runtime: Runtime) -> bool:
        """Ask again; whether the addresses are others now."""
        self._asking = True
        try:
            found = await runtime.offload(_resolve, self._named.host, self._named.port)
        except OSError:
            found = ()
        finally:
            self._asking = False
            self._next = runtime.now() + self._interval * random.uniform(1 - SPREAD, 1 + SPREAD)
        known = {target.key: target for target in self.targets if target is not self._named}
        made = tuple(Target(self._named.endpoint, address) for address in found)
        if not made or {target.key for target in made} == known.keys():
            return False
        self.targets = tuple(known.get(target.key, target) for target in made)
        return True


def _resolve(host: str, port: int) -> tuple[str, ...]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(info[4][0]) for info in found))[:MAX_ADDRESSES]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
