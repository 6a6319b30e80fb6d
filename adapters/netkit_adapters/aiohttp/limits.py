"""Time limits: `ClientTimeout` as layers see it, and limits that a layer has made shorter.

Rules of this file:

- aiohttp's own limits stay in charge: a layer can shorten them for one attempt, never lengthen them.
- `total` of a `ClientTimeout` spans redirects and the body; netkit cuts an attempt short by its own clock.
- aiohttp has no limit for writing, so `write` is bounded by `total` alone.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import ClientTimeout

from netkit.messages import Timeout

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientResponse
    from aiohttp.connector import Connection

__all__ = ["bound_body", "send_within", "shorter", "timeout_of"]

_known: dict[ClientTimeout, Timeout] = {}


def timeout_of(native: ClientTimeout) -> Timeout:
    """`native` in netkit's terms. Equal limits give the same object, so that a change shows by identity."""
    known = _known.get(native)
    if known is None:
        if len(_known) >= 256:
            _known.clear()
        connects = [limit for limit in (native.connect, native.sock_connect) if limit]
        known = _known[native] = Timeout(
            connect=min(connects) if connects else None,
            read=native.sock_read or None,
            pool=native.connect or None,
            total=native.total or None,
        )
    return known


def shorter(wanted: float | None, given: float | None) -> float | None:
    """`wanted` where it is stricter than `given`."""
    return wanted if wanted is not None and (given is None or wanted < given) else None


async def send_within(
    req: ClientRequest,
    handler: Callable[[ClientRequest], Awaitable[ClientResponse]],
    wanted: Timeout,
    given: Timeout,
) -> ClientResponse:
    """Send `req`, a copy that is netkit's own, under the limits in which `wanted` is stricter than `given`."""
    loop = req.loop
    total, read = shorter(wanted.total, given.total), shorter(wanted.read, given.read)
    connects = shorter(wanted.connect, given.connect), shorter(wanted.pool, given.pool)
    started = loop.time()
    ends = None if total is None else started + total
    first = min((started + limit for limit in (*connects, total) if limit is not None), default=None)
    send: Any = req.send
    writing = False

    async def send_connected(connection: Connection) -> ClientResponse:
        nonlocal writing
        writing = True
        scope.reschedule(ends)
        if read is not None and connection.protocol is not None:
            connection.protocol.read_timeout = read
        native: ClientResponse = await send(connection)
        return native

    req.__dict__["send"] = send_connected
    try:
        async with asyncio.timeout_at(first) as scope:
            native = await handler(req)
    except TimeoutError as error:
        if not scope.expired():
            raise
        if not writing:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {req.url}") from error
        raise aiohttp.ServerTimeoutError(f"No answer in time from host {req.url}") from error
    finally:
        del req.__dict__["send"]
    if ends is not None:
        bound_body(native, ends)
    return native


def bound_body(native: ClientResponse, ends: float) -> None:
    """Fail the rest of the body when `ends` comes; the timer goes with the connection."""
    connection = native._connection
    if connection is None:
        return
    timer = native._loop.call_at(ends, _expire, weakref.ref(native))
    connection.add_callback(timer.cancel)


def _expire(reference: Any) -> None:
    native: ClientResponse | None = reference()
    if native is not None and not native.content.is_eof():
        native.content.set_exception(aiohttp.SocketTimeoutError("Timeout on reading data from socket"))
        native.close()
