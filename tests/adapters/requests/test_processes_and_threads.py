"""One session in many threads, and across fork (CASES C02's kind for threads, C76)."""

from __future__ import annotations

import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import netkit
from netkit.testing import MockGPU

CALLS = 200
CHILDREN = 4


def _own_echoes(session: netkit.Session, url: str, who: str, calls: int, verify: str | None) -> int:
    right = 0
    for number in range(calls):
        token = f"{who}-{number}"
        answer = session.post(f"{url}/echo", data=token, timeout=30, verify=verify).json()
        right += answer["body"] == token
    return right


def test_each_thread_gets_its_own_answer(gpu: MockGPU) -> None:
    with netkit.Session(plugins={"pool": {"max_connections": 8, "acquire_timeout": 30}}) as session:
        with ThreadPoolExecutor(32) as pool:
            jobs = [pool.submit(_own_echoes, session, gpu.url, f"t{n}", 20, None) for n in range(32)]
            assert sum(job.result() for job in jobs) == 32 * 20
        stats = netkit.stats(session)
    assert (stats.pool.in_use, stats.pool.queued, stats.requests.in_flight) == (0, 0, 0)
    assert stats.requests.total == len(gpu.log.requests) == 32 * 20
    assert gpu.stats().connections >= 1
    assert len({request.connection for request in gpu.log.requests}) <= 8


def test_forked_children_start_afresh(tls_gpu: MockGPU) -> None:
    verify = tls_gpu.ca_file
    with netkit.Session() as session:
        session.trust_env = False
        assert _own_echoes(session, tls_gpu.url, "warm", 1, verify) == 1
        stop = threading.Event()
        parent_calls: list[int] = []

        def keep_calling() -> None:
            while not stop.is_set():
                parent_calls.append(_own_echoes(session, tls_gpu.url, "loop", 1, verify))

        caller = threading.Thread(target=keep_calling)
        caller.start()
        children = []
        for number in range(CHILDREN):
            child = os.fork()
            if child == 0:
                try:
                    right = _own_echoes(session, tls_gpu.url, f"c{number}", CALLS, verify)
                    session.close()
                    os._exit(0 if right == CALLS else 1)
                except BaseException:
                    traceback.print_exc()
                    os._exit(2)
            children.append(child)
        own = _own_echoes(session, tls_gpu.url, "parent", CALLS, verify)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        stop.set()
        caller.join()
        assert own == CALLS
        assert all(parent_calls)
        assert codes == [0] * CHILDREN

    def of(who: str) -> set[int]:
        return {
            request.connection
            for request in tls_gpu.log.requests
            if request.body and request.body.startswith(f"{who}-".encode())
        }

    parent = of("parent") | of("loop") | of("warm")
    for number in range(CHILDREN):
        assert of(f"c{number}")
        assert not of(f"c{number}") & parent
    # The parent's connections were not disturbed by the children's coming and going.
    assert len(parent) <= 3
