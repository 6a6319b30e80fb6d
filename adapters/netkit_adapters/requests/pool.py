"""Driving urllib3's connection pools: what netkit's pool options mean for requests.

Rules of this file:

- urllib3 keeps and hands out the sockets. The driver counts, asks the policy, and drops what must not be reused.
- Only requests' own `HTTPAdapter`, untouched, is driven: adapters of other classes are the user's business. Sizes
  are changed only on the adapters that netkit's session mounted itself.
- Whatever fails before the request's first byte is marked, so that the verdict can be NOT_SENT.
- Letting go leaves urllib3 as it was found: its own classes, its own sizes, open connections still open.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import pool_classes_by_scheme

from netkit import fork
from netkit.pooling import ConnectionPolicy, PoolCounts, SocketSettings
from netkit.runtime import checkpoint, interruptible
from netkit.stats import Counter
from netkit_adapters.requests.errors import NOT_SENT_MARK, REUSED_MARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import PoolManager

__all__ = ["RequestsPool", "idle_connections"]

_now = time.monotonic
_left_behind: list[Any] = []
ORIGINS_KEPT: Final = 100
"""Origins whose pools a netkit session keeps (urllib3's own number is 10; it closes the least recently used)."""


FRESH_SECONDS: Final = 1.0
LIFE: Final = "_netkit_life"
DRIVER: Final = "_netkit_driver"
SIZES: Final = "_netkit_sizes"
"""Attributes on urllib3's connections and requests' adapters: a weak dictionary costs more than the look-up saves.
The sizes are those that an adapter had before netkit set its own."""


class _Life:
    """What netkit knows of one urllib3 connection: `None` times mean not connected, not idle."""

    __slots__ = ("born", "idle_since", "requests", "reused_after")

    def __init__(self) -> None:
        self.born: float | None = None
        self.idle_since: float | None = None
        self.reused_after: float | None = None
        self.requests = 0


def _life_of(connection: Any) -> _Life:
    life: _Life = connection.__dict__[LIFE]
    return life


class _DrivenPool(HTTPConnectionPool):
    """urllib3's pool for one origin, with the driver told of every check-out and check-in."""

    def __init__(self, driver: RequestsPool, host: str, port: int | None = None, **kwargs: Any) -> None:
        super().__init__(host, port, **kwargs)
        self._netkit_driver = driver
        self._netkit_origin = f"{self.scheme}://{host}" + (f":{port}" if port else "")
        self._netkit_unused: deque[tuple[float, Any]] = deque()
        driver.know(driver.pools, self)

    def _netkit_fresh(self) -> Any:
        """A connection on which nothing was sent yet. TLS 1.3 has put tickets on it, which urllib3, looking for
        something to read, takes for the peer's goodbye: it goes past that check, while it is young."""
        try:
            opened, connection = self._netkit_unused.popleft()
        except IndexError:
            return super()._get_conn()
        if _now() - opened > FRESH_SECONDS:
            connection.close()
        # It takes a place of the queue, where urllib3 will want to put it back.
        try:
            place = None if self.pool is None else self.pool.get(block=False)
        except Empty:
            place = None
        if place is not None:
            place.close()
        return connection

    def close(self) -> None:
        while self._netkit_unused:
            self._netkit_unused.popleft()[1].close()
        super().close()

    def __str__(self) -> str:
        # It stands in users' error messages and logs: the name they know.
        return f"HTTP{'S' if self.scheme == 'https' else ''}ConnectionPool(host={self.host!r}, port={self.port!r})"

    def _get_conn(self, timeout: float | None = None) -> Any:
        connection = self._netkit_fresh() if self._netkit_unused else super()._get_conn(timeout)
        self._netkit_driver.checked_out(self._netkit_origin, connection)
        return connection

    def _put_conn(self, conn: Any) -> None:
        if conn is not None:
            self._netkit_driver.checked_in(conn)
        super()._put_conn(conn)

    def _validate_conn(self, conn: Any) -> None:
        # Nothing of the request is on the wire until this returns.
        try:
            self._netkit_driver.connect(conn, super()._validate_conn)
            checkpoint()
        except BaseException as error:
            setattr(error, NOT_SENT_MARK, True)
            raise

    def _make_request(self, conn: Any, *args: Any, **kwargs: Any) -> Any:
        driver, life = self._netkit_driver, _life_of(conn)
        try:
            with interruptible(partial(_shut, conn)):
                response = super()._make_request(conn, *args, **kwargs)
        except BaseException as error:
            setattr(error, REUSED_MARK, life.requests > 0)
            if life.reused_after is not None and _is_lost(error):
                driver.died(self._netkit_origin, life.reused_after)
            raise
        life.requests += 1
        driver.answered(self._netkit_origin, life, response.headers)
        return response

    def _netkit_release(self) -> None:
        while self._netkit_unused:
            self._netkit_unused.popleft()[1].close()
        released: Any = self
        released.__class__ = HTTPSConnectionPool if isinstance(self, HTTPSConnectionPool) else HTTPConnectionPool


def idle_connections(pool: HTTPConnectionPool) -> list[Any]:
    """Those in a pool's queue that are open; also where it has just been released."""
    queue = pool.pool
    if queue is None:
        return []
    with queue.mutex:
        return [connection for connection in queue.queue if connection is not None and connection.sock]


def _shut(connection: Any) -> None:
    """Wake whoever reads from it, from another thread; the socket stays theirs to close."""
    with suppress(OSError, TypeError):
        # Not an SSLSocket's own shutdown, which takes its state away from under the reader.
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, (ConnectionError, OSError)) and not isinstance(error, TimeoutError)


