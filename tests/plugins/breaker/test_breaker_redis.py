"""Circuits shared through a real redis-server: two sessions, two processes, and Redis gone."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pybreaker
import pytest
from netkit_plugins.breaker import BreakerLayer, BreakerOptions

from netkit import Context, Request, Response, TransportError, Verdict
from netkit.errors import BodyClosed, CircuitOpen, FailureKind
from netkit.events import CircuitOpened, Emitter
from netkit.flow import run_sync
from netkit.runtime import Threads
from netkit.stats import Meter
from netkit.testing import MockGPU, faults

NAME = "http://h"


class Process:
    """What one process has: a layer of its own on the shared Redis. `step` is what its server does next."""

    def __init__(self, url: str, **options: Any) -> None:
        self.emit = Emitter()
        self.events: list[Any] = []
        self.emit.add(self.events.append)
        context = Context(runtime=Threads(), emit=self.emit, stack="test", meter=Meter())
        self.layer = BreakerLayer(BreakerOptions(storage=url, **options), context)
        self.step: Any = 200
        self.seen = 0

    async def send(self, request: Request) -> Response:
        self.seen += 1
        if isinstance(self.step, BaseException):
            raise self.step
        return self.step if isinstance(self.step, Response) else Response.of(self.step)

    def open(self) -> Response:
        return run_sync(self.layer(Request("GET", NAME + "/"), self.send))

    def call(self, step: Any = None) -> int:
        self.step = self.step if step is None else step
        response = self.open()
        response.body.end()
        self.settle()
        return response.status

    def refused(self) -> CircuitOpen:
        with pytest.raises(CircuitOpen) as caught:
            self.call()
        return caught.value

    def settle(self) -> None:
        """Wait for what was posted to Redis."""
        done = threading.Event()
        self.layer._redis.post(lambda _: done.set(), done.set)  # type: ignore[union-attr]
        assert done.wait(10)

    @property
    def circuit(self) -> Any:
        return self.layer.stats()[NAME]


@pytest.fixture
def processes(redis_server: Any) -> Iterator[Any]:
    made: list[Process] = []

    def make(count: int = 2, **options: Any) -> list[Process]:
        made.extend(Process(redis_server.url, **options) for _ in range(count))
        return made

    yield make
    for process in made:
        process.layer.close()


def wait_until_open_time_is_over(process: Process) -> None:
    # The clock is the server's: there is no event to wait for.
    while process.circuit.next_probe > 0:
        time.sleep(0.005)
    time.sleep(0.005)


def test_failures_add_up_over_processes(processes: Any) -> None:
    first, second = processes(fail_max=5)
    for _ in range(3):
        first.call(503)
    for _ in range(2):
        second.call(503)
    assert second.refused().retry_after > 29
    assert first.refused().retry_after > 29
    assert first.seen + second.seen == 5
    assert [type(event) for event in first.events] == [CircuitOpened]
    assert first.events[0].reason == "shared"


def test_a_success_anywhere_starts_the_count_anew(processes: Any) -> None:
    first, second = processes(fail_max=3)
    first.call(503)
    first.call(503)
    second.call(200)
    first.call(503)
    first.call(503)
    assert first.circuit.state == "closed"
    first.call(503)
    first.refused()


def test_a_process_that_comes_later_finds_it_open(processes: Any) -> None:
    (first,) = processes(1, fail_max=1)
    first.call(503)
    *_, late = processes(1, fail_max=1)
    late.refused()
    assert late.seen == 0


def test_one_probe_over_all_processes(processes: Any) -> None:
    made = processes(4, fail_max=1, reset_timeout=0.05)
    made[0].call(503)
    for each in made[1:]:
        each.refused()
    wait_until_open_time_is_over(made[0])
    probe = made[2]
    probe.step = answer = Response.of(200)
    probe.open()
    for each in made:
        assert each.refused().retry_after > 0
    answer.body.end()
    probe.settle()
    for each in made:
        each.layer._circuit(NAME).hold(0.0)
    assert [each.call(200) for each in made] == [200] * 4
    assert {each.circuit.state for each in made} == {"closed"}


def test_a_failed_probe_keeps_all_of_them_out(processes: Any) -> None:
    first, second = processes(fail_max=1, reset_timeout=0.05)
    first.call(503)
    second.refused()
    wait_until_open_time_is_over(first)
    first.call(503)
    first.refused()
    assert second.refused().retry_after > 0.03
    assert first.seen + second.seen == 2


@pytest.mark.parametrize("end", ["cancelled", "own fault"])
def test_a_probe_that_says_nothing_frees_its_place_for_the_others(processes: Any, end: str) -> None:
    first, second = processes(fail_max=1, reset_timeout=0.05)
    first.call(503)
    second.refused()
    wait_until_open_time_is_over(first)
    first.step = KeyboardInterrupt() if end == "cancelled" else ValueError()
    with pytest.raises(type(first.step)):
        first.open()
    first.settle()
    assert second.call(200) == 200
    assert second.circuit.state == "closed"


def test_failures_in_bodies_are_shared(processes: Any) -> None:
    first, second = processes(fail_max=2)
    for process in (first, second):
        process.step = Response.of(200)
        process.open().body.end(ConnectionResetError())
        process.settle()
    first.layer._circuit(NAME).synced = 0.0
    first.refused()
    second.refused()


def test_a_body_that_is_left_during_a_probe_is_good_news(processes: Any) -> None:
    first, second = processes(fail_max=1, reset_timeout=0.05)
    first.call(503)
    second.refused()
    wait_until_open_time_is_over(first)
    first.step = Response.of(200)
    first.open().body.end(BodyClosed("enough"))
    first.settle()
    assert second.call(200) == 200


def test_pybreaker_sees_the_same_circuit(processes: Any, redis_server: Any) -> None:
    (first,) = processes(1, fail_max=2)
    first.call(503)
    with redis_server.client() as client:
        keys = client.keys("*")
        assert len(keys) == 3
        assert all(client.pttl(key) > 0 for key in keys)
        seen = pybreaker.CircuitRedisStorage("closed", client, namespace=f"netkit:breaker:{{{NAME}}}")
        assert (seen.state, seen.counter) == ("closed", 1)
        first.call(503)
        assert (seen.state, seen.counter) == ("open", 2)
        assert seen.opened_at is not None


def test_redis_gone_means_local_behaviour_and_one_warning(
    processes: Any, redis_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = processes(fail_max=3)
    first.call(503)
    redis_server.stop()
    with caplog.at_level(logging.WARNING):
        while first.circuit.state == "closed":
            first.call(503)
        first.refused()
        # The failure that was known to all counts on: two more opened it.
        assert first.seen == 3
        assert second.call(200) == 200
    assert len(caplog.records) == 1
    assert "goes on by itself" in caplog.text


def test_redis_that_was_never_there_costs_nothing_but_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    process = Process("redis://u:s3cret@127.0.0.1:1/0", fail_max=2)
    assert process.call(200) == 200
    process.step = TransportError("reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS)
    for _ in range(2):
        with pytest.raises(TransportError):
            process.call()
    process.refused()
    process.layer.close()
    assert len(caplog.records) == 1
    assert "s3cret" not in caplog.text


def test_when_redis_is_back_what_was_found_out_alone_is_kept(processes: Any, redis_server: Any) -> None:
    (first,) = processes(1, fail_max=1, reset_timeout=0.05)
    redis_server.stop()
    first.call(503)
    redis_server.start()
    first.layer._redis._retry_at = 0.0
    first.refused()
    wait_until_open_time_is_over(first)
    assert first.call(200) == 200
    assert first.circuit.state == "closed"
    first.call(503)
    with redis_server.client() as client:
        assert client.get(f"netkit:breaker:{{{NAME}}}:pybreaker:state") == b"open"


def test_a_loop_is_not_held_up_while_redis_hangs(redis_server: Any) -> None:
    import asyncio

    import netkit

    async def scenario(gpu: MockGPU) -> float:
        async with netkit.AsyncClient(plugins={"breaker": {"storage": redis_server.url}}) as client:
            await client.get(gpu.url + "/v1/models")
            redis_server.freeze()
            turns = [0.0]
            stop = asyncio.Event()

            async def watch() -> None:
                last = time.monotonic()
                while not stop.is_set():
                    await asyncio.sleep(0.001)
                    now = time.monotonic()
                    turns.append(now - last)
                    last = now

            watcher = asyncio.create_task(watch())
            try:
                for circuit in netkit.facade.edge_of(client)._instances.values():
                    for each in getattr(circuit, "_circuits", {}).values():
                        each.synced = 0.0
                gpu.faults.push(faults.Status(503, times=2))
                for _ in range(3):
                    await client.get(gpu.url + "/v1/models")
            finally:
                redis_server.thaw()
                stop.set()
                await watcher
            return max(turns)

    with MockGPU(tls=False, http="1.1", launch_ms=0) as gpu:
        assert asyncio.run(scenario(gpu)) < 0.2


CHILD = """
import sys, netkit
url, storage = sys.argv[1:]
session = netkit.Session(plugins={"breaker": {"fail_max": 5, "storage": storage}, "retry": False})
outcomes = []
for line in sys.stdin:
    for _ in range(int(line)):
        try:
            outcomes.append(session.get(url).status_code)
        except netkit.errors.CircuitOpen:
            outcomes.append(0)
    print(*outcomes, flush=True)
    outcomes.clear()
session.close()
"""


def test_two_processes_open_one_breaker(redis_server: Any) -> None:
    with MockGPU(tls=False, http="1.1", launch_ms=0) as gpu:
        gpu.faults.push(faults.Status(503, times=None))
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, gpu.url + "/v1/models", redis_server.url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        try:

            def ask(child: Any, calls: int) -> list[int]:
                child.stdin.write(f"{calls}\n")
                child.stdin.flush()
                return [int(outcome) for outcome in child.stdout.readline().split()]

            assert ask(children[0], 3) == [503] * 3
            assert ask(children[1], 3) == [503, 503, 0]
            assert ask(children[0], 2) == [0, 0]
            assert len(gpu.log.requests) == 5
        finally:
            for child in children:
                child.communicate(timeout=30)
        assert [child.returncode for child in children] == [0, 0]
