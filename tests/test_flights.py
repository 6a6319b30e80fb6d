"""Single-flight by hand: who sends, who waits, who is told what, on the Scripted runtime and in threads."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from netkit import Response, TransportError, Verdict
from netkit.answers import Answer
from netkit.errors import BodyClosed, DeadlineExceeded, FailureKind, PluginError, QueueFull
from netkit.flights import Flights
from netkit.flow import run_sync
from netkit.messages import Timeout
from netkit.runtime import Asyncio, Scripted, Threads

NONE = Timeout()


class Rig:
    """Flights whose upstream calls end when the test says so."""

    def __init__(self) -> None:
        self.runtime = Scripted()
        self.flights = Flights(self.runtime)
        self.sent = 0
        self.inside = 0
        self.cancelled = 0
        self.doors: list[Any] = []
        self.outcomes: list[Any] = []

    async def work(self) -> tuple[Response, Answer | None]:
        self.sent += 1
        self.inside += 1
        door = self.runtime.event()
        self.doors.append(door)
        mine = len(self.doors) - 1
        self.outcomes.append(None)
        try:
            await door.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        outcome = self.outcomes[mine]
        if isinstance(outcome, BaseException):
            raise outcome
        content = b"%d" % (mine + 1)
        answer = None if outcome == "unshared" else Answer(200, (("x", "1"),), content)
        return Response.of(200, [("x", "1")], content), answer

    def end(self, number: int, outcome: Any = None) -> None:
        self.outcomes[number] = outcome
        self.doors[number].set()
        self.runtime.run()

    def caller(self, timeout: Timeout = NONE, key: bytes = b"k") -> Any:
        task = self.runtime.task(self._call(key, timeout))
        self.runtime.run()
        return task

    async def _call(self, key: bytes, timeout: Timeout) -> Any:
        response = await self.flights.share(key, timeout, self.work)
        return None if response is None else (await response.read(), response.extensions.get("coalesced"))


def timed_out(kind: FailureKind = FailureKind.READ_TIMEOUT) -> TransportError:
    return TransportError("slow", kind=kind, verdict=Verdict.AMBIGUOUS)


def test_a_lone_call_is_not_marked() -> None:
    rig = Rig()
    task = rig.caller()
    rig.end(0)
    assert task.result() == (b"1", None)
    assert rig.flights.in_flight == 0


def test_many_share_one_and_the_next_sends_anew() -> None:
    rig = Rig()
    tasks = [rig.caller() for _ in range(5)]
    assert (rig.sent, rig.flights.in_flight, rig.flights.shared.value) == (1, 1, 4)
    rig.end(0)
    assert [task.result() for task in tasks] == [(b"1", True)] * 5
    late = rig.caller()
    rig.end(1)
    assert late.result() == (b"2", None)


def test_keys_do_not_mix() -> None:
    rig = Rig()
    one, other = rig.caller(key=b"a"), rig.caller(key=b"b")
    rig.end(1)
    assert not one.done()
    rig.end(0)
    assert (one.result()[0], other.result()[0]) == (b"1", b"2")


def test_the_first_one_leaves_at_any_moment() -> None:
    rig = Rig()
    first, second = rig.caller(), rig.caller()
    first.cancel()
    rig.runtime.run()
    assert first.cancelled
    rig.end(0)
    assert second.result() == (b"1", True)
    assert (rig.sent, rig.cancelled) == (1, 0)


def test_the_last_one_to_leave_cancels() -> None:
    rig = Rig()
    tasks = [rig.caller() for _ in range(3)]
    for task in tasks:
        assert rig.cancelled == 0
        task.cancel()
        rig.runtime.run()
    assert (rig.inside, rig.cancelled, rig.flights.in_flight) == (0, 1, 0)
    fresh = rig.caller()
    rig.end(1)
    assert fresh.result() == (b"2", None)


def test_whoever_comes_after_all_have_left_sends_anew() -> None:
    rig = Rig()
    first = rig.caller()
    first.cancel()
    # Not yet run: the call that is being given up is still inside.
    second = rig.runtime.task(rig._call(b"k", NONE))
    rig.runtime.run()
    rig.end(1)
    assert second.result() == (b"2", None)


def test_a_failure_is_each_ones_own() -> None:
    rig = Rig()
    tasks = [rig.caller() for _ in range(3)]
    error = TransportError(
        "reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS, native=OSError(5, "io"), code=1
    )
    rig.end(0, error)
    got = []
    for task in tasks:
        with pytest.raises(TransportError) as caught:
            task.result()
        got.append(caught.value)
    assert got[0] is error
    assert len({id(one) for one in got}) == len({id(one.native) for one in got}) == 3
    for one in got:
        assert (one.kind, one.verdict, str(one), str(one.native)) == (
            FailureKind.RESET, Verdict.AMBIGUOUS, "reset", "[Errno 5] io",
        )  # fmt: skip
        assert one.details["code"] == 1
    assert rig.flights.in_flight == 0


def test_what_is_no_failure_of_the_exchange_is_the_first_ones_alone() -> None:
    rig = Rig()
    first, second = rig.caller(), rig.caller()
    rig.end(0, ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        first.result()
    assert second.result() is None


def test_what_cannot_be_shared_is_the_first_ones_alone() -> None:
    rig = Rig()
    first, second = rig.caller(), rig.caller()
    rig.end(0, "unshared")
    assert first.result() == (b"1", None)
    assert second.result() is None


@pytest.mark.parametrize("kind", [FailureKind.READ_TIMEOUT, FailureKind.CONNECT_TIMEOUT, FailureKind.WRITE_TIMEOUT])
def test_the_most_patient_goes_on_for_all_who_would_wait(kind: FailureKind) -> None:
    rig = Rig()
    leader = rig.caller(Timeout(1, 1, 1, 1))
    hurried = rig.caller(Timeout(1, 1, 1, 1))
    middle = rig.caller(Timeout(5, 5, 5, 5))
    patient = rig.caller()
    rig.runtime.advance(0.95)
    rig.end(0, timed_out(kind))
    with pytest.raises(TransportError):
        leader.result()
    with pytest.raises(TransportError, match="slow"):
        hurried.result()
    assert (rig.sent, rig.flights.in_flight, rig.flights.handed_over.value) == (2, 1, 1)
    rig.end(1)
    assert middle.result() == patient.result() == (b"2", True)


def test_a_pool_timeout_is_a_limit_and_a_full_queue_is_none() -> None:
    rig = Rig()
    rig.caller(), rig.caller()
    rig.end(0, TransportError("full", kind=FailureKind.POOL, verdict=Verdict.NOT_SENT))
    assert rig.sent == 2
    rig.end(1)
    again = [rig.caller(), rig.caller()]
    rig.end(2, QueueFull("full"))
    for task in again:
        with pytest.raises(QueueFull):
            task.result()
    assert rig.sent == 3


def test_a_deadline_binds_its_own_caller_alone() -> None:
    rig = Rig()
    first, second = rig.caller(Timeout(total=1)), rig.caller(Timeout(total=60))
    rig.end(0, DeadlineExceeded("spent"))
    with pytest.raises(DeadlineExceeded):
        first.result()
    rig.end(1)
    assert second.result() == (b"2", None)


def test_the_heir_leaves_before_it_begins() -> None:
    rig = Rig()
    rig.caller(Timeout(read=1))
    heir, other = rig.caller(), rig.caller(Timeout(read=50))
    rig.runtime.advance(0.95)
    rig.outcomes[0] = timed_out()
    rig.doors[0].set()
    heir.cancel()
    rig.runtime.run()
    assert heir.cancelled
    assert rig.sent == 2
    rig.end(1)
    assert other.result() == (b"2", None)
    assert rig.flights.in_flight == 0


def test_a_follower_waits_no_longer_than_it_said() -> None:
    rig = Rig()
    first = rig.caller(Timeout(read=60))
    total, read = rig.caller(Timeout(total=2)), rig.caller(Timeout(read=1))
    rig.runtime.advance(1.0)
    with pytest.raises(TransportError) as caught:
        read.result()
    assert caught.value.kind is FailureKind.READ_TIMEOUT
    rig.runtime.advance(1.0)
    with pytest.raises(TransportError):
        total.result()
    rig.end(0)
    assert first.result() == (b"1", True)


def test_silence_counts_only_where_it_is_borne_less_than_by_the_first() -> None:
    """The first one's retries may take several times its own limit: a follower with the same limit waits them out."""
    rig = Rig()
    tasks = [rig.caller(Timeout(read=1)), rig.caller(Timeout(read=1))]
    rig.runtime.advance(10)
    rig.end(0)
    assert [task.result()[0] for task in tasks] == [b"1", b"1"]


