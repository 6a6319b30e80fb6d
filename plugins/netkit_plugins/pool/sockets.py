"""The socket options that keep a pooled connection honest: keep-alive probes, and an end to unacknowledged data.

A connection whose peer vanished without a word (a pulled cable, a load balancer that forgot it) looks open for ever.
Probes find out while it idles; TCP_USER_TIMEOUT finds out while data is under way, where no probe is sent (RFC 5482).
"""

from __future__ import annotations

import socket

from netkit_plugins.pool.options import PoolOptions

__all__ = ["socket_options"]

DEFAULT = (60, 15, 4)


def socket_options(options: PoolOptions) -> tuple[tuple[int, int, int], ...]:
    """(level, option, value) triples; what this platform does not have is left out."""
    if options.tcp_keepalive is False:
        return ()
    idle, interval, probes = DEFAULT if options.tcp_keepalive is True else options.tcp_keepalive
    found = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    # macOS calls the idle time TCP_KEEPALIVE.
    idle_name = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    for name, value in (
        (idle_name, idle),
        ("TCP_KEEPINTVL", interval),
        ("TCP_KEEPCNT", probes),
        # Milliseconds; as long as the probes would take, so that both give up at the same moment.
        ("TCP_USER_TIMEOUT", (idle + interval * probes) * 1000),
    ):
        number = getattr(socket, name, None)
        if number is not None:
            found.append((socket.IPPROTO_TCP, number, value))
    return tuple(found)
