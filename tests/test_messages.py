"""Requests never change; the end of a response is told once, to everyone."""

from __future__ import annotations

import pytest

from netkit import Body, Headers, Request, Response, Timeout, TransportError
from netkit.errors import BodyClosed
from netkit.messages import NO_BODY, BytesResponseBody
from netkit.runtime import Scripted


def test_a_request_is_immutable_and_replace_copies() -> None:
    request = Request("GET", "http://h/", [("A", "1")], native="mine")
    with pytest.raises(AttributeError, match=r"use replace\(url=…\)"):
        request.url = "http://other/"
    changed = request.replace(method="POST", body=Body.of(b"x"))
    assert (request.method, request.body) == ("GET", NO_BODY)
    assert (changed.method, changed.url, changed.native) == ("POST", "http://h/", "mine")
    assert changed.headers is request.headers


def test_extend_adds_and_keeps() -> None:
    request = Request("GET", "http://h/", extensions={"a": 1})
    assert request.extend(b=2).extensions == {"a": 1, "b": 2}
    assert request.extensions == {"a": 1}


def test_headers_are_made_when_they_are_asked_for() -> None:
    made = []

    def make() -> Headers:
        made.append(1)
        return Headers([("A", "1")])

    request = Request("GET", "http://h/", make)
    changed = request.replace(method="POST")
    assert made == []
    assert request.headers["a"] == "1"
    assert request.headers is request.headers
    assert changed.headers["a"] == "1"
    assert made == [1, 1]


def test_no_secret_in_a_repr() -> None:
    url = "http://user:secret@h/path?key=secret"
    request = Request("GET", url, [("Authorization", "secret")], Body.of(b"secret"))
    assert "secret" not in repr(request)
    assert "secret" not in repr(request.headers)
    assert "secret" not in repr(request.body)


@pytest.mark.parametrize(
    ("body", "replayable", "size", "shown"),
    [
        (Body.of(b"abc"), True, 3, "<Body bytes size=3>"),
        (Body.reopenable(lambda: [b"a"], 1), True, 1, "<Body reopenable size=1>"),
        (Body.reopenable(lambda: [b"a"]), True, None, "<Body reopenable size=unknown>"),
        (Body.one_shot(iter([b"a"])), False, None, "<Body one-shot size=unknown>"),
    ],
)
def test_bodies(body: Body, replayable: bool, size: int | None, shown: str) -> None:
    assert (body.replayable, body.size, repr(body)) == (replayable, size, shown)


def test_a_reopenable_body_opens_anew_each_time() -> None:
    body = Body.reopenable(lambda: iter([b"a", b"b"]))
    for _ in range(2):
        assert b"".join(body.open()) == b"ab"  # type: ignore[arg-type]


def test_a_timeout_is_cut_to_what_is_left() -> None:
    assert Timeout(connect=1.0, read=9.0).at_most(3.0) == Timeout(1.0, 3.0, 3.0, 3.0, 3.0)


def test_the_end_is_told_once_to_everyone_and_releases_first() -> None:
    body = BytesResponseBody(b"")
    told: list[object] = []
    body.observe(on_end=lambda error: told.append(("a", error)))
    body.on_release(lambda: told.append(("released", None)))
    body.observe(on_end=lambda error: told.append(("b", error)))
    body.end()
    body.end(ValueError())
    assert told == [("released", None), ("a", None), ("b", None)]


def test_who_comes_late_is_told_at_once() -> None:
    body = BytesResponseBody(b"")
    told: list[object] = []
    failure = TransportError("x")
    body.end(failure)
    body.observe(on_end=told.append)
    body.on_release(lambda: told.append(None))
    assert told == [failure, None]


def test_release_comes_before_the_end_and_only_once() -> None:
    body = BytesResponseBody(b"")
    told: list[object] = []
    body.on_release(lambda: told.append("released"))
    body.observe(on_end=lambda error: told.append("ended"))
    body.release()
    assert told == ["released"]
    body.end()
    assert told == ["released", "ended"]


def test_an_observer_that_fails_does_not_keep_others_from_letting_go(caplog: pytest.LogCaptureFixture) -> None:
    body = BytesResponseBody(b"")
    told: list[object] = []

    def broken(*_: object) -> None:
        raise ValueError("mine")

    body.on_release(broken)
    body.on_release(lambda: told.append("released"))
    body.observe(on_end=broken)
    body.observe(on_end=lambda error: told.append("ended"))
    body.end()
    assert told == ["released", "ended"]
    assert len(caplog.records) == 2


def test_chunks_pass_every_observer_in_the_order_of_adding() -> None:
    body = BytesResponseBody(b"")
    body.observe(lambda chunk: chunk + b"1")
    body.observe(lambda chunk: chunk + b"2")
    assert body.chunk(b"0") == b"012"


def test_a_made_answer_is_read_and_discarded() -> None:
    runtime = Scripted()
    told: list[object] = []
    response = Response.of(404, [("A", "1")], b"gone", cached=True)
    response.observe(on_end=told.append)
    read = runtime.task(response.read())
    runtime.run()
    assert (response.status, response.headers["a"], read.result()) == (404, "1", b"gone")
    assert response.extensions == {"cached": True}
    assert repr(response) == "<Response 404 open>"
    runtime.task(response.discard())
    runtime.run()
    assert isinstance(told[0], BodyClosed)
    assert repr(response) == "<Response 404 ended>"
