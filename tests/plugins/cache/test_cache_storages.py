"""Storages that outlive the session: restarts, processes, forks, damage, and what is on the disk."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from netkit_plugins.cache.entry import Entry, seal, unseal
from netkit_plugins.cache.sqlite_storage import SqliteStorage

import netkit
from netkit.errors import ConfigError
from netkit.flow import run_sync
from netkit.runtime import Threads
from netkit.testing import MockGPU, expected_vector
from netkit.testing.mock_gpu import Answer

KEY = b"k" * 24
ENTRY = Entry(1.0, 200, (("content-type", "application/json"),), b'{"a": 1}')


def test_an_entry_holds_together_only_with_its_key_and_secret() -> None:
    sealed = seal(KEY, ENTRY, b"s" * 32)
    assert unseal(KEY, sealed, b"s" * 32) == ENTRY
    assert unseal(b"o" * 24, sealed, b"s" * 32) is None
    assert unseal(KEY, sealed, b"t" * 32) is None
    for damaged in (None, b"", b"nkc1", 5, "text", sealed[:-1], sealed + b"x", b"nkc2" + sealed[4:]):
        assert unseal(KEY, damaged, b"s" * 32) is None
    for place in range(len(sealed)):
        changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        assert unseal(KEY, changed, b"s" * 32) is None


def storage(path: Path, **options: Any) -> SqliteStorage:
    return SqliteStorage(str(path), Threads(), **{"keep": 3600.0, "max_bytes": 1 << 20, **options})


def put(store: SqliteStorage, key: bytes, content: bytes = b"{}") -> None:
    assert run_sync(store.secret()) is not None
    run_sync(store.put([(key, Entry(store.now(), 200, (), content))]))


def get(store: SqliteStorage, key: bytes) -> bytes | None:
    (entry,) = run_sync(store.get([key]))
    return None if entry is None else entry.content


def test_a_file_survives_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "cache.db"
    first = storage(path)
    put(first, KEY, b"one")
    assert get(first, KEY) == b"one"
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    first.close()
    again = storage(path)
    assert run_sync(again.secret()) == run_sync(first.secret())
    assert get(again, KEY) == b"one"
    again.close()
    first.close()


def test_a_file_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    first = storage(path)
    put(first, KEY)
    first.close()
    path.chmod(0o644)
    again = storage(path)
    assert get(again, KEY) == b"{}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again.close()


def test_two_sessions_share_a_file(tmp_path: Path) -> None:
    one, other = storage(tmp_path / "c.db"), storage(tmp_path / "c.db")
    put(one, KEY, b"one")
    assert get(other, KEY) is None or get(other, KEY) == b"one"
    assert run_sync(other.secret()) is not None
    assert get(other, KEY) == b"one"
    one.close()
    other.close()


def test_the_longest_unused_go_first_and_the_dead_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("netkit_plugins.cache.sqlite_storage.time.time", lambda: clock[0])
    store = storage(tmp_path / "c.db", max_bytes=10_000, keep=500.0)
    keys = [bytes([number]) * 24 for number in range(12)]
    for key in keys[:8]:
        put(store, key, b"x" * 1000)
        clock[0] += 1
    clock[0] += 100
    assert get(store, keys[0]) is not None
    for key in keys[8:]:
        clock[0] += 1
        put(store, key, b"x" * 1000)
    assert get(store, keys[0]) is not None, "it was used a moment ago"
    assert get(store, keys[1]) is None
    assert store.stats().bytes <= 10_000
    assert store.stats().evictions == 3
    put(store, b"l" * 24, b"x" * 20_000)
    assert get(store, b"l" * 24) is None
    clock[0] += 1000
    put(store, b"n" * 24)
    assert store.stats().entries == 1
    store.close()


def test_a_rewritten_entry_counts_once(tmp_path: Path) -> None:
    store = storage(tmp_path / "c.db")
    for number in range(5):
        put(store, KEY, b"x" * (number + 1) * 100)
    assert store.stats().entries == 1
    assert store.stats().bytes < 700
    store.close()


def damage(path: Path, how: str) -> None:
    if how == "entry":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE entries SET value = x'00112233'")
        connection.close()
    elif how == "other entry":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE entries SET key = ?", (b"o" * 24,))
        connection.close()
    elif how == "text":
        path.write_bytes(b"this is no database, but somebody's notes. " * 100)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "pages":
        content = bytearray(path.read_bytes())
        content[4096:] = os.urandom(len(content) - 4096)
        path.write_bytes(content)
    elif how == "foreign":
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine (a)")
        connection.close()
    elif how == "secret":
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM secret")
        connection.close()


@pytest.mark.parametrize("how", ["entry", "other entry", "text", "cut", "pages", "foreign", "secret"])
def test_damage_is_a_miss_and_no_call_fails(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cache.db"
    with MockGPU(http="1.1", tls=False) as gpu:

        def ask() -> Any:
            with netkit.Session(plugins={"cache": {"storage": f"sqlite:{path}"}}) as session:
                answer = session.post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": "a"})
                return answer.json()["data"][0]["embedding"]

        assert ask() == ask() == expected_vector("a")
        assert len(gpu.log.requests) == 1
        damage(path, how)
        before = path.read_bytes()
        assert ask() == expected_vector("a")
        assert len(gpu.log.requests) == 2
        if how in ("text", "foreign"):
            assert path.read_bytes() == before, "somebody else's file was changed"
            assert "cannot be used as a cache" in caplog.text


def test_no_secret_and_no_text_is_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with MockGPU(http="1.1", tls=False) as gpu:
        host = gpu.url.removeprefix("http://")
        headers = [("content-type", "application/json"), ("set-cookie", "s=SECRET5"), ("x-auth-token", "SECRET6")]
        content = b'{"data": [{"index": 0, "embedding": [1]}]}'
        gpu.route("/x/embeddings", lambda exchange: Answer(200, headers, content))
        with netkit.Session(plugins={"cache": {"storage": f"sqlite:{path}"}}) as session:
            session.post(
                f"http://SECRET0:SECRET1@{host}/x/embeddings?api_key=SECRET2",
                json={"model": "m", "input": "SECRET7"},
                headers={"x-api-key": "SECRET3", "cookie": "c=SECRET4"},
            )
            assert netkit.stats(session).cache.entries == 1
            assert "SECRET" not in repr(session) + repr(netkit.stats(session))
            for file in tmp_path.iterdir():
                assert b"SECRET" not in file.read_bytes(), file
    for file in tmp_path.iterdir():
        assert b"SECRET" not in file.read_bytes(), file


PROGRAM = """
import sys, netkit
url, path, me = sys.argv[1:]
with netkit.Session(plugins={"cache": {"storage": "sqlite:" + path}}) as session:
    for number in range(40):
        text = f"t{number % 20}"
        got = session.post(url, json={"model": "m", "input": [text, f"{me}-{number}"]}).json()["data"]
        from netkit.testing import expected_vector
        assert [one["embedding"] for one in got] == [expected_vector(text), expected_vector(f"{me}-{number}")]
    print(netkit.stats(session).cache.hits)
