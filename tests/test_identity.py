"""Keys: equal for what asks the same, different for everything that can change an answer, and for who asks."""

from __future__ import annotations

import gc
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netkit import Headers, Request
from netkit.identity import (
    DEFAULT_IGNORED_HEADERS,
    DIGEST_BYTES,
    Identities,
    asks_for_stream,
    canonical_json,
    is_json,
    is_sampled,
    members_of,
    repeats_a_name,
    token_of,
)
from netkit.messages import Body

URL = "https://gpu.test/v1/embeddings"
JSON = [("Content-Type", "application/json"), ("Authorization", "Bearer SECRET")]
IDENTITIES = Identities(b"s", ignore=DEFAULT_IGNORED_HEADERS)


class Native:
    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def channel(self) -> tuple[str, ...]:
        return self.parts


def request(
    method: str = "POST", url: str = URL, headers: Any = JSON, body: bytes = b"{}", native: Any = None
) -> Request:
    return Request(method, url, Headers(headers), Body.of(body), native=native)


def key(request: Request, identities: Identities = IDENTITIES) -> bytes:
    return identities.key(request, request.body.content)


DIFFERENT = [
    request(),
    request("GET"),
    request(url=f"{URL}?a=1"),
    request(url=f"{URL}?a=1&b=2"),
    request(url=f"{URL}?b=2&a=1"),
    request(url="http://gpu.test/v1/embeddings"),
    request(url="https://u:p@gpu.test/v1/embeddings"),
    request(body=b"{ }"),
    request(body=b""),
    request(headers=JSON[:1]),
    request(headers=[JSON[0], ("Authorization", "Bearer OTHER")]),
    request(headers=[*JSON, ("X-Tenant", "a")]),
    request(headers=[*JSON, ("X-Tenant", "b")]),
    request(headers=[*JSON, ("X-Tenant", "a"), ("X-Tenant", "b")]),
    request(headers=[*JSON, ("X-Tenant", "b"), ("X-Tenant", "a")]),
    request(headers=[*JSON, ("Accept", "application/msgpack")]),
    request(headers=[*JSON, ("OpenAI-Organization", "o")]),
    request(headers=[*JSON, ("Cookie", "a=1")]),
    request(headers=[*JSON, ("Host", "other.test")]),
    request(headers=[*JSON, ("Range", "bytes=0-1")]),
    request(native=Native("verify=False")),
    request(native=Native("verify=True")),
    request(native=Native("verify=True", "cert=a")),
]


def test_whatever_can_change_an_answer_changes_the_key() -> None:
    assert len({key(one) for one in DIFFERENT}) == len(DIFFERENT)
    assert {len(key(one)) for one in DIFFERENT} == {DIGEST_BYTES}


def test_what_cannot_change_it_does_not() -> None:
    plain = key(request())
    names = [
        "traceparent", "X-Request-ID", "x-stainless-retry-count", "X-Stainless-Read-Timeout", "X-B3-TraceId",
        "Content-Length", "Transfer-Encoding", "Connection",
    ]  # fmt: skip
    for name in names:
        assert key(request(headers=[*JSON, (name, "1")])) == plain, name
    assert key(request(headers=JSON[::-1])) == plain
    assert key(request(headers=[(name.upper(), value) for name, value in JSON])) == plain
    assert key(request("post")) == plain
    assert key(request(url=f"{URL}#part")) == plain
    assert key(request(native=Native())) == plain


def test_a_name_and_a_value_cannot_change_places() -> None:
    one = request(headers=[("a", "bc")])
    other = request(headers=[("ab", "c")])
    assert key(one) != key(other)
    assert IDENTITIES.key(one, b"x", b"y") != IDENTITIES.key(one, b"xy")
    assert IDENTITIES.key(one, None) != IDENTITIES.key(one, b"")


def test_ignored_headers_are_the_callers_choice() -> None:
    identities = Identities(b"s", ignore=("X-Tenant",))
    with_tenant = request(headers=[*JSON, ("x-tenant", "a")])
    assert key(with_tenant, identities) == key(request(), identities)
    assert key(request(headers=[*JSON, ("traceparent", "1")]), identities) != key(request(), identities)


def test_without_credentials_everybody_is_one() -> None:
    identities = Identities(b"s", per_credential=False)
    plain = key(request(headers=JSON[:1]), identities)
    assert key(request(), identities) == plain
    assert key(request(url="https://u:p@gpu.test/v1/embeddings", headers=JSON[:1]), identities) == plain
    assert key(request(headers=[JSON[0], ("X-Api-Key", "K")]), identities) == plain
    assert key(request(headers=[JSON[0], ("X-Tenant", "a")]), identities) != plain


def test_the_secret_makes_the_key() -> None:
    assert key(request(), Identities(b"a")) != key(request(), Identities(b"b"))
    assert key(request(), Identities()) == key(request(), Identities())


def test_who_asks() -> None:
    def who(*args: Any, **named: Any) -> bytes:
        return IDENTITIES.credential(request(*args, **named))

    assert who() == who("GET", url="https://elsewhere.test/", body=b"other", headers=[*JSON, ("X-Tenant", "a")])
    others = [
        who(headers=JSON[:1]),
        who(headers=[("Authorization", "Bearer OTHER")]),
        who(headers=[("X-Api-Key", "Bearer SECRET")]),
        who(url="https://u:p@gpu.test/"),
        who(native=Native("cert=a")),
    ]
    assert len({who(), *others}) == len(others) + 1


def test_no_secret_shows() -> None:
    assert b"SECRET" not in key(request())
    assert b"SECRET" not in IDENTITIES.credential(request())
    assert "s'" not in repr(IDENTITIES)