def test_a_stack_that_cannot_go_on_without_its_caller() -> None:
    rig = Rig()
    first, second = rig.caller(), rig.caller()
    first.cancel()
    rig.runtime.run()
    rig.end(0, PluginError("its call had ended"))
    rig.end(1)
    assert second.result() == (b"2", None)
    alone, shared = rig.caller(), rig.caller()
    rig.end(2, PluginError("broken"))
    for task in (alone, shared):
        with pytest.raises(PluginError, match="broken"):
            task.result()


def test_an_upstream_call_that_is_cancelled_from_outside_is_begun_again() -> None:
    rig = Rig()
    first, second = rig.caller(), rig.caller()
    spawned = next(task for task in rig.runtime.tasks if "shared-call" in task.name)
    spawned.cancel()
    rig.runtime.run()
    with pytest.raises(asyncio.CancelledError):
        first.result()
    rig.end(1)
    assert second.result() == (b"2", None)


def test_an_answer_that_nobody_reads_is_discarded() -> None:
    """Its caller is cancelled between the end of the call and hearing of it."""
    runtime = Scripted()
    flights = Flights(runtime)
    response = Response.of(200, (), b"a stream")

    async def work() -> tuple[Response, Answer | None]:
        await runtime.checkpoint()
        task.cancel()
        return response, None

    task = runtime.task(flights.share(b"k", NONE, work))
    runtime.run_to_end()
    assert task.cancelled
    assert isinstance(response.body.error, BodyClosed)
    assert flights.in_flight == 0


