"""The batch layer on the Scripted runtime: when batches go, what is in them, and who gets what."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from batch_rig import Rig, embedded, inputs_of, request, vectors
from netkit_plugins.batch import BatchLayer, BatchOptions

from netkit import Context, Response, TransportError, Verdict
from netkit.errors import BatchError, CircuitOpen, FailureKind
from netkit.events import BatchSent, Emitter
from netkit.messages import Body, Timeout
from netkit.runtime import Asyncio
from netkit.stats import Meter


def test_a_call_alone_goes_at_once_and_untouched() -> None:
    rig = Rig()
    sent = request("a")
    (task,) = rig.run(sent)
    assert embedded(task) == ["a"]
    assert rig.seen == [sent]
    assert rig.seen[0] is sent
    assert rig.runtime.now() == 1001.0
    assert "batch" not in task.result().extensions


def test_calls_of_one_moment_are_one_batch_from_the_first_on() -> None:
    rig = Rig()
    tasks = rig.run("a", "b", ["c", "d"], [1, 2, 3], [[4], [5]])
    assert [embedded(task) for task in tasks] == [["a"], ["b"], ["c", "d"], [[1, 2, 3]], [[4], [5]]]
    # Texts and token arrays do not go together: servers take a list of one or the other.
    assert rig.sizes == [4, 3]
    assert [task.result().extensions["batch"] for task in tasks] == [(4, 0), (4, 1), (4, 2), (3, 0), (3, 1)]
    assert [json.loads(task.result().body.content)["usage"]["total_tokens"] for task in tasks] == [1, 1, 2, 2, 1]
    assert json.loads(rig.seen[1].body.content or b"")["input"] == [[1, 2, 3], [4], [5]]
    assert {task.result().headers["x-limit"] for task in tasks} == {"7"}


def test_on_a_busy_route_the_first_waits_its_time_and_all_go_together() -> None:
    rig = Rig(max_wait=0.25)
    first = rig.busy()
    early = rig.start("a")
    rig.runtime.advance(0.125)
    late = rig.start("b")
    rig.runtime.advance(0.124)
    assert rig.sizes == [1]
    rig.runtime.advance(0.002)
    assert rig.sizes == [1, 2]
    rig.runtime.run_to_end()
    assert [embedded(task) for task in (first, early, late)] == [["busy"], ["a"], ["b"]]
    sent = [event for event in rig.events if isinstance(event, BatchSent)]
    assert [(event.items, event.callers, event.origin) for event in sent] == [
        (1, 1, "http://gpu.test"),
        (2, 2, "http://gpu.test"),
    ]
    assert sent[1].waited == pytest.approx(0.25)


def test_what_waits_when_the_route_falls_idle_goes_at_once() -> None:
    rig = Rig(max_wait=60.0)
    rig.busy()
    waiting = [rig.start("a"), rig.start("b")]
    rig.runtime.advance(1.0)
    assert rig.sizes == [1, 2]
    rig.runtime.run_to_end()
    assert [embedded(task) for task in waiting] == [["a"], ["b"]]
    assert rig.runtime.now() == 1002.0


def test_a_full_batch_goes_at_once_and_exactly_full() -> None:
    rig = Rig(max_items=4, max_wait=60.0)
    rig.busy()
    tasks = [rig.start(text) for text in "abcdefghi"]
    rig.runtime.run()
    assert rig.sizes == [1, 4, 4]
    rig.runtime.run_to_end()
    assert [embedded(task) for task in tasks] == [[text] for text in "abcdefghi"]
    assert rig.sizes == [1, 4, 4, 1]


def test_no_more_than_max_in_flight_batches_and_the_rest_grows() -> None:
    rig = Rig(max_items=2, max_in_flight=2, max_wait=0.0)
    rig.busy()
    tasks = [rig.start(text) for text in "abcdefg"]
    rig.runtime.run()
    assert rig.inside == 2
    assert rig.layer.stats().waiting == 6
    rig.runtime.run_to_end()
    assert sorted(embedded(task)[0] for task in tasks) == list("abcdefg")
    assert rig.sizes == [1, 1, 2, 2, 2]


def test_a_list_larger_than_a_batch_is_split_and_rejoined_in_order() -> None:
    rig = Rig(max_items=32)
    given = [f"text {number}" for number in range(71)]
    (task,) = rig.run(given)
    assert embedded(task) == given
    assert rig.sizes == [32, 32, 7]
    assert json.loads(task.result().body.content)["usage"] == {"total_tokens": 71}


def test_bytes_and_tokens_bound_a_batch_too() -> None:
    rig = Rig(max_bytes=1000)
    # 3 bytes each in UTF-8, 6 in JSON's escapes: what counts is what is sent.
    tasks = rig.run(*["€" * 40 for _ in range(9)], "x" * 3000)
    for task in tasks[:9]:
        assert embedded(task) == ["€" * 40]
    assert embedded(tasks[9]) == ["x" * 3000]
    bodies = [len(sent.body.content or b"") for sent in rig.seen]
    assert max(bodies) > 3000
    assert all(size <= 1000 for size in sorted(bodies)[:-1])
    assert len(bodies) == 4

    rig = Rig(max_tokens=10)
    tasks = rig.run([1] * 6, [2] * 4, [3] * 5, [4] * 20)
    assert [embedded(task) for task in tasks] == [[[1] * 6], [[2] * 4], [[3] * 5], [[4] * 20]]
    assert rig.sizes == [2, 1, 1]


DIFFERENT: list[dict[str, Any]] = [
    {"dimensions": 4},
    {"encoding_format": "base64"},
    {"model": "other"},
    {"user": "u"},
    {"x_foo": None},
    {"url": "http://gpu.test/v1/embeddings?v=2"},
    {"url": "http://other.test/v1/embeddings"},
    {"headers": [("x-tenant", "b")]},
    {"headers": [("OpenAI-Organization", "o")]},
    {"headers": [("accept", "text/html")]},
]


def test_only_equal_calls_are_merged() -> None:
    rig = Rig()
    different = [rig.start(f"d{number}", **how) for number, how in enumerate(DIFFERENT)]
    other_key = request("k2").replace(
        headers=request("k2").headers.set("Authorization", "Bearer k2"),
    )
    different.append(rig.start(other_key))
    same = [rig.start("s1"), rig.start("s2"), rig.start("s3", headers=[("traceparent", "1"), ("x-request-id", "9")])]
    rig.runtime.run_to_end()
    assert [embedded(task) for task in same] == [["s1"], ["s2"], ["s3"]]
    for number, task in enumerate(different[:-1]):
        assert embedded(task) == [f"d{number}"]
    assert len(rig.seen) == len(DIFFERENT) + 2
    for sent in rig.seen:
        assert len({sent.headers["authorization"]}) == 1
        assert ("k2" in inputs_of(sent.body.content)) == (sent.headers["authorization"] == "Bearer k2")


def test_what_is_not_a_call_with_inputs_passes_untouched() -> None:
    rig = Rig(answer=lambda _: Response.of(200, [], b"as it is"))
    rig.answer = lambda given: Response.of(200, [], b"as it is")
    body = request("a").body
    assert body.content is not None
    untouched = [
        request("a", url="http://gpu.test/v1/chat/completions"),
        request("a").replace(method="PUT"),
        request("a", headers=[("idempotency-key", "1")]),
        request("a", headers=[("content-encoding", "gzip")]),
        request("a", stream=True),
        request("a").replace(headers=request("a").headers.set("content-type", "text/plain")),
        request("a").replace(body=Body.one_shot(iter([body.content]))),
        request("a").replace(body=Body(body.content, None, body.size, False)),
    ]
    sent: list[Any] = []

    async def send(given: Any) -> Response:
        sent.append(given)
        await rig.runtime.sleep(1.0)
        return Response.of(200, [], b"as it is")

    tasks = [rig.runtime.task(rig.layer(each, send)) for each in untouched]
    rig.runtime.run()
    assert len(sent) == len(untouched)
    assert all(there is here for there, here in zip(sent, untouched, strict=True))
    rig.runtime.run_to_end()
    assert [task.result().body.content for task in tasks] == [b"as it is"] * len(untouched)


def poisoned(given: list[Any]) -> Any:
    bad = [item for item in given if "POISON" in str(item)]
    if bad:
        return Response.of(422, [("x-bad", bad[0])], json.dumps({"error": bad, "of": len(given)}).encode())
    return vectors(given)


@pytest.mark.parametrize("where", [0, 13, 31])
def test_one_bad_input_of_many_fails_its_own_caller_alone(where: int) -> None:
    rig = Rig(answer=poisoned)
    texts = [f"text {number}" for number in range(32)]
    texts[where] = "POISON"
    tasks = rig.run(*texts)
    for text, task in zip(texts, tasks, strict=True):
        if text != "POISON":
            assert embedded(task) == [text]
    refused = tasks[where].result()
    assert (refused.status, refused.headers["x-bad"]) == (422, "POISON")
    assert json.loads(refused.body.content) == {"error": ["POISON"], "of": 1}
    assert json.loads(rig.seen[-1].body.content or b"") or True
    assert len(rig.seen) <= 12
    alone = [sent for sent in rig.seen if inputs_of(sent.body.content) == ["POISON"]]
    # Its own request, as its caller wrote it, so that the server's words fit it.
    assert [json.loads(sent.body.content or b"")["input"] for sent in alone] == ["POISON"]


def test_two_bad_inputs_and_a_list_with_one_of_them() -> None:
    rig = Rig(answer=poisoned)
    calls: list[Any] = [f"text {number}" for number in range(28)]
    calls[3] = "POISON 1"
    calls[20] = ["good", "POISON 2", "also good"]
    tasks = rig.run(*calls)
    assert [task.result().status for task in tasks] == [422 if n in (3, 20) else 200 for n in range(28)]
    assert json.loads(tasks[20].result().body.content) == {"error": ["POISON 2"], "of": 3}


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_other_statuses_reach_every_caller_in_a_copy_of_its_own(status: int) -> None:
    rig = Rig(answer=lambda given: Response.of(status, [("retry-after", "3"), ("etag", "x")], b'{"error": 1}'))
    tasks = rig.run("a", "b", "c")
    assert len(rig.seen) == 1
    answers = [task.result() for task in tasks]
    assert len({id(answer) for answer in answers}) == len({id(answer.body) for answer in answers}) == 3
    for answer in answers:
        assert (answer.status, answer.headers["retry-after"], answer.body.content) == (status, "3", b'{"error": 1}')
        assert answer.headers["content-length"] == "12"
        assert "etag" not in answer.headers


@pytest.mark.parametrize(
    "make",
    [
        lambda: TransportError("reset", kind=FailureKind.RESET, verdict=Verdict.AMBIGUOUS, native=OSError(104, "x")),
        lambda: CircuitOpen("open", retry_after=3.0),
        lambda: ValueError("not a failure of the exchange"),
    ],
)
def test_a_failure_reaches_every_caller_as_an_error_of_its_own(make: Callable[[], Exception]) -> None:
    error = make()
    rig = Rig(answer=lambda given: error)
    tasks = rig.run("a", "b", "c")
    assert len(rig.seen) == 1
    raised: list[Any] = []
    for task in tasks:
        with pytest.raises(type(error)) as caught:
            task.result()
        raised.append(caught.value)
    assert len({id(each) for each in [*raised, error]}) == 4
    assert {str(each) for each in raised} == {str(error)}
    if isinstance(error, TransportError):
        assert {(each.kind, each.verdict) for each in raised} == {(error.kind, error.verdict)}
        assert len({id(each.native) for each in raised}) == (3 if error.native else 1)
    if isinstance(error, CircuitOpen):
        assert {each.retry_after for each in raised} == {3.0}


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"not json",
        b'{"data": [{"index": 0}, {"index": 0}, {"index": 2}]}',
        b'{"data": [{"index": 0}, {"index": 1}]}',
        b'{"data": [{"index": 0}, {"index": 1}, {}]}',
        b'{"data": [{"index": 0}, {"index": 1}, {"index": 2}, {"index": 3}]}',
    ],
)
def test_a_malformed_answer_is_an_error_for_all(content: bytes) -> None:
    rig = Rig(answer=lambda given: content)
    raised = []
    for task in rig.run("a", "b", "c"):
        with pytest.raises(BatchError) as caught:
            task.result()
        raised.append(caught.value)
    assert len({id(error) for error in raised}) == 3
    assert len(rig.seen) == 1


def limited(limit: int, message: str) -> Callable[[list[Any]], Any]:
    def answer(given: list[Any]) -> Any:
        if len(given) > limit:
            return Response.of(413, [], json.dumps({"error": message.format(len(given))}).encode())
        return vectors(given)

    return answer


def test_a_limit_that_the_server_names_is_learned() -> None:
    rig = Rig(answer=limited(5, "batch size {} > maximum allowed batch size 5"))
    tasks = rig.run(*[f"a{number}" for number in range(12)])
    assert [embedded(task) for task in tasks] == [[f"a{number}"] for number in range(12)]
    assert rig.sizes == [12, 5, 5, 2]
    assert rig.layer.stats().max_items == 5
    rig.seen.clear()
    rig.runtime.advance(1.0)
    (task,) = rig.run([f"b{number}" for number in range(7)])
    assert embedded(task) == [f"b{number}" for number in range(7)]
    assert rig.sizes == [5, 2]


def test_a_limit_named_to_a_caller_alone_splits_its_own_list() -> None:
    rig = Rig(answer=limited(3, "array too long. Expected an array with maximum length 3, but got {}"))
    (task,) = rig.run([f"b{number}" for number in range(7)])
    assert embedded(task) == [f"b{number}" for number in range(7)]
    assert rig.sizes == [7, 3, 3, 1]
    assert rig.layer.stats().in_flight == 0


def test_what_a_refusal_quotes_of_its_inputs_is_no_limit_of_the_servers() -> None:
    rig = Rig(answer=poisoned)
    texts = [f"a{number}" for number in range(11)]
    tasks = rig.run(*texts, "POISON: a list of at most 2 items")
    assert [embedded(task) for task in tasks[:-1]] == [[text] for text in texts]
    assert tasks[-1].result().status == 422
    # Halves were sent until it was found, no pieces of two.
    assert rig.sizes[:2] == [12, 6]
    assert rig.layer.stats().max_items == BatchOptions().max_items


def test_a_refusal_of_a_caller_alone_is_its_own() -> None:
    rig = Rig(answer=poisoned)
    (task,) = rig.run(["good", "POISON"])
    assert task.result().status == 422
    assert len(rig.seen) == 1


def test_leaving_takes_a_callers_inputs_along_and_harms_no_other() -> None:
    for victim in range(4):
        for step in range(12):
            rig = Rig(max_wait=0.25)
            busy = rig.busy()
            tasks = [
                rig.start(text, cancel_at=step if number == victim else None) for number, text in enumerate("abcd")
            ]
            rig.runtime.run_to_end()
            where = f"{victim} cancelled at {step}"
            assert embedded(busy) == ["busy"]
            for number, text in enumerate("abcd"):
                if number != victim:
                    assert embedded(tasks[number]) == [text], where
            assert rig.inside == 0, where
            stats = rig.layer.stats()
            assert (stats.in_flight, stats.waiting) == (0, 0), where
            if not tasks[victim].cancelled:
                assert embedded(tasks[victim]) == ["abcd"[victim]]
                break
        else:
            raise AssertionError("cancelled at every step")


def test_the_first_of_one_moment_may_leave_at_any_step() -> None:
    for step in range(12):
        rig = Rig()
        tasks = [rig.start("a", cancel_at=step), rig.start("b"), rig.start("c")]
        rig.runtime.run_to_end()
        assert [embedded(task) for task in tasks[1:]] == [["b"], ["c"]]
        assert rig.inside == rig.layer.stats().in_flight == 0
        if not tasks[0].cancelled:
            return
    raise AssertionError("cancelled at every step")


def test_a_batch_that_all_have_left_is_given_up() -> None:
    rig = Rig()
    rig.seconds = 1000.0
    tasks = [rig.start("a"), rig.start("b")]
    rig.runtime.run()
    assert rig.inside == 1
    tasks[0].cancel()
    rig.runtime.run()
    assert rig.inside == 1
    tasks[1].cancel()
    rig.runtime.run()
    assert rig.inside == 0
    assert rig.layer.stats().in_flight == 0
    rig.seconds = 1.0
    assert embedded(rig.run("c")[0]) == ["c"]


def test_a_batch_that_is_cancelled_from_outside_fails_its_callers() -> None:
    rig = Rig()
    tasks = [rig.start("a"), rig.start("b")]
    rig.runtime.run()
    (batch,) = [task for task in rig.runtime.tasks if task.name == "batch"]
    batch.cancel()
    rig.runtime.run_to_end()
    for task in tasks:
        with pytest.raises(TransportError):
            task.result()
    assert rig.layer.stats().in_flight == 0


def test_who_is_less_patient_leaves_alone() -> None:
    rig = Rig()
    rig.seconds = 5.0
    patient = rig.start("a", timeout=Timeout(read=30.0))
    hasty = rig.start("b", timeout=Timeout(read=2.0))
    rig.runtime.run_to_end()
    assert embedded(patient) == ["a"]
    with pytest.raises(TransportError) as caught:
        hasty.result()
    assert (caught.value.kind, caught.value.verdict) == (FailureKind.READ_TIMEOUT, Verdict.AMBIGUOUS)
    assert rig.seen[0].timeout.read == 30.0


def test_a_total_time_runs_from_the_callers_arrival_also_in_the_queue() -> None:
    rig = Rig(max_in_flight=1, max_wait=0.0)
    rig.seconds = 5.0
    rig.busy()
    hasty = rig.start("b", timeout=Timeout(total=2.0))
    rig.runtime.advance(1.999)
    assert not hasty.done()
    rig.runtime.advance(0.002)
    with pytest.raises(TransportError) as caught:
        hasty.result()
    assert caught.value.verdict is Verdict.NOT_SENT
    rig.runtime.run_to_end()
    assert rig.sizes == [1]
    assert rig.layer.stats().waiting == 0


def test_equal_limits_are_the_transports_business() -> None:
    rig = Rig()
    rig.seconds = 60.0
    limits = Timeout(connect=1.0, read=2.0)
    tasks = rig.run(request("a", timeout=limits), request("b", timeout=limits))
    # The scripted transport does not enforce them: nobody else may, for a retry below begins its own.
    assert [embedded(task) for task in tasks] == [["a"], ["b"]]
    assert rig.seen[0].timeout == limits


def test_a_body_that_breaks_off_is_everybodys_error() -> None:
    class Torn(Response):
        async def read(self) -> bytes:
            raise TransportError("torn", kind=FailureKind.BODY, verdict=Verdict.PROCESSED)

    rig = Rig(answer=lambda given: Torn(200, Response.of(200).headers, Response.of(200).body))
    for task in rig.run("a", "b"):
        with pytest.raises(TransportError, match="torn"):
            task.result()


def test_no_credential_and_no_input_shows_in_a_repr() -> None:
    rig = Rig()
    rig.busy()
    rig.start("secret text")
    rig.runtime.run()
    shown = repr(rig.layer) + "".join(map(repr, rig.layer._groups.values()))
    assert "Bearer" not in shown
    assert "secret" not in shown
    rig.runtime.run_to_end()


def test_a_forked_child_starts_without_the_parents_callers() -> None:
    rig = Rig()
    rig.busy()
    rig.start("a")
    rig.runtime.run()
    rig.layer.after_fork_in_child()
    assert (rig.layer.stats().in_flight, rig.layer.stats().waiting) == (0, 0)
    rig.runtime.run_to_end()


def test_two_loops_do_not_share_a_batch() -> None:
    layer = BatchLayer(BatchOptions(), Context(runtime=Asyncio(), emit=Emitter(), stack="httpx", meter=Meter()))
    sizes: list[int] = []

    async def send(sent: Any) -> Response:
        await asyncio.sleep(0)
        given = inputs_of(sent.body.content)
        sizes.append(len(given))
        return Response.of(200, [], vectors(given))

    async def work() -> None:
        answers = await asyncio.gather(*(layer(request(text), send) for text in "abc"))
        for text, answer in zip("abc", answers, strict=True):
            assert json.loads(answer.body.content)["data"][0]["embedding"] == ["of", text]

    for _ in range(2):
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(work())
    assert sizes == [3, 3]


def encoded(given: list[Any], coding: str, encode: Any) -> Response:
    headers = [("content-type", "application/json"), ("content-encoding", coding)]
    return Response.of(200, headers, encode(vectors(given)))


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("gzip, deflate", lambda content: zlib.compress(gzip.compress(content))),
    ],
)
def test_a_server_that_compresses_unasked(coding: str, encode: Any) -> None:
    rig = Rig(lambda given: encoded(given, coding, encode), max_wait=0.01)
    for task, text in zip(rig.run("a", "b"), "ab", strict=True):
        response = task.result()
        assert "content-encoding" not in response.headers
        assert json.loads(response.body.content)["data"] == [{"index": 0, "embedding": ["of", text]}]


@pytest.mark.parametrize("content", [b"Q{}", b"\x1f\x8bx", b"x", b""])
@pytest.mark.parametrize("coding", ["dcb", "gzip", "deflate"])
def test_what_nobody_can_read_is_an_error_and_never_somebodys_answer(coding: str, content: bytes) -> None:
    rig = Rig(lambda given: encoded(given, coding, lambda _: content), max_wait=0.01)
    for task in rig.run("a", "b"):
        with pytest.raises(BatchError):
            task.result()
