"""Entries in Redis: shared by processes and machines; while it is away every call is a miss."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from netkit.runtime import Runtime
from netkit.shared import SharedRedis
from netkit_plugins.cache.entry import Entry, seal, unseal
from netkit_plugins.cache.storage import StorageStats

__all__ = ["RedisStorage"]

PREFIX: Final = b"netkit:cache:1:"
SECRET: Final = b"netkit:cache:secret"


class RedisStorage:
    """`keep`: seconds after which Redis drops an entry. Its own `maxmemory` bounds how many there are."""

    def __init__(self, url: str, runtime: Runtime, *, keep: float) -> None:
        self._shared = SharedRedis(url)
        self._runtime = runtime
        self._milliseconds = max(1, int(keep * 1000))
        self._secret: bytes | None = None
        self.now = time.time

    async def secret(self) -> bytes | None:
        if self._secret is None:
            self._secret = await self._shared.ask(self._runtime, _secret_of, None)
        return self._secret

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        nothing: list[Any] = [None] * len(keys)
        secret = self._secret
        if secret is None:
            return nothing
        sealed = await self._shared.ask(
            self._runtime, lambda redis: redis.mget([PREFIX + key for key in keys]), nothing
        )
        return [unseal(key, content, secret) for key, content in zip(keys, sealed, strict=True)]

    async def put(self, entries: Sequence[tuple[bytes, Entry]]) -> None:
        secret = self._secret
        if secret is not None:
            await self._shared.ask(self._runtime, lambda redis: self._write(redis, entries, secret), None)

    def _write(self, redis: Any, entries: Sequence[tuple[bytes, Entry]], secret: bytes) -> None:
        with redis.pipeline(transaction=False) as pipeline:
            for key, entry in entries:
                pipeline.set(PREFIX + key, seal(key, entry, secret), px=self._milliseconds)
            pipeline.execute()

    def stats(self) -> StorageStats:
        """Redis knows by itself what it holds."""
        return StorageStats()

    def close(self) -> None:
        self._shared.close()

    def __repr__(self) -> str:
        return f"<RedisStorage {self._shared.location}>"


def _secret_of(redis: Any) -> bytes | None:
    redis.set(SECRET, os.urandom(32), nx=True)
    found = redis.get(SECRET)
    # Of another making: then nothing of ours is there, and nothing is put there.
    return found if isinstance(found, bytes) and len(found) == 32 else None
