"""What is remembered, for how long, for whom, and what is asked for again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from netkit import Headers, Request, Response, TransportError
from netkit.messages import Body
from netkit.testing.mock_gpu import expected_vector
from tests.plugins.cache.rig import JSON, URL, Rig, content_of, embeddings, lost


def vector(given: Any) -> list[float]:
    return expected_vector(given, dimensions=4)


def test_a_known_answer_is_not_asked_for_again() -> None:
    rig = Rig()
    first = rig.call({"model": "m", "input": "a"})
    again = rig.call({"model": "m", "input": "a"})
    assert content_of(again) == content_of(first)
    assert (first.extensions.get("cached"), again.extensions["cached"]) == (None, True)
    assert len(rig.sent) == 1
    figures = rig.layer.stats()
    assert (figures.hits, figures.misses, figures.entries) == (1, 1, 1)
    assert figures.bytes > len(content_of(first))


def test_a_replayed_answers_headers_fit_it() -> None:
    def answer(request: Request) -> Response:
        headers = [
            ("Content-Type", "application/json"), ("Set-Cookie", "a=1"), ("Content-Length", "99999"),
            ("Transfer-Encoding", "chunked"), ("X-RateLimit-Remaining", "3"), ("X-Request-Id", "r"),
            ("X-Api-Key", "SECRET"), ("Connection", "close"),
        ]  # fmt: skip
        return Response.of(200, headers, content_of(embeddings(request)))

    rig = Rig(answer)
    rig.call({"model": "m", "input": "a"})
    rig.runtime.advance(7.5)
    again = rig.call({"model": "m", "input": "a"})
    assert {name.lower(): value for name, value in again.headers.items()} == {
        "content-type": "application/json",
        "content-length": str(len(content_of(again))),
        "x-request-id": "r",
        "age": "7",
    }


def test_it_is_forgotten_after_its_time() -> None:
    rig = Rig(ttl=10.0)
    rig.ask("a")
    rig.runtime.advance(9.9)
    rig.ask("a")
    assert len(rig.sent) == 1
    rig.runtime.advance(0.2)
    rig.ask("a")
    assert len(rig.sent) == 2


def test_a_hit_does_not_make_it_younger() -> None:
    rig = Rig(ttl=10.0)
    for _ in range(6):
        rig.ask("a")
        rig.runtime.advance(3)
    assert len(rig.sent) == 2


def test_only_unknown_inputs_are_sent_and_answers_keep_the_callers_order() -> None:
    rig = Rig()
    rig.ask("a")
    assert rig.ask(["b", "a", "c"]) == [vector("b"), vector("a"), vector("c")]
    assert [body["input"] for body in rig.bodies] == ["a", ["b", "c"]]
    assert rig.ask(["c", "c", "b"]) == [vector("c"), vector("c"), vector("b")]
    assert rig.ask("c") == [vector("c")]
    assert rig.ask(["a"]) == [vector("a")]
    assert len(rig.sent) == 2
    figures = rig.layer.stats()
    assert (figures.hits, figures.misses) == (1 + 3 + 1 + 1, 1 + 2)


def test_an_unknown_input_is_sent_once_however_often_it_stands_there() -> None:
    rig = Rig()
    rig.ask("a")
    assert rig.ask(["b", "a", "b"]) == [vector("b"), vector("a"), vector("b")]
    assert rig.bodies[1]["input"] == ["b"]


def test_token_arrays_are_inputs_of_their_own() -> None:
    rig = Rig()
    assert rig.ask([1, 2, 3]) == [vector([1, 2, 3])]
    assert rig.ask([[1, 2, 3], [4]]) == [vector([1, 2, 3]), vector([4])]
    assert rig.bodies[1]["input"] == [[4]]
    assert rig.ask("1,2,3") == [vector("1,2,3")]
    assert len(rig.sent) == 3


def test_what_the_answer_says_of_its_use_adds_up() -> None:
    rig = Rig()
    rig.ask(["aaaa", "b"])
    usage = json.loads(content_of(rig.call({"model": "m", "input": ["b", "aaaa"]})))["usage"]
    assert usage == {"prompt_tokens": 6, "total_tokens": 6}
    assert len(rig.sent) == 1


def test_results_that_arrive_out_of_order_are_told_apart_by_their_index() -> None:
    def shuffled(request: Request) -> Response:
        content = json.loads(content_of(embeddings(request)))
        content["data"].reverse()
        return Response.of(200, JSON, json.dumps(content).encode())

    rig = Rig(shuffled)
    rig.call({"model": "m", "input": ["a", "b", "c"]})
    for text in "abc":
        assert rig.ask(text) == [vector(text)]
    assert len(rig.sent) == 1


@pytest.mark.parametrize("fault", ["short", "twice", "no index", "too many", "no list"])
def test_a_malformed_list_is_passed_on_and_never_remembered(fault: str) -> None:
    def broken(request: Request) -> Response:
        content = json.loads(content_of(embeddings(request)))
        data = content["data"]
        if len(data) > 1:
            if fault == "short":
                data.pop()
            elif fault == "twice":
                data[1]["index"] = 0
            elif fault == "no index":
                del data[0]["index"]
            elif fault == "too many":
                data.append(data[0])
            else:
                content = {"results": data}
        return Response.of(200, JSON, json.dumps(content).encode())

    rig = Rig(broken)
    rig.call({"model": "m", "input": ["a", "b"]})
    assert rig.layer.stats().entries == 0
    rig.ask("a")
    # One is known, but the rest comes in no shape to be joined: everything is asked for, and passed on as it is.
    got = rig.call({"model": "m", "input": ["b", "a", "c"]})
    assert content_of(got) == content_of(broken(rig.sent[-1]))
    assert rig.bodies[-1]["input"] == ["b", "a", "c"]
    assert rig.layer.stats().entries == 1


def test_an_error_for_the_rest_is_the_callers() -> None:
    def picky(request: Request) -> Response:
        if b"POISON" in (request.body.content or b""):
            return Response.of(422, JSON, b'{"error": "poison"}')
        return embeddings(request)

    rig = Rig(picky)
    rig.ask(["a", "b"])
    assert rig.call({"model": "m", "input": ["a", "POISON"]}).status == 422
    assert rig.ask(["a", "b"]) == [vector("a"), vector("b")]
    assert len(rig.sent) == 2


BASE: dict[str, Any] = {"model": "m", "input": "a"}
OTHERS: list[dict[str, Any]] = [
    {"model": "n"}, {"dimensions": 2}, {"encoding_format": "base64"}, {"user": "u"}, {"seed": 1},
    {"logit_bias": {"1": 1}}, {"logit_bias": {"1": 2}}, {"num_ctx": 1}, {"x": None}, {"x": [1, {"a": 1}]},
    {"x": [1, {"a": 2}]}, {"truncate": True}, {"truncate": False}, {"input": "a "}, {"input": ["a", "a"]},
    {"extra": {"deep": {"er": 1}}}, {"extra": {"deep": {"er": 1.0}}},
]  # fmt: skip


def test_every_field_counts_and_their_order_does_not() -> None:
    rig = Rig(items=())
    bodies = [BASE, *({**BASE, **other} for other in OTHERS)]
    for body in bodies:
        rig.call(body)
    assert len(rig.sent) == len(bodies)
    for body in bodies:
        rig.call(dict(reversed(body.items())))
    assert len(rig.sent) == len(bodies)


@pytest.mark.parametrize("items", [(), (("*/embeddings", "openai"),)])
def test_headers_urls_and_credentials_count(items: Any) -> None:
    rig = Rig(items=items)
    plain = [*JSON, ("authorization", "Bearer A")]
    others: list[dict[str, Any]] = [
        {"headers": plain},
        {"headers": [*JSON, ("authorization", "Bearer B")]},
        {"headers": JSON},
        {"headers": [*plain, ("OpenAI-Organization", "o")]},
        {"headers": [*plain, ("X-Tenant", "t")]},
        {"headers": plain, "url": f"{URL}?api-version=1"},
        {"headers": plain, "url": "https://other.test/v1/embeddings"},
        {"headers": plain, "url": "https://gpu.test/v2/embeddings"},
    ]
    for _ in range(2):
        for other in others:
            rig.call(BASE, **other)
        rig.call(BASE, headers=[*plain, ("traceparent", str(len(rig.sent))), ("x-request-id", "1")])
    assert len(rig.sent) == len(others)


def test_one_credentials_answer_may_serve_another_only_by_choice() -> None:
    rig = Rig(per_credential=False)
    for who in "AB":
        rig.ask("a", headers=[*JSON, ("authorization", f"Bearer {who}")])
    assert len(rig.sent) == 1


@pytest.mark.parametrize("status", [201, 204, 206, 301, 400, 401, 404, 422, 429, 500, 502, 503])
def test_only_200_is_remembered(status: int) -> None:
    rig = Rig(lambda request: Response.of(status, JSON, b'{"data": []}'), items=())
    rig.call(BASE)
    assert rig.layer.stats().entries == 0
    rig.answer = embeddings
    assert rig.call(BASE).status == 200


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        (JSON, b'{"error": {"message": "overloaded"}}'),
        (JSON, b'{"data": [{"index": 0'),
        (JSON, b""),
        ([("content-type", "text/html")], b"<html>502</html>"),
        ([("content-type", "text/event-stream")], b'data: {"error": 1}\n\n'),
        ([*JSON, ("cache-control", "private, no-store")], b"{}"),
        ([*JSON, ("vary", "*")], b"{}"),
        ([*JSON, ("content-range", "bytes 0-1/2")], b"{}"),
        ([*JSON, ("content-encoding", "unheard-of")], b"{}"),
        ([*JSON, ("content-encoding", "gzip")], b"{}"),
    ],
)
def test_a_200_that_is_no_answer_is_not_remembered(headers: Any, content: bytes) -> None:
    for items in ((), (("*/embeddings", "openai"),)):
        rig = Rig(lambda request: Response.of(200, headers, content), items=items)
        rig.call(BASE)
        rig.call(BASE)
        assert len(rig.sent) == 2
        assert rig.layer.stats().entries == 0


def test_a_compressed_answer_is_kept_decoded() -> None:
    import gzip

    def zipped(request: Request) -> Response:
        content = gzip.compress(content_of(embeddings(request)))
        return Response.of(200, [*JSON, ("content-encoding", "gzip"), ("content-length", str(len(content)))], content)

    rig = Rig(zipped)
    rig.call({"model": "m", "input": ["a", "b"]})
    assert rig.ask(["b", "a"]) == [vector("b"), vector("a")]
    assert rig.ask(["b", "c"]) == [vector("b"), vector("c")]
    assert len(rig.sent) == 2


def test_a_bomb_is_passed_on_unremembered() -> None:
    import gzip

    bomb = gzip.compress(b" " * 10_000_000)
    rig = Rig(lambda request: Response.of(200, [*JSON, ("content-encoding", "gzip")], bomb), max_answer_bytes=100_000)
    assert content_of(rig.call(BASE)) == bomb
    assert rig.layer.stats().entries == 0


@pytest.mark.parametrize("control", ["no-cache", "no-store", "max-age=0, no-cache"])
def test_a_caller_may_pass_by(control: str) -> None:
    rig = Rig()
    for _ in range(2):
        rig.call(BASE, headers=[*JSON, ("cache-control", control)])
    assert len(rig.sent) == 2
    assert rig.layer.stats().entries == 0


def test_what_is_not_listed_or_streams_or_is_drawn_passes_by() -> None:
    chat = "https://gpu.test/v1/chat/completions"
    message = {"messages": [{"role": "user", "content": "hi"}]}
    rig = Rig(lambda request: Response.of(200, JSON, b"{}"), routes=("*/embeddings", "*/completions"))
    calls: list[tuple[Any, dict[str, Any]]] = [
        (BASE, {"url": "https://gpu.test/v1/jobs"}),
        (None, {"method": "GET", "url": "https://gpu.test/v1/models"}),
        ({**BASE, "stream": True}, {}),
        (BASE, {"headers": [*JSON, ("accept", "text/event-stream")]}),
        (message, {"url": chat}),
        ({**message, "temperature": 0.2}, {"url": chat}),
        ({**message, "temperature": 0, "n": 2}, {"url": chat}),
        (BASE, {"headers": [*JSON, ("range", "bytes=0-1")]}),
    ]
    for body, named in calls:
        rig.call(body, **named)
        rig.call(body, **named)
    assert len(rig.sent) == 2 * len(calls)
    rig.call({**message, "temperature": 0}, url=chat)
    rig.call({**message, "temperature": 0}, url=chat)
    assert len(rig.sent) == 2 * len(calls) + 1


def test_drawn_answers_by_choice() -> None:
    chat = "https://gpu.test/v1/chat/completions"
    rig = Rig(lambda request: Response.of(200, JSON, b"{}"), routes=("*/completions",), sampled=True)
    for _ in range(2):
        rig.call({"messages": []}, url=chat)
    assert len(rig.sent) == 1


def test_a_one_shot_body_passes_by_whole() -> None:
    rig = Rig(lambda request: Response.of(200, JSON, b"{}"))
    body = Body.one_shot(iter([b"{", b"}"]))
    request = Request("POST", URL, Headers(JSON), body)
    task = rig.runtime.task(rig.chain(request))
    rig.runtime.run_to_end()
    assert task.result().status == 200
    assert rig.sent[0].body is body
    assert rig.layer.stats().misses == 0


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_change_makes_what_get_gave_unknown(method: str) -> None:
    answers = iter(range(100))
    rig = Rig(lambda request: Response.of(200, JSON, b'{"n": %d}' % next(answers)), routes=("/things/*",))
    url = "https://gpu.test/things/1"

    def get(who: str) -> bytes:
        return content_of(rig.call(None, "GET", url, [("authorization", who)]))

    assert get("A") == get("A") == b'{"n": 0}'
    assert get("B") == b'{"n": 1}'
    rig.runtime.advance(1)
    rig.call({"x": 1}, method, url, [*JSON, ("authorization", "C")])
    rig.runtime.advance(1)
    assert [get("A"), get("B"), get("A")] == [b'{"n": 3}', b'{"n": 4}', b'{"n": 3}']
    assert content_of(rig.call(None, "GET", "https://gpu.test/things/2")) == b'{"n": 5}'


def test_a_change_that_failed_changes_nothing() -> None:
    rig = Rig(
        lambda request: Response.of(200 if request.method == "GET" else 409, JSON, b"{}"), routes=("/things/*",)
    )
    url = "https://gpu.test/things/1"
    rig.call(None, "GET", url)
    rig.runtime.advance(1)
    rig.call({}, "PUT", url)
    rig.runtime.advance(1)
    assert rig.call(None, "GET", url).extensions["cached"]


def test_an_answer_to_a_question_older_than_the_change_is_void() -> None:
    """GET is sent, PUT changes, GET's old answer arrives: it must not be what is known afterwards."""
    rig = Rig(lambda request: Response.of(200, JSON, b"{}"), routes=("/things/*",))
    url = "https://gpu.test/things/1"
    slow = rig.start(None, "GET", url)
    while not rig.sent:
        rig.runtime.ready.popleft().step()
    rig.runtime._now += 1
    rig.call({}, "PUT", url)
    rig.runtime.run_to_end()
    assert slow.result().status == 200
    rig.call(None, "GET", url)
    assert [request.method for request in rig.sent] == ["GET", "PUT", "GET"]


