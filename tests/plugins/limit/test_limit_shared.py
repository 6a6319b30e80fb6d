"""One rate and one pause through a real Redis: between sessions, between processes, and without it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from netkit_plugins.limit import LimitLayer, LimitOptions
from netkit_plugins.limit.rates import rates_of
from netkit_plugins.limit.shared import SharedRates
from netkit_plugins.limit.store import forget_limits

import netkit
from netkit import Body, Context, Request, Response
from netkit.events import Emitter, LimitPaused
from netkit.flow import run_sync
from netkit.runtime import Threads
from netkit.shared import SharedRedis
from netkit.stats import Meter
from netkit.testing import MockGPU, faults

RUNTIME = Threads()


@pytest.fixture
def shared(redis_server: Any) -> Iterator[SharedRedis]:
    shared = SharedRedis(redis_server.url)
    yield shared
    shared.close()


def _reserve(rates: SharedRates, tokens: float = 0.0) -> tuple[float, float]:
    now = RUNTIME.now()
    due, paused = run_sync(rates.reserve(RUNTIME, tokens))
    return due - now, paused


def _quiet(shared: SharedRedis) -> None:
    """Wait until everything posted is done: it is done in order."""
    done = threading.Event()
    shared.post(lambda _: done.set())
    assert done.wait(10)


def test_reservations_follow_the_rate_over_all_who_share(shared: SharedRedis) -> None:
    first, second = (SharedRates(shared, "k", rates_of(0.1, None, 2)) for _ in range(2))
    dues = [_reserve(rates)[0] for rates in (first, second, first, second)]
    assert dues[:2] == pytest.approx([0.0, 0.0], abs=0.3)
    # The bucket fills up a little between the calls.
    assert dues[2:] == pytest.approx([10.0, 20.0], abs=0.3)


def test_other_keys_and_other_limits_are_apart(shared: SharedRedis) -> None:
    for key, rate in (("a", 0.1), ("b", 0.1), ("a", 0.2)):
        assert _reserve(SharedRates(shared, key, rates_of(rate, None, 1)))[0] == pytest.approx(0.0, abs=0.3)


def test_tokens_are_reserved_owed_and_given_back(shared: SharedRedis) -> None:
    rates = SharedRates(shared, "k", rates_of(None, 60.0, None))
    assert _reserve(rates, 60.0)[0] == pytest.approx(0.0, abs=0.3)
    rates.adjust(0.0, -50.0)
    _quiet(shared)
    assert _reserve(rates, 50.0)[0] == pytest.approx(0.0, abs=0.3)
    rates.adjust(0.0, 30.0)
    _quiet(shared)
    assert _reserve(rates, 1.0)[0] == pytest.approx(31.0, abs=0.3)


def test_a_pause_reaches_the_others_and_the_longer_one_stays(shared: SharedRedis) -> None:
    rates = SharedRates(shared, "k", None)
    assert _reserve(rates) == (pytest.approx(0.0, abs=0.3), 0.0)
    rates.pause(30.0)
    rates.pause(10.0)
    _quiet(shared)
    assert _reserve(rates)[1] == pytest.approx(30.0, abs=0.5)


def test_everything_in_redis_expires_and_names_no_credential(redis_server: Any) -> None:
    options = LimitOptions(requests_per_second=10.0, tokens_per_minute=1e6, storage=redis_server.url)
    layer = LimitLayer(options, Context(runtime=RUNTIME, emit=Emitter(), stack="test", meter=Meter()))
    request = Request("POST", "http://h/v1", [("Authorization", "Bearer sk-secret")], Body.of(b'{"max_tokens": 5}'))

    async def send(_: Request) -> Response:
        return Response.of(429, [("retry-after", "9")])

    run_sync(layer(request, send)).body.end()
    assert layer._redis is not None
    _quiet(layer._redis)
    layer.close()
    with redis_server.client() as client:
        keys = client.keys("*")
        assert len(keys) == 2
        for key in keys:
            assert b"sk-secret" not in key
            assert 0 < client.pttl(key) < 130_000


def test_without_redis_the_processs_own_rate_rules_with_one_warning(
    redis_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.stop()
    options = {"requests_per_second": 100.0, "burst": 1, "storage": redis_server.url}
    with MockGPU(http="1.1", tls=False) as gpu, caplog.at_level(logging.WARNING, "netkit"):
        with netkit.Session(plugins={"limit": options}) as session:
            assert [session.get(f"{gpu.url}/v1/models").status_code for _ in range(20)] == [200] * 20
        times = [record.time for record in gpu.log.requests]
    # 19 turns of 10 ms each; the server notes a request a little late or early.
    assert times[-1] - times[0] >= 0.18
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_a_redis_that_hangs_holds_one_call_up_for_a_moment(
    redis_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"requests_per_second": 1000.0, "storage": redis_server.url}
    with MockGPU(http="1.1", tls=False) as gpu, caplog.at_level(logging.WARNING, "netkit"):
        with netkit.Client(plugins={"limit": options}) as client:
            assert client.get(f"{gpu.url}/v1/models").status_code == 200
            redis_server.freeze()
            started = time.monotonic()
            assert [client.get(f"{gpu.url}/v1/models").status_code for _ in range(10)] == [200] * 10
            # Each of ten would have waited for a quarter of a second, or more.
            assert time.monotonic() - started < 2.5
            redis_server.thaw()
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_the_options_show_no_password() -> None:
    assert "s3cret" not in repr(LimitOptions(storage="redis://user:s3cret@h/0"))


def test_a_pause_is_heard_by_another_session(redis_server: Any) -> None:
    # Two options, so that what they share is in Redis alone.
    plugins = [{"limit": {"storage": redis_server.url, "max_queue": size}} for size in (7, 8)]
    with MockGPU(http="1.1", tls=False) as gpu:
        gpu.faults.push(faults.Status(429, headers={"retry-after-ms": "400"}))
        with netkit.Session(plugins=plugins[0]) as first, netkit.Client(plugins=plugins[1]) as second:
            told: list[Any] = []
            netkit.listen(first, told.append)
            assert first.get(f"{gpu.url}/v1/models").status_code == 429
            # What this process knows by itself: the other must hear it from Redis.
            forget_limits()
            assert second.get(f"{gpu.url}/v1/models").status_code == 200
            assert [event.seconds for event in told if isinstance(event, LimitPaused)] == [pytest.approx(0.4)]
        before, after = (record.time for record in gpu.log.requests)
        assert after - before >= 0.35


CALLER = """
import asyncio, sys, netkit
from concurrent.futures import ThreadPoolExecutor

