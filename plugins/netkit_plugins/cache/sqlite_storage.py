"""Entries in an SQLite file: they survive restarts, and several processes share them.

Rules of this file:

- Everything here runs off the loop, under one lock per storage; another process's lock is waited for `BUSY` seconds.
- A file that is not ours, or is torn, is left as it is: nothing is read from it, nothing is written, and one warning
  says so.
- A forked child opens the file anew, and never touches the connection that it inherited.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from netkit import fork
from netkit.errors import ConfigError
from netkit.runtime import Runtime
from netkit_plugins.cache.entry import Entry, seal, unseal
from netkit_plugins.cache.storage import StorageStats

__all__ = ["SqliteStorage"]

T = TypeVar("T")
log = logging.getLogger("netkit.cache")

APPLICATION: Final = 0x6E6B6301
"""In the file's header (PRAGMA application_id): it is ours, in this form."""

BUSY: Final = 0.25
TOUCH: Final = 60.0
"""Seconds within which a second use of an entry is not written down."""

SCHEMA: Final = """
CREATE TABLE secret (value BLOB NOT NULL);
CREATE TABLE entries (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL, expires REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_use ON entries (used);
CREATE INDEX by_expiry ON entries (expires);
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER counted AFTER INSERT ON entries
    BEGIN UPDATE totals SET entries = entries + 1, bytes = bytes + NEW.size; END;
CREATE TRIGGER uncounted AFTER DELETE ON entries
    BEGIN UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.size; END;
"""

_inherited: Final[list[Any]] = []
"""Connections of a parent process: closing one here could take away its locks."""


class SqliteStorage:
    """`keep`: seconds after which an entry is dropped; `max_bytes`: what all of them may take."""

    def __init__(self, path: str, runtime: Runtime, *, keep: float, max_bytes: int) -> None:
        self._path = Path(path).expanduser().absolute()
        self._runtime = runtime
        self._keep = keep
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._secret: bytes | None = None
        self._refused = False
        self._entries = self._bytes = self._evictions = 0
        self._lock = threading.Lock()
        self.now = time.time
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cache.storage: no directory for {self._path}: {error.strerror}") from error
        fork.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    async def secret(self) -> bytes | None:
        if self._secret is None and not self._refused:
            await self._ask(lambda connection: None, None)
        return self._secret

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        return await self._ask(lambda connection: self._read(connection, keys), [None] * len(keys))

    async def put(self, entries: Sequence[tuple[bytes, Entry]]) -> None:
        await self._ask(lambda connection: self._write(connection, entries), None)

    async def _ask(self, function: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        return otherwise if self._refused else await self._runtime.offload(self._run, function, otherwise)

    def _run(self, function: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        with self._lock:
            try:
                return function(self._connection or self._open())
            except sqlite3.OperationalError as error:
                # Another process writes, the disk is full, the file was taken away: next time is another try.
                log.debug("netkit: cache file %s: %s", self._path, error)
                self._let_go()
            except (sqlite3.Error, OSError, TypeError, ValueError, _Foreign) as error:
                # TypeError, ValueError: SQLite keeps a text where a number belongs, if somebody put it there.
                self._refused = True
                self._let_go()
                log.warning("netkit: %s cannot be used as a cache, every call is a miss: %s", self._path, error)
        return otherwise

    def _open(self) -> sqlite3.Connection:
        # Made here, so that it, and what SQLite puts beside it, is nobody else's to read from the first moment on.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY, isolation_level=None, check_same_thread=False)
        try:
            self._secret = _prepared(connection)
            if stat.S_IMODE(self._path.stat().st_mode) & 0o077:
                self._path.chmod(0o600)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _read(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> list[Entry | None]:
        assert self._secret is not None
        now = time.time()
        found: list[Entry | None] = []
        touched = []
        for key in keys:
            row = connection.execute("SELECT value, used FROM entries WHERE key = ?", (key,)).fetchone()
            entry = None if row is None else unseal(key, row[0], self._secret)
            if entry is not None and abs(now - row[1]) > TOUCH:
                touched.append((now, key))
            found.append(entry)
        if touched:
            try:
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany("UPDATE entries SET used = ? WHERE key = ?", touched)
            except sqlite3.OperationalError:
                # Somebody else writes: it is used all the same.
                pass
        return found

    def _write(self, connection: sqlite3.Connection, entries: Sequence[tuple[bytes, Entry]]) -> None:
        assert self._secret is not None
        now = time.time()
        rows = []
        for key, entry in entries:
            sealed = seal(key, entry, self._secret)
            if len(sealed) <= self._max_bytes:
                rows.append((key, sealed, len(sealed), now, now + self._keep))
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM entries WHERE key = ?", [row[:1] for row in rows])
            connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
            connection.execute(
                "DELETE FROM entries WHERE key IN (SELECT key FROM entries WHERE expires < ? LIMIT 64)", (now,)
            )
            self._shrink(connection)

    def _shrink(self, connection: sqlite3.Connection) -> None:
        while True:
            self._entries, self._bytes = connection.execute("SELECT entries, bytes FROM totals").fetchone()
            if self._bytes <= self._max_bytes:
                return
            gone, freed = [], 0
            for key, size in connection.execute("SELECT key, size FROM entries ORDER BY used LIMIT 256"):
                gone.append((key,))
                freed += size
                if self._bytes - freed <= self._max_bytes:
                    break
            if not gone:
                # The totals speak of entries that are not there: they begin anew.
                connection.execute("UPDATE totals SET entries = 0, bytes = 0")
            connection.executemany("DELETE FROM entries WHERE key = ?", gone)
            self._evictions += len(gone)

    def stats(self) -> StorageStats:
        """As of this process's last write."""
        return StorageStats(entries=self._entries, bytes=self._bytes, evictions=self._evictions)

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self._let_go()

    def __repr__(self) -> str:
        return f"<SqliteStorage {self._path} {self.stats()}>"


class _Foreign(Exception):
    """The file is somebody else's."""


def _prepared(connection: sqlite3.Connection) -> bytes:
    """The secret of the file; its tables are made if it is empty."""
    ours = _is_ours(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if not ours:
        with connection:
            # Of several processes that open a new file at once, one makes the tables.
            connection.execute("BEGIN IMMEDIATE")
            if not _is_ours(connection):
                for statement in _statements(SCHEMA):
                    connection.execute(statement)
                connection.execute("INSERT INTO secret VALUES (?)", (os.urandom(32),))
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
    (secret,) = connection.execute("SELECT value FROM secret").fetchone() or (b"",)
    if not isinstance(secret, bytes) or len(secret) != 32:
        raise _Foreign("its secret is gone")
    return secret


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Raises `_Foreign` for a file that is somebody else's, or of another version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application == APPLICATION:
        return True
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application or tables:
        raise _Foreign("it is another program's, or another version's")
    return False


def _statements(script: str) -> list[str]:
    statements, current = [], ""
    for piece in script.split(";"):
        current += piece + ";"
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return [statement for statement in statements if statement.strip(" \n;")]