def test_misses_at_the_same_time_share_one_call() -> None:
    rig = Rig()
    tasks = [rig.start({"model": "m", "input": ["a", "b"]}) for _ in range(5)]
    rig.runtime.run_to_end()
    assert len(rig.sent) == 1
    assert len({content_of(task.result()) for task in tasks}) == 1
    assert rig.layer.stats().shared == 4


def test_a_cancelled_first_one_leaves_the_others_their_answer() -> None:
    rig = Rig()
    rig.ask("z")
    first = rig.start({"model": "m", "input": ["z", "b"]})
    rig.runtime.ready.popleft().step()
    second = rig.start({"model": "m", "input": ["z", "b"]})
    first.cancel()
    rig.runtime.run_to_end()
    assert first.cancelled
    assert second.result().status == 200
    assert rig.layer.stats().in_flight == 0
    assert rig.ask("b") == [vector("b")]


@pytest.mark.parametrize("failure", [lost, lambda: Response.of(503, JSON, b"{}")])
def test_a_stale_answer_serves_only_by_choice_and_only_for_a_while(failure: Any) -> None:
    for grace, expected in ((0.0, "fails"), (50.0, "stale")):
        rig = Rig(ttl=10.0, stale_if_error=grace)
        rig.ask(["a", "b"])
        rig.runtime.advance(30)
        rig.answer = lambda request: failure()
        if expected == "stale":
            assert rig.ask(["b", "a"]) == [vector("b"), vector("a")]
            assert rig.ask("a") == [vector("a")]
            assert rig.layer.stats().stale == 2
            rig.runtime.advance(31)
        task = rig.start({"model": "m", "input": "a"})
        rig.runtime.run_to_end()
        if failure is lost:
            with pytest.raises(TransportError):
                task.result()
        else:
            assert task.result().status == 503
        rig.answer = embeddings
        assert rig.ask("a") == [vector("a")]