"""


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with MockGPU(http="1.1", tls=False) as gpu:
        url = f"{gpu.url}/v1/embeddings"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, url, str(path), f"p{number}"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(4)
        ]
        outcomes = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outcomes
    hits = sum(int(out) for out, _ in outcomes)
    assert hits >= 4 * 20, "at least each process knows its own"
    store = storage(path)
    assert run_sync(store.secret()) is not None
    with sqlite3.connect(path) as connection:
        (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
        assert connection.execute("SELECT entries FROM totals").fetchone() == (count,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_opens_the_file_anew(tmp_path: Path) -> None:
    store = storage(tmp_path / "c.db")
    put(store, KEY, b"parent's")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            put(store, b"c" * 24, b"child's")
            if get(store, KEY) == b"parent's" and get(store, b"c" * 24) == b"child's":
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert get(store, b"c" * 24) == b"child's"
    put(store, KEY, b"again")
    assert get(store, KEY) == b"again"
    store.close()


def test_a_busy_file_is_a_miss(tmp_path: Path) -> None:
    store = storage(tmp_path / "c.db")
    put(store, KEY, b"one")
    blocker = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    put(store, b"w" * 24, b"lost")
    blocker.execute("ROLLBACK")
    blocker.close()
    assert get(store, KEY) == b"one"
    assert get(store, b"w" * 24) is None
    put(store, b"w" * 24, b"kept")
    assert get(store, b"w" * 24) == b"kept"
    store.close()


def test_threads_share_a_storage(tmp_path: Path) -> None:
    store = storage(tmp_path / "c.db")
    wrong: list[Any] = []

    def work(me: int) -> None:
        for number in range(30):
            key = bytes([me, number]) * 12
            put(store, key, b"%d %d" % (me, number))
            if get(store, key) not in (b"%d %d" % (me, number), None):
                wrong.append((me, number))

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.stats().entries == 240
    store.close()


def test_a_place_that_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache\.storage"):
        storage(tmp_path / "file" / "c.db")
    store = storage(tmp_path)
    assert run_sync(store.secret()) is None
    assert get(store, KEY) is None


def test_redis_is_shared_and_a_miss_while_it_is_away(redis_server: Any) -> None:
    with MockGPU(http="1.1", tls=False) as gpu:
        url = f"{gpu.url}/v1/embeddings"

        def ask(session: netkit.Session, *texts: str) -> None:
            got = session.post(url, json={"model": "m", "input": list(texts)}).json()["data"]
            assert [one["embedding"] for one in got] == [expected_vector(text) for text in texts]

        plugins = {"cache": {"storage": redis_server.url}}
        with netkit.Session(plugins=plugins) as one, netkit.Session(plugins=plugins) as other:
            ask(one, "a", "b")
            ask(other, "b", "c", "a")
            assert [record.json()["input"] for record in gpu.log.requests] == [["a", "b"], ["c"]]
            with redis_server.client() as client:
                keys = client.keys("netkit:cache:1:*")
                assert len(keys) == 3
                assert all(0 < client.pttl(key) <= 3_600_000 for key in keys)
                assert not any(b"model" in key for key in keys)
                for key in keys:
                    client.set(key, b"somebody else's")
            ask(one, "a")
            assert len(gpu.log.requests) == 3
            redis_server.stop()
            ask(one, "a")
            ask(other, "a", "b")
            assert len(gpu.log.requests) == 5


async def test_redis_is_asked_off_the_loop(redis_server: Any) -> None:
    with MockGPU(http="1.1", tls=False) as gpu:
        async with netkit.AsyncClient(plugins={"cache": {"storage": redis_server.url}}) as client:
            for _ in range(2):
                got = await client.post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": "a"})
                assert got.json()["data"][0]["embedding"] == expected_vector("a")
            assert got.extensions["cached"] is True
            assert len(gpu.log.requests) == 1


async def test_a_file_is_read_off_the_loop(tmp_path: Path) -> None:
    with MockGPU(http="1.1", tls=False) as gpu:
        async with netkit.AsyncClient(plugins={"cache": {"storage": f"sqlite:{tmp_path}/c.db"}}) as client:
            for _ in range(2):
                got = await client.post(f"{gpu.url}/v1/embeddings", json={"model": "m", "input": "a"})
            assert got.extensions["cached"] is True
            assert len(gpu.log.requests) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET used = 'late'",
        "DELETE FROM totals",
        "UPDATE totals SET bytes = 99999999999",
        "UPDATE totals SET bytes = 'much'",
        "UPDATE entries SET value = 5",
        "UPDATE entries SET expires = 'never'",
        "DROP TABLE totals",
    ],
)
def test_a_file_with_wrong_values_in_its_tables_fails_nobody_and_holds_nobody_up(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "cache.db"
    first = storage(path)
    put(first, KEY)
    first.close()
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    again = storage(path)
    done = threading.Event()
    failures: list[BaseException] = []

    def use() -> None:
        try:
            for number in range(3):
                get(again, KEY)
                put(again, bytes([number]) * 24)
                again.stats()
        except BaseException as error:
            failures.append(error)
        done.set()

    threading.Thread(target=use, daemon=True).start()
    assert done.wait(20)
    assert not [failure for failure in failures if not isinstance(failure, AssertionError)]
    again.close()


def test_totals_of_entries_that_are_not_there_begin_anew(tmp_path: Path) -> None:
    store = storage(tmp_path / "cache.db")
    put(store, KEY)
    connection = sqlite3.connect(tmp_path / "cache.db")
    connection.execute("UPDATE totals SET entries = 7, bytes = 99999999999")
    connection.commit()
    connection.close()
    put(store, b"a" * 24)
    assert (store.stats().entries, store.stats().bytes) == (0, 0)
    put(store, b"b" * 24, b"kept")
    assert get(store, b"b" * 24) == b"kept"
    assert store.stats().entries == 1
    store.close()
