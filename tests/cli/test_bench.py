"""`netkit bench`, tiny: measured in turn, and as the server saw it. Who wins is for the benchmark itself to say."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netkit.cli import main
from netkit.cli.bench import command, ladder
from netkit.cli.bench.command import Wishes
from netkit.cli.bench.ladder import Contender, Plan, Server
from netkit.cli.bench.peers import PEERS, installed
from netkit.cli.bench.summary import HEAD, Result, cells, page, row
from netkit.cli.demo.ladder import STEPS, Step, Workload
from netkit.cli.demo.stacks import STACKS, Calls, in_tasks, in_threads
from netkit.errors import NetkitError
from netkit.testing import MockGPU, expected_vector

TINY = ["--calls", "12", "--concurrency", "4", "--rounds", "2", "--quick"]


@pytest.fixture
def gpu() -> Iterator[MockGPU]:
    with MockGPU(gpus=4, launch_ms=1) as running:
        yield running


def server_of(gpu: MockGPU) -> Server:
    return Server(f"{gpu.url}/v1/embeddings", gpu.ca_file, model="mock-embed", dimensions=8)


def test_the_ladder_is_measured_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_QUICK_SECONDS", 60.0)  # on a busy machine, too, both rounds are measured
    report = tmp_path / "report.html"
    assert main(["bench", "--stack", "httpx", "--json", "--report", str(report), *TINY]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["loop"], found["complete"], found["rounds"]) == ("closed", True, 2)
    assert [row["step"] for row in found["rows"]] == [step.number for step in STEPS]
    for each in found["rows"]:
        assert (each["calls"], each["errors"], each["rounds"]) == (24, 0, 2)
        assert 0 < each["rate"]["low"] <= each["rate"]["median"] <= each["rate"]["high"]
        assert 0 < each["p50"]["median"] <= each["p99"]["median"]
    first, pooled, http2 = found["rows"][:3]
    assert first["gain"] is None
    assert pooled["gain"]["median"] > 0
    # Warm-up included: a connection for each of 12 + 12 calls, four for four callers, one.
    assert first["connections"]["median"] == 24
    assert 1 <= pooled["connections"]["median"] <= 4
    assert http2["connections"]["median"] == 1
    assert {each["requests"]["median"] for each in (first, pooled, http2)} == {12}
    text = report.read_text(encoding="utf-8")
    assert text.count("<svg") == 5
    assert not re.search(r"(src|href)=", text)


def test_a_server_of_ones_own_gets_the_headers_and_nobody_sees_them(
    gpu: MockGPU, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "page.html"
    arguments = ["bench", "--url", f"{gpu.url}/v1", "--ca", str(gpu.ca_file), "--header", "X-Api-Key: s3cretvalue"]
    assert main([*arguments, "--model", "m", "--report", str(report), "--peers", "--yes", *TINY]) == 0
    captured = capsys.readouterr()
    assert "embedding calls in about" in captured.err
    assert "httpx.AsyncClient, http2" in captured.out
    assert "s3cret" not in captured.out + captured.err + report.read_text(encoding="utf-8")
    for record in gpu.log.requests:
        assert record.path == "/v1/embeddings"
        assert dict(record.headers)["x-api-key"] == "s3cretvalue"
        assert record.json()["model"] == "m"


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_calls_as_the_others_do(peer: Any, gpu: MockGPU) -> None:
    if not installed(peer):
        pytest.skip(f"{peer.name} is not installed")
    plan = Plan(calls=6, concurrency=2, rounds=1, seconds=60)
    report = ladder.measure(plan, server_of(gpu), [Contender("peers", peer.name, peer.run)], lambda _: None)
    (found,) = report.rows
    assert (found.calls, found.errors, found.gain) == (6, 0, None)
    texts = [record.json()["input"] for record in gpu.log.requests]
    assert len(texts) == len(set(texts)) == 12


@pytest.mark.parametrize("stack", list(STACKS))
def test_an_open_loop_on_every_stack(stack: str, gpu: MockGPU) -> None:
    plan = Plan(calls=30, rounds=1, rate=300.0, seconds=60)
    taking_part, _ = ladder.contenders([stack], [2], peers=False)
    report = ladder.measure(plan, server_of(gpu), taking_part, lambda _: None)
    (found,) = report.rows
    assert found.errors == 0
    assert found.calls == len(ladder._arrivals(300.0, 0.1, 0))


def waiting(seconds: float, concurrency: int, starts: tuple[float, ...] | None) -> Workload:
    inputs = tuple(f"t{number}" for number in range(6))
    return Workload("http://x", None, inputs, concurrency, None, starts=starts, checked=False, limit=60.0)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_latency_counts_from_when_the_call_was_due(kind: str) -> None:
    from contextlib import asynccontextmanager, contextmanager

    answer = {"data": [{"embedding": [1.0]}]}

    @contextmanager
    def blocking(_: Step, workload: Workload) -> Iterator[Any]:
        def post(payload: Any) -> Any:
            time.sleep(0.02)
            return answer

        yield post

    @asynccontextmanager
    async def suspending(_: Step, workload: Workload) -> Any:
        async def post(payload: Any) -> Any:
            await asyncio.sleep(0.02)
            return answer

        yield post

    run = in_threads(blocking) if kind == "threads" else in_tasks(suspending)
    # All six are due at once, and there is one caller: the last has waited for five others.
    late = Calls(waiting(0.02, 1, (0.0,) * 6), lambda: None)
    run(STEPS[0], waiting(0.02, 1, (0.0,) * 6), late)
    assert len(late.latencies) == 6
    assert max(late.latencies) >= 6 * 0.02
    assert late.latencies == sorted(late.latencies)
    # A closed loop would have hidden that.
    closed = Calls(waiting(0.02, 1, None), lambda: None)
    run(STEPS[0], waiting(0.02, 1, None), closed)
    assert sum(closed.latencies) <= closed.seconds


def test_arrivals_are_poisson_and_the_same_again() -> None:
    moments = ladder._arrivals(100.0, 50.0, 7)
    assert moments == ladder._arrivals(100.0, 50.0, 7) != ladder._arrivals(100.0, 50.0, 8)
    assert 4500 < len(moments) < 5500
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert 0.9 < variance / mean**2 < 1.1
    assert len(ladder._arrivals(1.0, 0.0, 1)) == 1


def wishes(**given: Any) -> Wishes:
    asked: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Wishes))
    return Wishes(**{**asked, "concurrency": 32, "stacks": (), "steps": (), "peers": True, **given})


class Order:
    """Runs that only note their turn."""

    def __init__(self, latency: float = 0.001, fails: bool = False) -> None:
        self.turns: list[str] = []
        self._latency, self._fails = latency, fails
        self._lock = threading.Lock()

    def contender(self, name: str, step: Step | None = None) -> Contender:
        def run(_: Step, workload: Workload, calls: Calls) -> None:
            for _ in calls.phases():
                for text, _ in calls.take():
                    if self._fails:
                        calls.failed(ConnectionError("no way"))
                    else:
                        calls.done(text, {"data": [{"embedding": [1.0]}]}, time.perf_counter() - self._latency)
            self.turns.append(name)

        return Contender("x", name, run, step)


def test_contenders_take_turns() -> None:
    order = Order()
    plan = Plan(calls=2, rounds=3)
    report = ladder.measure(
        plan, Server("http://x"), [order.contender("a", STEPS[0]), order.contender("b", STEPS[1])], lambda _: None
    )
    assert order.turns == ["a", "b"] * 3
    assert [found.rounds for found in report.rows] == [3, 3]
    assert report.rows[0].gain is None
    assert report.rows[1].gain is not None


def test_no_run_begins_after_the_time() -> None:
    order = Order()
    report = ladder.measure(
        Plan(calls=1, rounds=1000, seconds=0.0),
        Server("http://x"),
        [order.contender("a")],
        lambda _: time.sleep(0.001),
    )
    assert (report.complete, report.unreached, report.rows, order.turns) == (False, ["x · a"], [], [])


def test_a_dead_server_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    order = Order(fails=True)
    with pytest.raises(NetkitError, match="no call succeeded: ConnectionError: no way"):
        ladder.measure(
            Plan(calls=2), Server("http://x"), [order.contender("a"), order.contender("b")], lambda _: None
        )
    assert order.turns == ["a"]


def test_no_call_begins_after_a_runs_limit() -> None:
    calls = Calls(
        Workload("http://x", None, ("a", "b", "c"), 1, None, starts=(0.0, 0.5, 9.0), limit=1.0), lambda: None
    )
    taken = [[text for text, _ in calls.take()] for _ in calls.phases()]
    assert taken == [["a", "b"]]


def test_a_call_that_nobody_could_begin_in_time_is_an_error() -> None:
    workload = Workload(
        "http://x", None, ("a", "b", "c"), 1, None, starts=(0.0, 0.0, 0.0), limit=1e-9, timeout=-1.0, checked=False
    )
    calls = Calls(workload, lambda: None)
    # Due before the end, but by then even the last call's patience is over.
    assert [list(calls.take()) for _ in calls.phases()] == [[]]
    assert (calls.errors, calls.error) == (3, "nobody was free to begin it in time")


@pytest.mark.parametrize("rate", [None, 50.0])
@pytest.mark.parametrize(("quick", "promised"), [(False, 120.0), (True, 30.0)])
def test_what_is_promised_is_the_most_that_it_can_take(quick: bool, promised: float, rate: float | None) -> None:
    whole = not quick and rate is None
    plan = wishes(quick=quick, rate=rate).plan()
    with ladder.mock_server() as server:
        timeout = server.timeout
    assert ladder.most_seconds(plan, timeout=timeout, whole=whole) <= promised
    # A server of one's own may be slower, and has no steps beside the ladder.
    assert ladder.most_seconds(plan, timeout=Server("http://x").timeout, whole=False) <= 120.0


def test_the_parts_of_the_bound_add_up() -> None:
    plan = Plan(seconds=40.0, rounds=2)
    bare = ladder.most_seconds(plan, timeout=0.0, whole=False)
    assert bare == pytest.approx(ladder._START + 40.0 + ladder._LEAST)
    assert ladder.most_seconds(plan, timeout=3.0, whole=False) == pytest.approx(bare + 6.0)
    assert ladder.most_seconds(plan, timeout=0.0, whole=True) > bare + 6 * ladder._PART


def test_a_run_that_begins_late_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(ladder.time, "monotonic", lambda: now[0])
    limits: list[float] = []

    def run(_: Step, workload: Workload, calls: Calls) -> None:
        limits.append(workload.limit)
        calls.latencies.append(0.001)
        now[0] += 30.0

    plan = Plan(calls=1, rounds=1, seconds=61.0)
    taking_part = [Contender("x", str(number), run) for number in range(4)]
    report = ladder.measure(plan, Server("http://x"), taking_part, lambda _: None)
    assert limits == [plan.limit(4), plan.limit(4), 1.0]
    assert report.unreached == ["x · 3"]


def test_a_step_that_does_not_end_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "_PART", 0.0)
    said: list[str] = []
    assert ladder.tables(said.append) == ([], said)
    assert [title.partition(",")[0] for title in said] == ["step 4", "step 5", "step 8"]


def test_warm_up_is_not_counted() -> None:
    begun: list[int] = []
    calls = Calls(Workload("http://x", None, ("a",), 1, 8, warm_up=("w", "v")), lambda: None, lambda: begun.append(1))
    seen = []
    for _ in calls.phases():
        for text, due in calls.take():
            seen.append((text, len(begun)))
            assert due is None
            vector = expected_vector(text, dimensions=8)
            calls.done(text, {"data": [{"embedding": vector}]}, time.perf_counter())
    assert seen == [("w", 0), ("v", 0), ("a", 1)]
    assert len(calls.latencies) == 1


def test_medians_ranges_and_ratios() -> None:
    def result(rate: int, errors: int = 0) -> Result:
        return Result(rate, 1.0, (0.1,) * rate, errors, "boom" if errors else None, requests=rate)

    found = row("s", 2, "pool", [result(10), result(40, 3), result(20)], [result(5), result(10), result(20)])
    assert (found.rate.median, found.rate.low, found.rate.high) == (20, 10, 40)
    assert found.gain is not None
    assert found.gain.median == 2.0
    assert (found.errors, found.error) == (3, "boom")
    assert len(cells(found)) == len(HEAD)
    text = page("<where>", [found], [("more", ["a"], [["<b>"]])])
    assert "&lt;where&gt;" in text
    assert "&lt;b&gt;" in text
    assert 'class="range"' in text
    assert "boom" in text
    empty = row("s", None, "p", [Result(0, 1.0, (), 0)], [])
    assert (empty.rate.median, empty.p99.median) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stack", "curl"], "there is no stack 'curl'"),
        (["--step", "99"], "step 99"),
        (["--model", "m"], "--url"),
        (["--url", "ftp://x"], "bench: the URL"),
        (["--url", "http://x", "--header", "nonsense"], "bench: --header"),
        (["--url", "http://x", "--ca", "/nonexistent/ca.pem"], "no such file"),
        (["--quick", "faults"], "mean nothing to 'faults'"),
    ],
)
def test_called_wrongly(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert said in re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def test_it_asks_before_it_calls_somebodys_server(
    gpu: MockGPU, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: "no\n", raising=False)
    assert main(["bench", "--url", gpu.url, "--ca", str(gpu.ca_file), *TINY]) == 1
    assert list(gpu.log.requests) == []
