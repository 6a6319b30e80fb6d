"""What a storage is to the layer, the one in memory, and how the others are found.

Rules of this file:

- A storage never fails a call: what cannot be read is not there, what cannot be written is not kept.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from netkit import fork
from netkit.plugins import Context
from netkit.shared import is_redis_url
from netkit_plugins.cache.entry import Entry
from netkit_plugins.cache.options import CacheOptions

__all__ = ["Memory", "Storage", "StorageStats", "open_storage"]


class StorageStats(msgspec.Struct, frozen=True):
    """Entries and bytes held, as far as this process knows, and entries that it let go before their time."""

    entries: int = 0
    bytes: int = 0
    evictions: int = 0


class Storage(Protocol):
    """Where entries are kept, by keys of 24 bytes."""

    def now(self) -> float:
        """Seconds of the clock by which entries age."""
        ...

    async def secret(self) -> bytes | None:
        """32 bytes with which keys are made: the same for all who share the storage, None while it is away."""
        ...

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """What is known under each key, however old."""
        ...

    async def put(self, entries: Sequence[tuple[bytes, Entry]]) -> None: ...

    def stats(self) -> StorageStats: ...

    def close(self) -> None:
        """Let go of files and connections; the next use opens them anew."""
        ...


class Memory:
    """Entries of this session, the longest unused let go first."""

    def __init__(self, max_bytes: int, now: Any) -> None:
        self._max_bytes = max_bytes
        self.now = now
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._bytes = self._evictions = 0
        self._secret = os.urandom(32)
        self._lock = threading.Lock()
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    async def secret(self) -> bytes:
        return self._secret

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        entries = self._entries
        found = []
        with self._lock:
            for key in keys:
                entry = entries.get(key)
                if entry is not None:
                    entries.move_to_end(key)
                found.append(entry)
        return found

    async def put(self, entries: Sequence[tuple[bytes, Entry]]) -> None:
        with self._lock:
            for key, entry in entries:
                before = self._entries.pop(key, None)
                if before is not None:
                    self._bytes -= before.size
                if entry.size <= self._max_bytes:
                    self._entries[key] = entry
                    self._bytes += entry.size
            while self._bytes > self._max_bytes:
                _, gone = self._entries.popitem(last=False)
                self._bytes -= gone.size
                self._evictions += 1

    def stats(self) -> StorageStats:
        return StorageStats(entries=len(self._entries), bytes=self._bytes, evictions=self._evictions)

    def close(self) -> None:
        """What is known stays known, for a session that is used again."""

    def __repr__(self) -> str:
        return f"<Memory {self.stats()}>"


def open_storage(options: CacheOptions, context: Context) -> Storage:
    """The storage that `options` names. Raises `ConfigError` for one that cannot be used here at all."""
    keep = options.ttl + options.stale_if_error
    if is_redis_url(options.storage):
        from netkit_plugins.cache.redis_storage import RedisStorage

        return RedisStorage(options.storage, context.runtime, keep=keep)
    if options.storage.startswith("sqlite:"):
        from netkit_plugins.cache.sqlite_storage import SqliteStorage

        path = options.storage.removeprefix("sqlite:")
        return SqliteStorage(path, context.runtime, keep=keep, max_bytes=options.max_bytes)
    return Memory(options.max_bytes, context.runtime.now)