def test_a_token_is_never_used_again() -> None:
    context = ssl.create_default_context()
    first = token_of(context)
    assert token_of(context) == first
    del context
    gc.collect()
    assert token_of(ssl.create_default_context()) != first
    assert token_of([]) != token_of([])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"model":"m","input":"a"}', b'{"input": "a", "model": "m"}'),
        (b'{"a":{"y":1,"x":[1, 2]},"b":2}', b'{"b":2,"a":{"x":[1, 2],"y":1}}'),
        (b"{}", b"{}"),
    ],
)
def test_the_order_of_members_does_not_count(one: bytes, other: bytes) -> None:
    assert canonical_json(one) == canonical_json(other)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2}', b'{"a": 1, "a": 2}', b'{"\\u0061":1,"a":2}', b'{ "a":1}', b'{"a":1} ', b"[1,2]", b'"text"',
        b"", b"{", b"\xff", b'{"a":NaN}', b'{"a":1}{"b":2}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_surely_the_same_stays_as_it_is(body: bytes) -> None:
    assert canonical_json(body) == body


def test_numbers_stay_as_they_were_written() -> None:
    bodies = [b'{"t":1}', b'{"t":1.0}', b'{"t":1e0}', b'{"t":12345678901234567890123}', b'{"t":-0}', b'{"t":0}']
    assert len({canonical_json(body) for body in bodies}) == len(bodies)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), _json), _json, st.randoms(use_true_random=False))
def test_equal_forms_mean_equal_values(members: dict[str, Any], other: Any, chance: Any) -> None:
    import json

    items = list(members.items())
    chance.shuffle(items)
    for ascii_only in (True, False):
        one = json.dumps(members, ensure_ascii=ascii_only).encode()
        shuffled = json.dumps(dict(items), ensure_ascii=ascii_only).encode()
        assert json.loads(canonical_json(one)) == members
        if not any(isinstance(value, dict) for value in members.values()) and not ascii_only:
            assert canonical_json(one) == canonical_json(shuffled)
        encoded = json.dumps(other).encode()
        if canonical_json(encoded) == canonical_json(one):
            assert other == members


def test_streams_are_told_by_body_and_header() -> None:
    assert asks_for_stream(request(body=b'{"stream": true}'))
    assert asks_for_stream(request(headers=[("Accept", "text/event-stream")]))
    assert not asks_for_stream(request(body=b'{"stream": false}'))
    assert not asks_for_stream(request(body=b'{"stream": null}'))
    assert not asks_for_stream(request(body=b'{"input": "\\"stream\\": true"}'))
    assert not asks_for_stream(request(body=b'not json "stream"'))
    assert not asks_for_stream(Request("POST", URL, body=Body.one_shot(iter([b'{"stream": true}']))))


def test_drawn_answers_are_told() -> None:
    assert is_sampled(b'{"messages": []}')
    assert is_sampled(b'{"messages": [], "temperature": 1}')
    assert is_sampled(b'{"prompt": "a", "temperature": 0, "n": 2}')
    assert not is_sampled(b'{"messages": [], "temperature": 0}')
    assert not is_sampled(b'{"messages": [], "temperature": 0.0, "n": 1}')
    assert not is_sampled(b'{"input": "prompt"}')
    assert not is_sampled(b'{"input": "\\"messages\\""}')
    assert not is_sampled(b"")


def test_json_is_told_by_its_type() -> None:
    assert is_json(request())
    assert is_json(request(headers=[("content-type", "application/merge-patch+json; charset=utf-8")]))
    assert not is_json(request(headers=[("content-type", "text/plain")]))
    assert not is_json(request(headers=[*JSON, ("content-encoding", "gzip")]))


def test_members_are_left_unparsed() -> None:
    members = members_of(b'{"input": [1.10, "a"], "n": 1e2}')
    assert members is not None
    assert {name: bytes(raw) for name, raw in members.items()} == {"input": b'[1.10, "a"]', "n": b"1e2"}
    assert members_of(b"[]") is None


UNREADABLE = [b"1e999", b"-1e999", b'"\xff"', b"1" * 400, b"[" * 5000 + b"]" * 5000]


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: repr(value[:8]))
def test_what_cannot_be_decoded_is_in_doubt_a_stream_and_sampled(value: bytes) -> None:
    stream = Request("POST", URL, JSON, Body.of(b'{"stream":' + value + b"}"))
    assert asks_for_stream(stream) is (members_of(b'{"stream":' + value + b"}") is not None)
    sampled = b'{"messages":[],"temperature":' + value + b"}"
    assert is_sampled(sampled) is (members_of(sampled) is not None)


@pytest.mark.parametrize("depth", [31, 32, 33, 500, 900, 200_000])
def test_depth_costs_no_stack(depth: int) -> None:
    body = b'{"b":1,"a":' * depth + b"{}" + b"}" * depth

    def from_deep_inside(frames: int) -> bytes:
        return canonical_json(body) if not frames else from_deep_inside(frames - 1)

    made = from_deep_inside(300)
    assert len(made) == len(body)
    assert made == body or depth < 200_000
    assert made.startswith(b'{"a":{') or depth > 500


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":1,"b":2}', False),
        (b'{"a": 1, "b": 2}', False),
        (b'{ "a" : 1 ,\n "b" : {"c": [1, 2.50]} }', False),
        (b'{"\\u0061":1,"b":2}', False),
        (b'{"a":1,"a":1}', True),
        (b'{"a": 1, "b": 2, "a": 3}', True),
        (b'{"a":1,"\\u0061":2}', True),
        (b'{ "a": 1, "a": 2 }', True),
    ],
)
def test_a_name_that_is_given_twice(body: bytes, expected: bool) -> None:
    members = members_of(body)
    assert members is not None
    assert repeats_a_name(body, members) is expected
