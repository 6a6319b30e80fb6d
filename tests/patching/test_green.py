"""gevent: its greenlets take the place of threads, and netkit leaves the synchronous stacks on their own HTTP/1.1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from netkit import green
from netkit.testing import MockGPU
from netkit.testing.mock_gpu import Answer, Exchange
from tests.patching.conftest import Program

pytest.importorskip("gevent")

TOGETHER = 6
PATCH_FIRST = """
    from gevent import monkey
    monkey.patch_all()
    import netkit
    netkit.install()
"""
PATCH_LAST = """
    import warnings
    warnings.simplefilter("ignore")  # gevent warns of exactly this order
    import netkit
    netkit.install()
    from gevent import monkey
    monkey.patch_all()
"""
CALLS = {
    "requests": "session = requests.Session(); session.verify = CA",
    "httpx": "session = httpx.Client(verify=ssl.create_default_context(cafile=CA))",
    "httpx2": "session = httpx2.Client(verify=ssl.create_default_context(cafile=CA))",
}


@pytest.fixture
def meeting(gpu: MockGPU) -> Iterator[MockGPU]:
    """`/meet` answers when TOGETHER requests are there: one after the other would never be answered."""
    state = {"present": 0}
    arrived = asyncio.Condition()

    async def meet(exchange: Exchange) -> Answer:
        async with arrived:
            state["present"] += 1
            arrived.notify_all()
            await arrived.wait_for(lambda: state["present"] % TOGETHER == 0)
        return Answer.json({"met": True})

    gpu.route("/meet", meet)
    yield gpu
    assert state["present"] == TOGETHER


@pytest.mark.parametrize("order", [PATCH_FIRST, PATCH_LAST], ids=["patched-first", "patched-last"])
@pytest.mark.parametrize("stack", list(CALLS))
def test_greenlets_run_side_by_side(program: Program, meeting: MockGPU, stack: str, order: str) -> None:
    before = len(meeting.log.requests)
    program(
        order.replace("\n    ", "\n        ")
        + f"""
        import ssl, gevent, threading, {stack}
        {CALLS[stack]}
        jobs = [gevent.spawn(session.get, URL + "/meet") for _ in range({TOGETHER})]
        gevent.joinall(jobs, timeout=30)
        assert [job.value.json() for job in jobs if job.successful()] == [{{"met": True}}] * {TOGETHER}
        assert not [t for t in threading.enumerate() if t.name == "netkit-http2"], "no loop among greenlets"
        session.close()
        """
    )
    seen = meeting.log.requests[before:]
    assert [request.protocol for request in seen] == ["HTTP/1.1"] * TOGETHER


def test_a_retry_sleeps_for_its_own_greenlet_only(program: Program, gpu: MockGPU) -> None:
    answers = iter([503, 200])
    gpu.route("/flaky", lambda _: Answer.text("", status=next(answers), headers=[("retry-after", "1")]))
    before = len(gpu.log.requests)
    program("""
        from gevent import monkey
        monkey.patch_all()
        import netkit
        netkit.install()
        import gevent, requests
        session = requests.Session()
        netkit.attach(session, plugins={"retry": True})
        turns = []
        def turn():
            while True:
                turns.append(1)
                gevent.sleep(0.01)
        turning = gevent.spawn(turn)
        assert session.get(URL + "/flaky", verify=CA).status_code == 200
        turning.kill()
        session.close()
        assert len(turns) > 10, "the hub stood still"
    """)
    assert [request.status for request in gpu.log.requests[before:]] == [503, 200]


def test_threads_are_the_systems_here() -> None:
    assert not green.threads_are_green()


def test_what_is_green(program: Program) -> None:
    program("""
        from netkit.green import threads_are_green
        import gevent.monkey
        assert not threads_are_green()
        gevent.monkey.patch_socket()
        assert not threads_are_green(), "its threads are still threads"
        gevent.monkey.patch_thread()
        assert threads_are_green()
    """)