url, storage, kind, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
plugins = {"limit": {"requests_per_second": 50.0, "burst": 1, "storage": storage}, "http2": False}
headers = {"x-caller": kind}

def start():
    print("ready", flush=True)
    sys.stdin.readline()

async def tasks():
    async with netkit.AsyncClient(plugins=plugins) as client:
        await client.get(url)
        start()
        answers = await asyncio.gather(*(client.get(url, headers=headers) for _ in range(count)))
        return [answer.status_code for answer in answers]

if kind == "threads":
    with netkit.Session(plugins=plugins) as session, ThreadPoolExecutor(8) as pool:
        session.get(url)
        start()
        done = list(pool.map(lambda _: session.get(url, headers=headers).status_code, range(count)))
else:
    done = asyncio.run(tasks())
assert done == [200] * count, done
"""


def test_two_processes_share_one_rate(redis_server: Any) -> None:
    with MockGPU(http="1.1", tls=False) as gpu:
        callers = [
            subprocess.Popen(
                [sys.executable, "-c", CALLER, f"{gpu.url}/v1/models", redis_server.url, kind, "40"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for kind in ("threads", "tasks")
        ]
        for caller in callers:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "ready\n"
        gpu.log.clear()
        started = time.monotonic()
        for caller in callers:
            assert caller.stdin is not None
            caller.stdin.write("go\n")
            caller.stdin.flush()
        for caller in callers:
            caller.communicate(timeout=60)
            assert caller.returncode == 0
        records = gpu.log.requests
    assert len(records) == 80
    times = sorted(record.time for record in records)
    # 79 turns of 20 ms after the first: two rates of their own would be done in half of that.
    assert times[-1] - times[0] >= 79 / 50 * 0.97
    assert time.monotonic() - started < 30
    # In the first half of the time both were served.
    half = [record.header("x-caller") for record in records[:40]]
    assert min(half.count("threads"), half.count("tasks")) >= 8
