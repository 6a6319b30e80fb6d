"""`netkit.shared`: a real redis-server that is there, goes, hangs and comes back."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from typing import Any

import pytest

from netkit.errors import ConfigError
from netkit.runtime import Asyncio, Threads
from netkit.shared import RedisAway, SharedRedis, is_redis_url


def _incr(redis: Any) -> int:
    return int(redis.incr("n"))


def test_urls() -> None:
    assert is_redis_url("redis://h/0")
    assert is_redis_url("rediss://:pw@h:1/2")
    assert is_redis_url("unix:///tmp/s?db=1")
    assert not is_redis_url("memory")
    assert not is_redis_url("redis")
    assert not is_redis_url("http://h")


def test_a_url_that_cannot_be_read_is_a_config_error_without_its_password() -> None:
    for url in ("redis://user:s3cret@host:port/0", "redis://user:s3cret@host/0?colour=s3cret"):
        with pytest.raises(ConfigError) as caught:
            SharedRedis(url)
        assert "s3cret" not in str(caught.value)


def test_two_objects_share_one_state(redis_server: Any) -> None:
    first, second = SharedRedis(redis_server.url), SharedRedis(redis_server.url)
    assert [first.run(_incr), second.run(_incr), first.run(_incr)] == [1, 2, 3]
    first.close()
    second.close()


def test_ask_from_threads_and_from_a_loop(redis_server: Any) -> None:
    shared = SharedRedis(redis_server.url)
    coroutine = shared.ask(Threads(), _incr, -1)
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    assert stop.value.value == 1
    assert asyncio.run(shared.ask(Asyncio(), _incr, -1)) == 2
    shared.close()


def test_posted_work_is_done_in_order_and_before_close_is_over(redis_server: Any) -> None:
    shared, done = SharedRedis(redis_server.url), threading.Event()
    for number in range(20):
        shared.post(lambda redis, number=number: redis.rpush("list", number))
    shared.post(lambda _: done.set())
    shared.close()
    assert done.wait(10)
    assert shared.run(lambda redis: redis.lrange("list", 0, -1)) == [str(n).encode() for n in range(20)]
    shared.close()


def test_gone_means_one_warning_and_no_wait(redis_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedRedis(redis_server.url, pause=60.0)
    assert shared.run(_incr) == 1
    redis_server.stop()
    with caplog.at_level(logging.WARNING, "netkit"):
        for _ in range(5):
            with pytest.raises(RedisAway):
                shared.run(_incr)
        assert asyncio.run(shared.ask(Asyncio(), _incr, -1)) == -1
        shared.post(_incr)
        other = SharedRedis(redis_server.url)
        with pytest.raises(RedisAway):
            other.run(_incr)
    assert len(caplog.records) == 1
    assert shared.is_away
    assert repr(shared).endswith("away>")
    shared.close()
    other.close()


def test_a_server_that_hangs_costs_one_timeout(redis_server: Any) -> None:
    shared = SharedRedis(redis_server.url, timeout=0.05, pause=60.0)
    shared.run(_incr)
    redis_server.freeze()
    try:
        for _ in range(100):
            with pytest.raises(RedisAway):
                shared.run(_incr)
        started = time.monotonic()
        with pytest.raises(RedisAway):
            shared.run(_incr)
        assert time.monotonic() - started < 0.05
    finally:
        redis_server.thaw()
        shared.close()


def test_it_comes_back_after_the_pause(redis_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedRedis(redis_server.url, pause=0.0)
    shared.run(_incr)
    redis_server.stop()
    with pytest.raises(RedisAway):
        shared.run(_incr)
    redis_server.start()
    with caplog.at_level(logging.INFO, "netkit"):
        assert shared.run(_incr) == 1
    assert not shared.is_away
    assert "is back" in caplog.text
    shared.close()


def test_a_restart_between_two_calls_is_no_outage(redis_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedRedis(redis_server.url)
    shared.run(_incr)
    redis_server.stop()
    redis_server.start()
    assert shared.run(_incr) == 1
    assert not caplog.records
    shared.close()


def test_one_caller_alone_tries_again(redis_server: Any) -> None:
    shared = SharedRedis(redis_server.url, pause=60.0)
    redis_server.stop()
    with pytest.raises(RedisAway):
        shared.run(_incr)
    shared._retry_at = 0.0
    asked: list[int] = []

    def look(_: Any) -> int:
        asked.append(1)
        raise OSError

    barrier = threading.Barrier(16)

    def call() -> None:
        barrier.wait()
        with pytest.raises(RedisAway):
            shared.run(look)

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1
    shared.close()


def test_no_password_in_logs_errors_or_repr(caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedRedis("redis://user:s3cret@127.0.0.1:1/0?client_name=s3cret", timeout=0.1)
    with pytest.raises(RedisAway) as caught, caplog.at_level(logging.DEBUG, "netkit"):
        shared.run(_incr)
    assert caplog.records
    assert "s3cret" not in caplog.text + repr(shared) + str(caught.value)
    shared.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_its_own_connection(redis_server: Any) -> None:
    shared = SharedRedis(redis_server.url)
    shared.run(_incr)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if all(shared.run(_incr) for _ in range(50)) else 1
        finally:
            os._exit(code)
    counts = [shared.run(_incr) for _ in range(50)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert counts == sorted(counts)
    assert shared.run(_incr) == 102
    shared.close()


def test_closing_leaves_neither_thread_nor_socket(redis_server: Any) -> None:
    shared, done = SharedRedis(redis_server.url), threading.Event()
    shared.post(lambda redis: (redis.incr("n"), done.set()))
    assert done.wait(10)
    (worker,) = [thread for thread in threading.enumerate() if thread.name.startswith("netkit-redis")]
    shared.close()
    worker.join(10)
    assert not worker.is_alive()
    del shared
    gc.collect()


def test_bytes_are_bytes_whatever_the_url_says(redis_server: Any) -> None:
    shared = SharedRedis(f"{redis_server.url}{'&' if '?' in redis_server.url else '?'}decode_responses=True")
    shared.run(lambda redis: redis.set("k", b"\xff\x00"))
    assert shared.run(lambda redis: redis.get("k")) == b"\xff\x00"
    shared.close()
