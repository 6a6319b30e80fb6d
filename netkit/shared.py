"""State that several processes share through Redis, and what happens while Redis is away.

Example::

    shared = SharedRedis("redis://cache.internal/0")
    count = shared.run(lambda redis: redis.incr("netkit:calls"))               # blocks; RedisAway when it is gone
    count = await shared.ask(runtime, lambda redis: redis.incr("k"), None)     # off the loop; None when it is gone
    shared.post(lambda redis: redis.incr("netkit:calls"))                      # nobody waits for it

Rules of this file:

- Redis never fails anybody's call, and holds none up for longer than `TIMEOUT` (twice that for a new connection).
- After a failure nothing is asked for `PAUSE` seconds; then one caller tries, and the others still do without.
- One warning tells of an outage. Neither it nor anything else here shows a password.
- A forked child has connections and a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from netkit import fork
from netkit.errors import ConfigError, NetkitError

if TYPE_CHECKING:
    from netkit.runtime import Runtime

__all__ = ["RedisAway", "SharedRedis", "is_redis_url"]

T = TypeVar("T")
log = logging.getLogger("netkit.shared")

TIMEOUT: Final = 0.25
"""Seconds for connecting, and for each answer."""

PAUSE: Final = 5.0
"""Seconds without a try after one has failed."""

MAX_POSTED: Final = 1000
"""Posted work that may wait for its turn; what comes on top is dropped."""

SCHEMES: Final = ("redis", "rediss", "unix")


class RedisAway(NetkitError):
    """Redis did not answer, or did not a moment ago. The caller goes on with what its own process knows."""


def is_redis_url(storage: str) -> bool:
    """Whether `storage` is redis://host:port/db, rediss://… (TLS) or unix:///path?db=0."""
    return storage.partition("://")[0] in SCHEMES and "://" in storage


