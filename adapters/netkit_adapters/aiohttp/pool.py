"""Driving aiohttp's connectors: what netkit's pool options mean for aiohttp.

Rules of this file:

- The connector keeps and hands out the sockets. The driver counts, asks the policy, and drops what must not be
  reused.
- Only a `TCPConnector` that the session made for itself is driven. One that the caller passed, or shares between
  sessions, is only counted.
- A connector belongs to one loop and is touched in that loop alone; counting it from elsewhere only reads.
"""

from __future__ import annotations

import asyncio
import re
import select
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import attr
from aiohttp import ServerDisconnectedError, TCPConnector
from aiohttp.client import DEFAULT_TIMEOUT
from aiohttp.client_exceptions import ClientOSError
from aiohttp.client_proto import ResponseHandler

from netkit import fork
from netkit.pooling import ConnectionPolicy, PoolCounts, SocketSettings
from netkit.stats import Counter
from netkit_adapters.aiohttp.connectors import abandon

if TYPE_CHECKING:
    from aiohttp import BaseConnector, ClientRequest, ClientResponse, ClientTimeout
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

__all__ = ["NEW_CONNECTION", "AiohttpPool", "DrivenConnector", "reused"]

_now = time.monotonic
_KEEP_ALIVE: Final = re.compile(r"(?:^|[,;\s])timeout\s*=\s*\"?(\d+)", re.IGNORECASE)
_FOR_EVER: Final = 10 * 365 * 86400.0
"""Seconds. None would mean the same to the latest aiohttp, and nothing to those before."""
NEW_CONNECTION: Final = "_netkit_new_connection"
"""Attribute of a native request that must not go over a connection that is open already."""


class _Life:
    """What netkit knows of one connection; `reused_after` is the idle time before the present request, if any."""

    __slots__ = ("born", "origin", "requests", "reused_after")

    def __init__(self, origin: str) -> None:
        self.born = _now()
        self.origin = origin
        self.requests = 1
        self.reused_after: float | None = None


def _life(protocol: Any) -> _Life | None:
    return getattr(protocol, "_netkit_life", None)


def _origin(key: ConnectionKey) -> str:
    host = f"[{key.host}]" if ":" in key.host else key.host
    scheme = "https" if key.is_ssl else "http"
    return f"{scheme}://{host}" if key.port is None else f"{scheme}://{host}:{key.port}"


class DrivenConnector(TCPConnector):
    """A session's own connector with the driver told of every check-out and check-in."""

    _netkit_pool: AiohttpPool
    _netkit_native: tuple[int, Any]
    """aiohttp's own limit and keep-alive time, for when netkit lets go."""
    _netkit_afresh = False

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        # aiohttp asks for an idle connection before it waits for anything: nobody comes between here and there.
        self._netkit_afresh = NEW_CONNECTION in req.__dict__
        return await super().connect(req, traces, timeout)

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        afresh, self._netkit_afresh = self._netkit_afresh, False
        if afresh:
            return None
        if self._netkit_pool.select(self, key):
            # Opened ahead of its first request, which was told so.
            traces = []
        return await super()._get(key, traces)

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        self._netkit_pool.returned(protocol)
        super()._release(key, protocol, should_close=should_close)
        self._netkit_pool.trim(self, key)

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> ResponseHandler:
        pool = self._netkit_pool
        protocol = await super()._create_connection(req, traces, pool.limits(timeout))
        pool.opened(protocol, _origin(req.connection_key))
        return protocol


def reused(req: ClientRequest | None) -> bool:
    """Whether the connection on which `req` failed had served another request before."""
    life = _life(getattr(getattr(req, "response", None), "_protocol", None))
    return life is not None and life.requests > 1