class _DrivenHTTPSPool(_DrivenPool, HTTPSConnectionPool):
    """The same over TLS."""


def _drive_again(pool: HTTPConnectionPool, driver: RequestsPool) -> None:
    """A pool that another driver has let go of."""
    driven: Any = pool
    driven.__class__ = _DrivenHTTPSPool if isinstance(pool, HTTPSConnectionPool) else _DrivenPool
    driven._netkit_driver = driver
    driver.know(driver.pools, driven)


class RequestsPool:
    """`netkit.pooling.NativePool` for the adapters of one session."""

    supports = frozenset(
        {"max_idle", "idle_timeout", "max_lifetime", "max_requests", "connect_timeout", "tcp_keepalive"}
    )

    def __init__(self) -> None:
        self.pools: weakref.WeakSet[_DrivenPool] = weakref.WeakSet()
        self.connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._adopted: weakref.WeakSet[BaseAdapter] = weakref.WeakSet()
        self._own: weakref.WeakSet[BaseAdapter] = weakref.WeakSet()
        self._settings: SocketSettings | None = None
        self._policy: ConnectionPolicy | None = None
        self._lock: Any = threading.RLock()
        self._thread = threading.local()
        self._released = False
        self.opened_total, self._stale, self._other = Counter(), Counter(), Counter()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        """Start afresh: the parent's descriptors are closed here, unsaid, and each adapter makes new pools."""
        self._lock = threading.RLock()
        for connection in list(self.connections):
            if connection.sock is not None:
                connection.sock.close()
                connection.sock = None
        # The old pools are kept, never used. urllib3 empties their queues at exit, and a thread that is not here may
        # have locked them.
        _left_behind.extend(self.pools)
        for pool in self.pools:
            if pool.pool is not None:
                pool.pool.mutex._at_fork_reinit()  # type: ignore[attr-defined]
        self.pools, self.connections = weakref.WeakSet(), weakref.WeakSet()
        adopted, self._adopted = list(self._adopted), weakref.WeakSet()
        for adapter in adopted:
            delattr(adapter, DRIVER)
            if type(adapter) is HTTPAdapter:
                _left_behind.append(adapter.poolmanager)
                adapter.__setstate__(adapter.__getstate__())
                (self.own if adapter in self._own else self.adopt)(adapter)

    def configure(self, settings: SocketSettings, policy: ConnectionPolicy) -> None:
        self._settings = settings
        self._policy = policy
        for adapter in self._all(self._own):
            self._size(adapter)

    def own(self, adapter: BaseAdapter) -> None:
        """Name an adapter that netkit's session made itself, whose sizes it may set."""
        self.know(self._own, adapter)
        if self._settings is not None:
            self._size(adapter)
        self.adopt(adapter)

    def adopt(self, adapter: BaseAdapter) -> None:
        """Drive the pools that `adapter` makes from now on. Called before each use; the first time counts."""
        if getattr(adapter, DRIVER, None) is self or self._released:
            return
        setattr(adapter, DRIVER, self)
        self.know(self._adopted, adapter)
        if type(adapter) is not HTTPAdapter:
            return
        self._drive(adapter.poolmanager)
        adapter.proxy_manager = _ProxyManagers(self, adapter.proxy_manager)

    def know(self, known: weakref.WeakSet[Any], thing: Any) -> None:
        """Add to a set that other threads read through `_all`."""
        with self._lock:
            known.add(thing)

    def _all(self, known: weakref.WeakSet[Any]) -> list[Any]:
        with self._lock:
            return list(known)

    def release(self) -> None:
        """Let go of every adapter, for good: from now on urllib3 drives its pools by itself. Open connections stay
        open. What is sent later through an answer of before (digest authentication's second leg) drives nothing."""
        self._released = True
        for adapter in self._all(self._adopted):
            if getattr(adapter, DRIVER, None) is not self:
                continue
            delattr(adapter, DRIVER)
            if type(adapter) is not HTTPAdapter:
                continue
            self._size_natively(adapter)
            if isinstance(adapter.proxy_manager, _ProxyManagers):
                adapter.proxy_manager = dict(adapter.proxy_manager)
            for manager in (adapter.poolmanager, *adapter.proxy_manager.values()):
                if isinstance(manager.pool_classes_by_scheme, _DrivenClasses):
                    manager.pool_classes_by_scheme = pool_classes_by_scheme
        for pool in self._all(self.pools):
            pool._netkit_release()
        with self._lock:
            self._adopted, self._own = weakref.WeakSet(), weakref.WeakSet()
            self.pools, self.connections = weakref.WeakSet(), weakref.WeakSet()

    def succeed(self, other: RequestsPool) -> None:
        """Take over from the driver of a session whose settings are replaced: its adapters with their open
        connections, and its counts."""
        adopted, own = other._all(other._adopted), other._all(other._own)
        pools, connections = other._all(other.pools), other._all(other.connections)
        other.release()
        for adapter in adopted:
            (self.own if adapter in own else self.adopt)(adapter)
        for pool in pools:
            _drive_again(pool, self)
        for connection in connections:
            self.know(self.connections, connection)
        for mine, theirs in zip(self._counters(), other._counters(), strict=True):
            for _ in range(theirs.value):
                mine.add()

    def _counters(self) -> tuple[Counter, Counter, Counter]:
        return self.opened_total, self._stale, self._other

    def _drive(self, manager: PoolManager) -> None:
        if manager.pool_classes_by_scheme is not pool_classes_by_scheme:
            return  # SOCKS, or somebody's own: their classes connect in their own way
        manager.pool_classes_by_scheme = _DrivenClasses(
            http=partial(_DrivenPool, self), https=partial(_DrivenHTTPSPool, self)
        )

    def _size(self, adapter: BaseAdapter) -> None:
        assert self._settings is not None
        if type(adapter) is not HTTPAdapter:
            return
        from urllib3.connection import HTTPConnection

        keywords = adapter.poolmanager.connection_pool_kw
        if SIZES not in adapter.__dict__:
            setattr(adapter, SIZES, (dict(keywords), adapter._pool_maxsize, adapter.poolmanager.pools._maxsize))
        keywords["maxsize"] = self._settings.max_idle
        keywords["socket_options"] = [*HTTPConnection.default_socket_options, *self._settings.socket_options]
        adapter._pool_maxsize = self._settings.max_idle
        adapter.poolmanager.pools._maxsize = ORIGINS_KEPT

    def _size_natively(self, adapter: HTTPAdapter) -> None:
        sizes = adapter.__dict__.pop(SIZES, None)
        if sizes is not None:
            keywords = adapter.poolmanager.connection_pool_kw
            keywords.clear()
            native, adapter._pool_maxsize, adapter.poolmanager.pools._maxsize = sizes
            keywords.update(native)

    def checked_out(self, origin: str, connection: Any) -> None:
        """urllib3 hands a connection out: new, idle and usable, or idle and found closed (then without socket)."""
        life: _Life | None = connection.__dict__.get(LIFE)
        if life is None:
            life = connection.__dict__[LIFE] = _Life()
            self.know(self.connections, connection)
        since, life.idle_since, life.reused_after = life.idle_since, None, None
        if since is None or life.born is None:
            return
        now = _now()
        idle = now - since
        if not connection.sock:
            self._stale.add()
            life.born = None
            if self._policy is not None:
                self._policy.died(origin, idle)
            return
        reason = getattr(self._thread, "afresh", False) or (
            self._policy
            and self._policy.discard_reason(origin, idle=idle, age=now - life.born, requests=life.requests)
        )
        if reason:
            self._other.add()
            life.born = None
            connection.close()
        else:
            life.reused_after = idle

    @contextmanager
    def afresh(self) -> Iterator[None]:
        """What this thread sends inside goes over no connection that is open already."""
        self._thread.afresh = True
        try:
            yield
        finally:
            self._thread.afresh = False

    def opened_elsewhere(self, pool: Any, connection: Any) -> None:
        """A connection that was opened to see which protocol the server chooses, which was HTTP/1.1."""
        self.checked_out("", connection)
        self.opened_total.add()
        _life_of(connection).born = _now()
        if isinstance(pool, _DrivenPool):
            pool._netkit_unused.append((_now(), connection))
        else:
            connection.close()

    def checked_in(self, connection: Any) -> None:
        _life_of(connection).idle_since = _now() if connection.sock else None

    def connect(self, connection: Any, validate: Any) -> None:
        """Open the socket if there is none, within `connect_timeout` where the caller set no limit."""
        if connection.sock:
            validate(connection)
            return
        limit = self._settings.connect_timeout if self._settings is not None else None
        unlimited = connection.timeout is None
        if unlimited and limit is not None:
            connection.timeout = limit
        try:
            validate(connection)
            if not connection.sock:
                connection.connect()
        finally:
            if unlimited:
                connection.timeout = None
        if unlimited and connection.sock:
            connection.sock.settimeout(None)
        self.opened_total.add()
        life = _life_of(connection)
        life.born, life.requests = _now(), 0

    def died(self, origin: str, idle: float) -> None:
        if self._policy is not None:
            self._policy.died(origin, idle)

    def answered(self, origin: str, life: _Life, headers: Any) -> None:
        if self._policy is None:
            return
        if life.reused_after is not None:
            self._policy.reused(origin, life.reused_after)
        hint = headers.get("keep-alive")
        if hint:
            seconds = _keep_alive_seconds(hint)
            if seconds is not None:
                self._policy.keep_alive_hint(origin, seconds)

    def counts(self) -> PoolCounts:
        idle = sum(len(idle_connections(pool)) for pool in self._all(self.pools))
        alive = sum(1 for connection in self._all(self.connections) if connection.sock)
        return PoolCounts(
            open=alive,
            idle=idle,
            in_use=max(0, alive - idle),
            opened_total=self.opened_total.value,
            discarded_stale=self._stale.value,
            discarded_other=self._other.value,
        )

    def sweep(self) -> int:
        """Close idle connections that the policy would refuse; they stay in urllib3's queue, without a socket."""
        if self._policy is None:
            return 0
        closed, now = 0, _now()
        for pool, connection, life in list(self._idle()):
            if life.idle_since is None or life.born is None:
                continue
            reason = self._policy.discard_reason(
                pool._netkit_origin, idle=now - life.idle_since, age=now - life.born, requests=life.requests
            )
            if reason and self._close_idle(pool, connection):
                closed += 1
                self._other.add()
        return closed

    def _idle(self) -> Iterator[tuple[_DrivenPool, Any, _Life]]:
        for pool in self._all(self.pools):
            for connection in idle_connections(pool):
                life = connection.__dict__.get(LIFE)
                if life is not None:  # None: of a pool that was released a moment ago
                    yield pool, connection, life

    def _close_idle(self, pool: _DrivenPool, connection: Any) -> bool:
        queue = pool.pool
        if queue is None:
            return False
        with queue.mutex:
            # Under the queue's own lock nobody can check it out between the look and the close.
            if connection not in queue.queue or not connection.sock:
                return False
            connection.close()
            _life_of(connection).born = None
            return True

    def describe(self) -> dict[str, Any]:
        return {
            "max_connections": "netkit's queue in front of urllib3",
            "max_queue": "netkit's queue in front of urllib3",
            "acquire_timeout": "netkit's queue in front of urllib3",
            "max_idle": "urllib3 maxsize, on the adapters that netkit mounts",
            "tcp_keepalive": "urllib3 socket_options, on the adapters that netkit mounts",
            "happy_eyeballs": "does not apply: urllib3 tries addresses one after the other",
            "warm": "does not apply: urllib3 opens a connection only for a request",
        }

    def __repr__(self) -> str:
        return f"<RequestsPool {self.counts()}>"


class _DrivenClasses(dict[str, Any]):
    """A manager's classes by scheme, while it is driven."""


class _ProxyManagers(dict[str, Any]):
    """An adapter's proxy managers; each new one is driven as it is added."""

    def __init__(self, driver: RequestsPool, known: dict[str, Any]) -> None:
        super().__init__(known)
        self._driver = driver
        for manager in known.values():
            driver._drive(manager)

    def __setitem__(self, proxy: str, manager: Any) -> None:
        self._driver._drive(manager)
        super().__setitem__(proxy, manager)


def _keep_alive_seconds(value: str) -> float | None:
    for part in value.split(","):
        name, _, number = part.strip().partition("=")
        if name.lower() == "timeout" and number.strip().isdigit():
            return float(number)
    return None