class SharedRedis:
    """One Redis, as long as it is there. Safe from any thread; connects when it is first asked.

    Raises `ConfigError` when the redis package is not installed or the URL cannot be read. `pause` is the seconds
    for which nothing is tried after a failure.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT, pause: float = PAUSE) -> None:
        try:
            import redis
        except ModuleNotFoundError as error:
            raise ConfigError("a redis storage needs: pip install 'netkit-http[redis]'") from error
        self.location = _location(url)
        """Where it is, without user, password and options."""
        self._url = url
        self._timeout = timeout
        self._pause = pause
        self._failures = (redis.RedisError, OSError)
        self._client: Any = None
        self._worker: ThreadPoolExecutor | None = None
        self._posted = 0
        self._away = False
        self._retry_at = 0.0
        # Entered again by a collector that runs inside it and ends a body.
        self._lock = threading.RLock()
        try:
            # Made and dropped: a wrong option in the URL shows only here, and must not do so in somebody's call.
            places = self._connect_nowhere().connection_pool
            places.connection_class(**places.connection_kwargs)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"not a redis URL: {self.location}") from error
        fork.register(self)

    @property
    def is_away(self) -> bool:
        """Whether the last try failed. False before the first."""
        return self._away

    def run(self, function: Callable[[Any], T]) -> T:
        """What `function(client)` returns; the client is a `redis.Redis` that gives bytes. Blocks, not for long.

        Raises `RedisAway` when Redis does not answer, refuses the command, or failed less than `pause` seconds ago.
        """
        if not self._may_try():
            raise RedisAway(f"redis at {self.location} is away")
        try:
            result = function(self._client or self._connect_nowhere())
        except self._failures as error:
            self._went(error)
            raise RedisAway(f"redis at {self.location} is away: {type(error).__name__}") from None
        if self._away:
            self._came_back()
        return result

    async def ask(self, runtime: Runtime, function: Callable[[Any], T], otherwise: T) -> T:
        """As `run`, off the caller's loop; `otherwise` while Redis is away, at once and without leaving the loop."""
        if self._away and time.monotonic() < self._retry_at:
            return otherwise
        return await runtime.offload(self._run_or, function, otherwise)

    def post(self, function: Callable[[Any], Any], otherwise: Callable[[], Any] | None = None) -> None:
        """Run `function(client)` soon, in a thread of this object's own and in the order of posting.

        It neither waits nor raises. Where Redis is away, or too much is posted already, `otherwise()` is called
        instead, in this thread or that one.
        """
        if self._submit(function, otherwise) or otherwise is None:
            return
        otherwise()

    def _submit(self, function: Callable[[Any], Any], otherwise: Callable[[], Any] | None) -> bool:
        with self._lock:
            if self._posted >= MAX_POSTED or (self._away and time.monotonic() < self._retry_at):
                return False
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="netkit-redis")
            try:
                self._worker.submit(self._run_posted, function, otherwise)
            except RuntimeError:  # the interpreter is going down
                return False
            self._posted += 1
            return True

    def close(self) -> None:
        """Close the connections once what was posted is done. Using it again connects anew."""
        with self._lock:
            worker, self._worker = self._worker, None
            client, self._client = self._client, None
        close = client.close if client is not None else _nothing
        if worker is None:
            close()
            return
        try:
            worker.submit(close)
        except RuntimeError:  # the interpreter is going down
            close()
        worker.shutdown(wait=False)

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        self._client = self._worker = None
        self._posted = 0

    def _connect_nowhere(self) -> Any:
        """The client; it opens a connection for its first command."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        with self._lock:
            if self._client is None:
                # One more try at once for a connection that died of old age; never for one that timed out.
                self._client = redis.Redis.from_url(
                    self._url,
                    socket_timeout=self._timeout,
                    socket_connect_timeout=self._timeout,
                    retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
                )
                # The URL's options come last, and bytes are what is promised.
                self._client.connection_pool.connection_kwargs["decode_responses"] = False
            return self._client

    def _may_try(self) -> bool:
        if not self._away:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._retry_at:
                return False
            self._retry_at = now + self._pause
            return True

    def _run_or(self, function: Callable[[Any], T], otherwise: T) -> T:
        try:
            return self.run(function)
        except RedisAway:
            return otherwise

    def _run_posted(self, function: Callable[[Any], Any], otherwise: Callable[[], Any] | None) -> None:
        with self._lock:
            self._posted -= 1
        try:
            try:
                self.run(function)
            except RedisAway:
                if otherwise is not None:
                    otherwise()
        except Exception:
            log.exception("netkit: posted work for redis at %s failed", self.location)

    def _went(self, error: Exception) -> None:
        with self._lock:
            new, self._away = not self._away, True
            self._retry_at = time.monotonic() + self._pause
        if new and _may_warn(self.location):
            # The error's own text may quote the URL or the password: its type says enough.
            log.warning(
                "netkit: redis at %s is away (%s): this process goes on by itself and looks again every %g s",
                self.location,
                type(error).__name__,
                self._pause,
            )

    def _came_back(self) -> None:
        with self._lock:
            new, self._away = self._away, False
        if new:
            log.info("netkit: redis at %s is back", self.location)

    def __repr__(self) -> str:
        return f"<SharedRedis {self.location} {'away' if self._away else 'here'}>"


def _nothing() -> None:
    pass


_WARN_AGAIN: Final = 60.0
_warned: dict[str, float] = {}
_warned_lock = fork.lock()


def _may_warn(location: str) -> bool:
    """One warning per place and minute in the whole process, however many sessions share it and often it flaps."""
    now = time.monotonic()
    with _warned_lock:
        if now - _warned.get(location, -_WARN_AGAIN) < _WARN_AGAIN:
            return False
        if len(_warned) >= 256:
            _warned.clear()
        _warned[location] = now
        return True


def _location(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "a malformed URL"
    return f"{parts.scheme}://{host}{parts.path}"
