"""One storm, and the calm after it: nothing may be left."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import netkit
from netkit.facade import edge_of
from netkit.testing import MockGPU

from .callers import Tally, call_in_task, call_in_thread
from .weather import weather

__all__ = ["storm"]

TASKS, THREADS = 64, 16
STREAMS = 32


def storm(seconds: float, seed: int, machine: str = "auto") -> Tally:
    """Run one storm of tasks and one of threads side by side; AssertionError when something was wrong or is left."""
    tally = Tally()
    before = set(threading.enumerate())
    with MockGPU(launch_ms=0.5, per_item_ms=0.1, gpus=8, settings={3: STREAMS}, log_size=1000) as gpu:
        gpu.script(*weather(seed))
        plugins = {
            "http2": {"max_connections": 4, "machine": machine},
            "retry": {"attempts": 2, "backoff_initial": 0},
        }
        until = time.monotonic() + seconds
        with netkit.Session(plugins=plugins) as session:
            session.trust_env = False
            session.verify = str(gpu.ca_file)
            with ThreadPoolExecutor(THREADS + 1) as pool:
                jobs = [
                    pool.submit(call_in_thread, session, gpu.url, who, until, seed, tally) for who in range(THREADS)
                ]
                jobs.append(pool.submit(asyncio.run, _tasks(gpu, plugins, until, seed, tally)))
                for job in jobs:
                    job.result()
            gpu.script()
            _until(lambda: _is_calm(session), lambda: netkit.stats(session))
            _windows_are_whole(session)
            assert session.post(f"{gpu.url}/echo", data="after").json()["body"] == "after"
        _until(lambda: gpu.stats().open_connections == 0, lambda: _open(gpu))
    left = {thread for thread in set(threading.enumerate()) - before if thread.name != "netkit-http2"}
    assert not left, left
    assert not tally.findings, tally.findings[:10]
    assert tally.answers
    return tally


async def _tasks(gpu: MockGPU, plugins: Any, until: float, seed: int, tally: Tally) -> None:
    trust = ssl.create_default_context(cafile=gpu.ca_file)
    async with netkit.AsyncClient(verify=trust, plugins=plugins, timeout=10) as client:
        async with asyncio.TaskGroup() as group:
            for who in range(TASKS):
                group.create_task(call_in_task(client, gpu.url, who, until, seed, tally))
        deadline = time.monotonic() + 20
        while not _is_calm(client) or len(asyncio.all_tasks()) > 1:
            assert time.monotonic() < deadline, (netkit.stats(client), asyncio.all_tasks())
            await asyncio.sleep(0.01)
        _windows_are_whole(client)


def _is_calm(client: Any) -> bool:
    stats = netkit.stats(client)
    idle = all(not connection.streams and not connection.uploading for connection in _connections(client))
    return stats.requests.in_flight == 0 and stats.pool.in_use == 0 and stats.http2.streams == 0 and idle


def _windows_are_whole(client: Any) -> None:
    """What the server may still send on each connection: the whole window, less what is below the threshold at which
    credit is returned (half)."""
    for connection in _connections(client):
        if not connection.closed and not connection.draining:
            assert connection.machine.connection_credit() >= connection.pool.options.connection_window // 2


def _connections(client: Any) -> list[Any]:
    for (name, _), layer in edge_of(client)._instances.items():
        if name == "http2":
            return list(layer.engine().connections())
    return []


def _open(gpu: MockGPU) -> Any:
    return [record for record in gpu.log.connections if record.closed is None]


def _until(condition: Callable[[], bool], state: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, state()
        time.sleep(0.01)