def test_the_longest_unused_goes_first() -> None:
    rig = Rig(max_bytes=3000)
    for number in range(20):
        rig.ask(str(number))
        rig.ask("0")
    figures = rig.layer.stats()
    assert figures.bytes <= 3000
    assert figures.evictions > 0
    before = len(rig.sent)
    rig.ask("0")
    assert len(rig.sent) == before, "what is used all the time was let go"


def test_what_is_larger_than_everything_is_not_kept() -> None:
    rig = Rig(max_bytes=300)
    rig.ask(["a", "b"])
    assert rig.layer.stats().entries == 0
    assert rig.ask("a") == [vector("a")]


def test_a_call_that_is_shared_already_is_marked_for_the_layers_below() -> None:
    rig = Rig()
    rig.ask("a")
    assert rig.sent[0].extensions["shared"] is True


@pytest.mark.parametrize(
    "wrong",
    [{"ttl": 0.0}, {"max_bytes": 0}, {"storage": "disk"}, {"storage": "sqlite:"}, {"stale_if_error": -1.0}],
)
def test_options_that_cannot_work_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Rig(**wrong)


def test_a_wrong_storage_is_not_shown() -> None:
    with pytest.raises(ValueError) as caught:
        Rig(storage="http://:SECRET@h")
    assert "SECRET" not in str(caught.value)


def test_a_refusal_is_its_own_credentials_alone() -> None:
    """Also where answers are everybody's: a good key is not refused because a bad one asks at the same time."""

    def answer(request: Request) -> Response:
        if request.headers["authorization"] == "Bearer bad":
            return Response.of(401, JSON, b'{"error": "key"}')
        return embeddings(request)

    rig = Rig(answer, per_credential=False)
    calls = [rig.start(BASE, headers=[*JSON, ("authorization", f"Bearer {who}")]) for who in ("bad", "good", "bad")]
    rig.runtime.run_to_end()
    assert [call.result().status for call in calls] == [401, 200, 401]
    assert len(rig.sent) == 2
    assert rig.call(BASE, headers=[*JSON, ("authorization", "Bearer other")]).status == 200
    assert len(rig.sent) == 2