class AiohttpPool:
    """`netkit.pooling.NativePool` for the connectors of one session."""

    supports = frozenset(
        {"max_idle", "idle_timeout", "max_lifetime", "max_requests", "connect_timeout", "tcp_keepalive"}
    )

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._connectors: weakref.WeakSet[BaseConnector] = weakref.WeakSet()
        self._settings: SocketSettings | None = None
        self._policy: ConnectionPolicy | None = None
        self.opened_total = Counter()
        self._stale = self._other = 0
        if not own:
            self.supports = frozenset()
            fork.register(self)

    def after_fork_in_child(self) -> None:
        """A connector that the caller made stays with the parent's loop: here it is closed, unsaid.

        aiohttp would send on the parent's sockets, and have the parent's loop watch new ones. The connectors that a
        session made for itself are the care of its `LoopViews`.
        """
        for connector in list(self._connectors):
            if connector._conns or connector._acquired or connector._loop.is_running():
                abandon(connector)
                connector._closed = True

    def configure(self, settings: SocketSettings, policy: ConnectionPolicy) -> None:
        self._settings = settings
        self._policy = policy
        for connector in list(self._connectors):
            self._drive(connector)

    def adopt(self, connector: BaseConnector) -> None:
        """Count `connector` from now on, and drive it if it is the session's own."""
        self._connectors.add(connector)
        if self._policy is not None:
            self._drive(connector)

    def succeed(self, other: AiohttpPool) -> None:
        """Take over the connectors of a session whose settings are replaced."""
        for connector in list(other._connectors):
            if isinstance(connector, DrivenConnector):
                connector.__class__ = TCPConnector  # type: ignore[assignment]
                connector._limit, connector._keepalive_timeout = connector.__dict__.pop("_netkit_native")
                connector.__dict__.pop("_netkit_pool", None)
            self.adopt(connector)
        for _ in range(other.opened_total.value):
            self.opened_total.add()
        self._stale += other._stale
        self._other += other._other

    def _drive(self, connector: BaseConnector) -> None:
        if not self._own or type(connector) is not TCPConnector:
            return
        native = connector._limit, connector._keepalive_timeout
        connector.__class__ = DrivenConnector
        assert isinstance(connector, DrivenConnector)
        connector._netkit_pool, connector._netkit_native = self, native
        # netkit's queue stands in front: a second one behind it would starve what the first lets through. Idle time
        # is the policy's to judge.
        connector._limit, connector._keepalive_timeout = 0, _FOR_EVER

    def select(self, connector: TCPConnector, key: ConnectionKey) -> bool:
        """Leave the freshest usable idle connection for `key` in front, where aiohttp takes it; drop the unusable.

        True where it has not served a request yet.
        """
        idle = connector._conns.get(key)
        if not idle:
            return False
        now, origin = _now(), _origin(key)
        while idle:
            protocol, since = idle.pop()
            if self._usable(protocol, origin, now, now - since):
                idle.appendleft((protocol, since))
                life = _life(protocol)
                return life is not None and life.requests == 1
        return False

    def _usable(self, protocol: ResponseHandler, origin: str, now: float, idle: float) -> bool:
        if not protocol.is_connected() or _readable(protocol):
            self._stale += 1
            protocol.close()
            if self._policy is not None:
                self._policy.died(origin, idle)
            return False
        life = _life(protocol)
        if life is None or self._policy is None:
            return True
        if self._policy.discard_reason(origin, idle=idle, age=now - life.born, requests=life.requests):
            self._other += 1
            protocol.close()
            return False
        life.reused_after = idle
        life.requests += 1
        return True

    def returned(self, protocol: ResponseHandler) -> None:
        """A connection comes back; one that was reused and died without an answer teaches the policy."""
        life = _life(protocol)
        if life is None or life.reused_after is None:
            return
        idle, life.reused_after = life.reused_after, None
        if self._policy is not None and isinstance(protocol.exception(), (ServerDisconnectedError, ClientOSError)):
            self._policy.died(life.origin, idle)

    def trim(self, connector: TCPConnector, key: ConnectionKey) -> None:
        """Close the longest idle connections beyond `max_idle`."""
        idle = connector._conns.get(key)
        if idle is None or self._settings is None:
            return
        while len(idle) > self._settings.max_idle:
            idle.popleft()[0].close()
            self._other += 1
        if not idle:
            del connector._conns[key]

    def limits(self, timeout: ClientTimeout) -> ClientTimeout:
        """`connect_timeout` takes effect where the caller left aiohttp's own default."""
        if timeout is DEFAULT_TIMEOUT and self._settings is not None and self._settings.connect_timeout is not None:
            return attr.evolve(timeout, sock_connect=self._settings.connect_timeout)
        return timeout

    def opened(self, protocol: ResponseHandler, origin: str) -> None:
        self.opened_total.add()
        protocol._netkit_life = _Life(origin)  # type: ignore[attr-defined]
        transport = protocol.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None and self._settings is not None:
            for option in self._settings.socket_options:
                sock.setsockopt(*option)

    def opened_ahead(self, protocol: ResponseHandler, key: ConnectionKey) -> None:
        """A connection that was opened to learn the server's protocol; its first request comes next."""
        self.opened(protocol, _origin(key))
        protocol._netkit_life.requests = 0  # type: ignore[attr-defined]

    def answered(self, native: ClientResponse) -> None:
        """A response head arrived."""
        life = _life(getattr(native, "_protocol", None))
        if life is None or self._policy is None:
            return
        if life.reused_after is not None:
            self._policy.reused(life.origin, life.reused_after)
            life.reused_after = None
        hint = native.headers.get("Keep-Alive")
        if hint and (match := _KEEP_ALIVE.search(hint)):
            self._policy.keep_alive_hint(life.origin, float(match[1]))

    def counts(self) -> PoolCounts:
        idle = in_use = 0
        for connector in list(self._connectors):
            if not connector.closed:
                idle += sum(1 for _, protocol, _ in list(_idle(connector)) if protocol.is_connected())
                in_use += sum(1 for protocol in list(connector._acquired) if isinstance(protocol, ResponseHandler))
        return PoolCounts(
            open=idle + in_use,
            idle=idle,
            in_use=in_use,
            opened_total=self.opened_total.value,
            discarded_stale=self._stale,
            discarded_other=self._other,
        )

    def sweep(self) -> int:
        """Close what the policy would not reuse. In other loops that happens later, uncounted."""
        closed, running = 0, asyncio._get_running_loop()
        for connector in list(self._connectors):
            if not isinstance(connector, DrivenConnector) or connector.closed or connector._loop.is_closed():
                continue
            if connector._loop is running:
                closed += self.sweep_connector(connector)
            else:
                connector._loop.call_soon_threadsafe(self.sweep_connector, connector)
        return closed

    def sweep_connector(self, connector: TCPConnector) -> int:
        if self._policy is None:
            return 0
        closed, now = 0, _now()
        for key, idle in list(connector._conns.items()):
            origin = _origin(key)
            kept = [
                (protocol, since) for protocol, since in idle if not self._sweeps(protocol, origin, now, now - since)
            ]
            closed += len(idle) - len(kept)
            idle.clear()
            idle.extend(kept)
            if not kept:
                del connector._conns[key]
        return closed

    def _sweeps(self, protocol: ResponseHandler, origin: str, now: float, idle: float) -> bool:
        assert self._policy is not None
        life = _life(protocol)
        if not protocol.is_connected():
            self._stale += 1
            self._policy.died(origin, idle)
        elif life is not None and self._policy.discard_reason(
            origin, idle=idle, age=now - life.born, requests=life.requests
        ):
            self._other += 1
        else:
            return False
        protocol.close()
        return True

    def describe(self) -> dict[str, Any]:
        if not self._own:
            why = "the session's connector was made by the caller, and stays as it is"
            return dict.fromkeys(("max_idle", "idle_timeout", "max_lifetime", "max_requests", "tcp_keepalive"), why)
        return {
            "max_idle": "per origin and TLS settings, in aiohttp's connector",
            "idle_timeout": "asked before each reuse, and by the sweep",
            "max_lifetime": "asked before each reuse, and by the sweep",
            "max_requests": "asked before each reuse",
            "connect_timeout": "sock_connect, where the session and the call have aiohttp's default timeout",
            "tcp_keepalive": "set on each socket after it is connected",
            "happy_eyeballs": "aiohttp's own",
        }


def _idle(connector: BaseConnector) -> Iterator[tuple[ConnectionKey, ResponseHandler, float]]:
    for key, idle in list(connector._conns.items()):
        for protocol, since in list(idle):
            yield key, protocol, since


_HANG_UP: Final[int] = getattr(select, "POLLRDHUP", 0)


def _readable(protocol: ResponseHandler) -> bool:
    """Whether an idle socket has something to say that the loop has not looked at yet: its end, or bytes that nobody
    asked for. Under TLS bytes prove nothing (session tickets come late), so only the end counts there."""
    transport = protocol.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if transport is None or sock is None:
        return False
    wanted = _HANG_UP if transport.get_extra_info("ssl_object") is not None else _HANG_UP | select.POLLIN
    if not wanted:
        return False
    try:
        poll = select.poll()
        poll.register(sock.fileno(), wanted)
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):
        # No such call on this platform, or no descriptor behind this transport: aiohttp's own check has to do.
        return False