def in_threads(*jobs: Any) -> list[Any]:
    results: list[Any] = [None] * len(jobs)

    def work(number: int) -> None:
        try:
            results[number] = jobs[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return results


class ThreadRig:
    def __init__(self) -> None:
        self.flights = Flights(Threads())
        self.go = threading.Event()
        self.joined = threading.Semaphore(0)
        self.threads: list[int] = []
        self.fail: list[BaseException] = []

    async def work(self) -> tuple[Response, Answer | None]:
        self.threads.append(threading.get_ident())
        assert self.go.wait(10)
        if self.fail:
            raise self.fail.pop(0)
        return Response.of(200, (), b"own"), Answer(200, (), b"shared")

    def call(self) -> Any:
        response = run_sync(self.flights.share(b"k", NONE, self.work, self.joined.release))
        return None if response is None else run_sync(response.read())

    def release(self, followers: int) -> None:
        for _ in range(followers):
            assert self.joined.acquire(timeout=10)
        self.go.set()


def test_threads_share_one_call_and_start_none() -> None:
    rig = ThreadRig()
    before = threading.active_count()
    counts: list[int] = []

    def work() -> Any:
        return rig.call()

    def watch() -> None:
        rig.release(7)
        counts.append(threading.active_count())

    got = in_threads(*[work] * 8, watch)[:8]
    assert sorted(got) == [b"own", *[b"shared"] * 7]
    assert len(rig.threads) == 1
    assert counts[0] <= before + 9
    assert rig.flights.in_flight == 0


def test_in_threads_an_interrupted_first_one_is_followed_by_the_next() -> None:
    rig = ThreadRig()
    rig.fail = [KeyboardInterrupt()]
    got = in_threads(*[rig.call] * 4, lambda: rig.release(3))[:4]
    assert sum(isinstance(one, KeyboardInterrupt) for one in got) == 1
    rest = [one for one in got if not isinstance(one, KeyboardInterrupt)]
    assert sorted(rest) == [b"own", b"shared", b"shared"]
    assert len(rig.threads) == 2
    assert rig.flights.in_flight == 0


def test_a_thread_never_waits_for_itself() -> None:
    flights = Flights(Threads())
    inner: list[Any] = []

    async def work() -> tuple[Response, Answer | None]:
        inner.append(run_sync(flights.share(b"k", NONE, work)))
        return Response.of(200), Answer(200, (), b"")

    assert run_sync(flights.share(b"k", NONE, work)) is not None
    assert inner == [None]


def test_loops_do_not_wait_for_each_other() -> None:
    """A flight of one loop is no flight of another's, also where a loop died with its flight under way."""
    flights = Flights(Asyncio())
    sent = 0

    async def work() -> tuple[Response, Answer | None]:
        nonlocal sent
        sent += 1
        await asyncio.sleep(0)
        return Response.of(200), Answer(200, (), b"")

    async def never() -> tuple[Response, Answer | None]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def call() -> None:
        assert await flights.share(b"k", NONE, work) is not None

    def run(coroutine: Coroutine[Any, Any, Any]) -> None:
        with asyncio.Runner() as runner:
            runner.run(coroutine)

    async def dies() -> None:
        task = asyncio.ensure_future(flights.share(b"k", NONE, never))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()

    run(dies())
    run(call())
    run(call())
    in_threads(*[lambda: run(call())] * 3)
    assert sent == 5
    gc.collect()
    assert flights.in_flight == 0


def test_a_failure_leaves_no_cycle_behind() -> None:
    import weakref

    class Failure(TransportError):
        pass

    async def failing() -> tuple[Response, Answer | None]:
        await asyncio.sleep(0)
        raise Failure("x", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS)

    flights = Flights(Asyncio())

    async def call() -> Any:
        try:
            await flights.share(b"k", NONE, failing)
        except Failure as error:
            return weakref.ref(error)

    async def both() -> list[Any]:
        return await asyncio.gather(call(), call())

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner() as runner:
            references = runner.run(both())
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
