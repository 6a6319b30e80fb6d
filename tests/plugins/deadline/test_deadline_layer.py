"""The layer on the Scripted runtime."""

from __future__ import annotations

from typing import Any

import pytest
from netkit_plugins.deadline import DeadlineLayer, DeadlineOptions

from netkit import Context, DeadlineExceeded, Request, Response, Timeout, TransportError, Verdict
from netkit.errors import FailureKind
from netkit.events import Emitter
from netkit.runtime import Scripted
from netkit.stats import Meter


class Rig:
    def __init__(self, **options: Any) -> None:
        self.runtime = Scripted()
        context = Context(runtime=self.runtime, emit=Emitter(), stack="scripted", meter=Meter())
        self.layer = DeadlineLayer(DeadlineOptions(**options), context)
        self.takes = 0.0
        self.error: Exception | None = None
        self.seen: list[Request] = []

    async def send(self, request: Request) -> Response:
        self.seen.append(request)
        await self.runtime.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return Response.of(200)

    def call(self, hops: Any = None, timeout: Timeout | None = None) -> Any:
        extensions = {} if hops is None else {"hops": lambda: hops}
        request = Request("GET", "http://h/", timeout=timeout or Timeout(), extensions=extensions)
        task = self.runtime.task(self.layer(request, self.send))
        self.runtime.run_to_end()
        return task


def exceeded(task: Any) -> DeadlineExceeded:
    with pytest.raises(DeadlineExceeded) as caught:
        task.result()
    return caught.value


def test_what_takes_too_long_is_cancelled() -> None:
    rig = Rig(total=1.0)
    rig.takes = 60.0
    started = rig.runtime.now()
    assert exceeded(rig.call()).details["reason"] == "deadline"
    assert 1.0 <= rig.runtime.now() - started < 1.1


def test_hops_share_one_budget() -> None:
    rig, hops = Rig(total=1.0), {}  # type: ignore[var-annotated]
    rig.takes = 0.4
    assert rig.call(hops).result().status == 200
    assert rig.call(hops).result().status == 200
    assert exceeded(rig.call(hops))
    assert rig.call({}).result().status == 200


def test_nothing_is_sent_once_the_budget_is_spent() -> None:
    rig, hops = Rig(total=1.0), {}  # type: ignore[var-annotated]
    rig.call(hops)
    rig.runtime.advance(2.0)
    assert exceeded(rig.call(hops)).verdict is Verdict.NOT_SENT
    assert len(rig.seen) == 1


def test_a_time_out_by_a_limit_that_was_cut_is_the_deadlines() -> None:
    rig = Rig(total=1.0)
    rig.takes = 1.0
    rig.error = TransportError("t", kind=FailureKind.READ_TIMEOUT, native=ValueError("native"))
    rig.error.attempts = 2
    failure = exceeded(rig.call())
    assert failure.attempts == 2
    assert isinstance(failure.__cause__, ValueError)


def test_a_time_out_of_the_calls_own_stays_its_own() -> None:
    rig = Rig(total=1.0)
    rig.takes = 0.5
    rig.error = TransportError("t", kind=FailureKind.READ_TIMEOUT)
    with pytest.raises(TransportError) as caught:
        rig.call().result()
    assert caught.value is rig.error


def test_other_failures_and_foreign_time_outs_pass() -> None:
    rig = Rig(total=1.0)
    rig.takes = 1.0
    rig.error = TransportError("t", kind=FailureKind.RESET)
    with pytest.raises(TransportError, match="t"):
        rig.call().result()
    rig.takes, rig.error = 0.1, TimeoutError("foreign")
    with pytest.raises(TimeoutError, match="foreign"):
        rig.call().result()


def test_layers_below_know_when_it_ends() -> None:
    rig = Rig(total=5.0)
    started = rig.runtime.now()
    rig.call()
    assert rig.seen[0].extensions["deadline"] == started + 5.0


def test_without_a_limit_for_the_head_the_request_passes_as_it_is() -> None:
    rig = Rig(between_events=1.0)
    given = Timeout(read=3.0)
    rig.call(timeout=given)
    assert rig.seen[0].timeout is given
    assert "deadline" not in rig.seen[0].extensions
