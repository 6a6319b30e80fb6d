"""The codec of calls with inputs: shapes are kept, bytes are kept, and no part goes to the wrong input."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netkit.errors import BatchError
from netkit.forms import PICTURE_TOKENS, PRESETS, Form, Inputs
from netkit.shares import share, total

OPENAI, TEI, GME = PRESETS["openai"], PRESETS["tei"], PRESETS["gme"]
NESTED = Form(
    name="custom",
    input=("payload", "texts"),
    output=("result", "rows"),
    index="at",
    index_optional=True,
    objects=True,
)


def read(form: Form, body: Any) -> Inputs:
    inputs = form.read(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert inputs is not None
    return inputs


def items(form: Form, body: Any) -> list[bytes]:
    return [bytes(item) for item in read(form, body).items]


@pytest.mark.parametrize(
    ("given_input", "expected"),
    [
        (b'"text"', [b'"text"']),
        (b'""', [b'""']),
        (b'["a", "b"]', [b'"a"', b'"b"']),
        (b"[1, 2, 3]", [b"[1, 2, 3]"]),
        (b"[7]", [b"[7]"]),
        (b"[[1, 2], [3]]", [b"[1, 2]", b"[3]"]),
        (b'["\\u00e4", "\xc3\xa4"]', [b'"\\u00e4"', b'"\xc3\xa4"']),
    ],
)
def test_every_shape_of_input_gives_its_items_verbatim(given_input: bytes, expected: list[bytes]) -> None:
    assert items(OPENAI, b'{"model": "m", "input": ' + given_input + b"}") == expected
    assert items(TEI, b'{"inputs": ' + given_input + b"}") == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1]",
        b'{"model": "m"}',
        b'{"input": []}',
        b'{"input": null}',
        b'{"input": 3}',
        b'{"input": {"a": 1}}',
        b'{"input": ["a", 1]}',
        b'{"input": ["a", [1]]}',
        b'{"input": ["a", null]}',
        b'{"input": "cut of',
        b'{"input": "a"} x',
    ],
)
def test_what_is_not_of_the_form_is_left_alone(body: bytes) -> None:
    assert OPENAI.read(body) is None


def test_gme_takes_single_inputs_and_lists_for_the_same_thing() -> None:
    single = read(GME, {"model": "m", "image": "aGk=", "task": "t"})
    many = read(GME, {"inputs": ["text", {"image": "aGk="}], "model": "m", "task": "t"})
    assert single.rest == many.rest
    assert bytes(single.items[0]) == b'{"image":"aGk="}'
    assert json.loads(single.body([*single.items, *many.items])) == {
        "model": "m",
        "task": "t",
        "inputs": [{"image": "aGk="}, "text", {"image": "aGk="}],
    }
    assert GME.read(b'{"inputs": ["a"], "text": "b"}') is None
    assert GME.read(b'{"model": "m"}') is None


def test_the_rest_is_equal_whatever_the_order_of_fields_and_differs_by_any_field() -> None:
    one = read(OPENAI, b'{"model": "m", "input": "a", "dimensions": 4}')
    assert read(OPENAI, b'{"dimensions":4,"input":["b","c"],"model":"m"}').rest == one.rest
    for other in (
        {"model": "n", "input": "a", "dimensions": 4},
        {"model": "m", "input": "a", "dimensions": 5},
        {"model": "m", "input": "a"},
        {"model": "m", "input": "a", "dimensions": 4, "x_foo": None},
        {"model": "m", "input": "a", "dimensions": "4"},
    ):
        assert read(OPENAI, other).rest != one.rest


def test_a_nested_form_finds_inputs_and_results_and_keeps_their_surroundings() -> None:
    inputs = read(NESTED, {"a": 1, "payload": {"texts": ["x"], "k": 2}})
    assert inputs.rest != read(NESTED, {"a": 1, "payload": {"texts": ["x"], "k": 3}}).rest
    assert json.loads(inputs.body([*inputs.items] * 2)) == {"a": 1, "payload": {"texts": ["x", "x"], "k": 2}}
    answer = NESTED.split(b'{"result": {"rows": [{"at": 1, "v": 10}, {"at": 0, "v": 20}], "z": 1}, "usage": 7}', 2)
    assert json.loads(NESTED.build(answer.envelope, answer.parts[1:], 3)) == {
        "usage": 3,
        "result": {"z": 1, "rows": [{"at": 0, "v": 10}]},
    }


def test_estimates_count_tokens_words_and_pictures() -> None:
    assert read(OPENAI, {"input": [[1, 2, 3], [4]]}).tokens == (3, 1)
    assert read(OPENAI, {"input": "x" * 4000}).tokens[0] == pytest.approx(1000, abs=2)
    picture = "data:image/png;base64," + "A" * 100_000
    assert read(GME, {"inputs": [picture, {"image": "A" * 100_000}]}).tokens == (PICTURE_TOKENS, PICTURE_TOKENS)
    assert read(OPENAI, '{"input": "ää"}'.encode()).sizes == (7,)


def answered(numbers: list[Any]) -> bytes:
    data = [{"object": "embedding", "index": number, "embedding": [float(str(number) + ".5")]} for number in numbers]
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": {"total_tokens": 9}}).encode()


def test_results_are_matched_by_index_and_numbered_anew() -> None:
    answer = OPENAI.split(answered([2, 0, 1]), 3)
    built = json.loads(OPENAI.build(answer.envelope, answer.parts[1:], answer.usages([1, 2])[1]))
    assert [part["embedding"] for part in built["data"]] == [[1.5], [2.5]]
    assert [part["index"] for part in built["data"]] == [0, 1]
    assert (built["object"], built["model"], built["usage"]) == ("list", "m", {"total_tokens": 6})


def test_vectors_keep_their_bytes_and_unknown_fields_stay() -> None:
    content = (
        b'{"data": [{"index": 0, "embedding": [1.0, -0, 1e-45, 0.10000000000000000555], "x": {"y": [ 1 ]}}], '
        b'"z": null, "usage": null}'
    )
    answer = OPENAI.split(content, 1)
    built = OPENAI.build(answer.envelope, answer.parts, answer.usage)
    assert b"[1.0, -0, 1e-45, 0.10000000000000000555]" in built
    assert b'"x":{"y": [ 1 ]}' in built
    assert json.loads(built)["z"] is None
    assert json.loads(built)["usage"] is None


@pytest.mark.parametrize(
    "numbers", [[0, 1], [0, 1, 2, 3], [0, 0, 1], [0, 1, 3], [0, 1, -1], [1, 2, 3]], ids=lambda numbers: str(numbers)
)
def test_an_answer_that_does_not_account_for_each_input_is_an_error(numbers: list[int]) -> None:
    with pytest.raises(BatchError):
        OPENAI.split(json.dumps({"data": [{"index": number, "embedding": "v"} for number in numbers]}).encode(), 3)


@pytest.mark.parametrize(
    "part", [b"{}", b'{"index": true}', b'{"index": "0"}', b'{"index": 0.0}', b'{"index": null}', b"null", b"[0]"]
)
def test_an_index_is_a_whole_number_or_nothing_is_told_apart(part: bytes) -> None:
    with pytest.raises(BatchError):
        OPENAI.split(b'{"data": [' + part + b', {"index": 1}]}', 2)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"{}", b'{"data": null}', b'{"data": {}}', b"[]", b'{"data": [1']
)
def test_no_results_at_all_is_an_error_that_shows_no_content(content: bytes) -> None:
    with pytest.raises(BatchError, match="batch of 1") as raised:
        OPENAI.split(content, 1)
    assert "html" not in str(raised.value)


def test_position_counts_only_where_the_form_has_no_index() -> None:
    answer = TEI.split(b"[[1.0], [2.0]]", 2)
    assert TEI.build(answer.envelope, answer.parts[1:]) == b"[[2.0]]"
    with pytest.raises(BatchError):
        TEI.split(b"[[1.0]]", 2)
    bare = GME.split(b'{"data": [{"embedding": [1]}, {"embedding": [2]}]}', 2)
    assert json.loads(GME.build(bare.envelope, bare.parts[1:])) == {"data": [{"embedding": [2]}]}
    with pytest.raises(BatchError):
        GME.split(b'{"data": [{"index": 0}, {}]}', 2)


def test_parts_can_be_kept() -> None:
    part = OPENAI.split(b'{"data": [{"index": 0, "embedding": "AAAA"}]}', 1).parts[0]
    again = OPENAI.load(OPENAI.dump(part))
    assert json.loads(OPENAI.build([{}], [again, again]))["data"] == [
        {"index": 0, "embedding": "AAAA"},
        {"index": 1, "embedding": "AAAA"},
    ]
    with pytest.raises(msgspec.DecodeError):
        OPENAI.load(b"torn")


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_shares_add_up(tokens: int, weights: list[int]) -> None:
    shares = share({"total_tokens": tokens, "details": {"cached": tokens // 3}, "kind": "x"}, weights)
    assert len(shares) == len(weights)
    assert sum(piece["total_tokens"] for piece in shares) == tokens
    assert sum(piece["details"]["cached"] for piece in shares) == tokens // 3
    assert all(piece["total_tokens"] >= 0 and piece["kind"] == "x" for piece in shares)
    assert total(shares) == {"total_tokens": tokens, "details": {"cached": tokens // 3}, "kind": "x"}


json_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
single_items = st.one_of(json_text, st.lists(st.integers(0, 10**6), min_size=1, max_size=5))


@given(st.data())
def test_merging_and_splitting_gives_each_call_its_own(data: st.DataObject) -> None:
    """Calls of any shape are merged; the answer, in any order, proves for each part which input it is of."""
    calls: list[Any] = data.draw(
        st.lists(
            st.one_of(
                single_items,
                st.lists(json_text, min_size=1, max_size=4),
                st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), min_size=1, max_size=4),
            ),
            min_size=1,
            max_size=6,
        )
    )
    inputs = [read(OPENAI, {"model": "m", "input": call}) for call in calls]
    merged = json.loads(inputs[0].body([item for each in inputs for item in each.items]))["input"]
    results = [{"index": number, "embedding": item} for number, item in enumerate(merged)]
    shuffled = data.draw(st.permutations(results))
    answer = OPENAI.split(json.dumps({"data": shuffled, "usage": {"total_tokens": 5}}).encode(), len(merged))
    start = 0
    for call, each in zip(calls, inputs, strict=True):
        parts = answer.parts[start : start + len(each.items)]
        start += len(each.items)
        built = json.loads(OPENAI.build(answer.envelope, parts))["data"]
        alone = isinstance(call, str) or isinstance(call[0], int)
        assert [part["embedding"] for part in built] == ([call] if alone else call)
        assert [part["index"] for part in built] == list(range(len(parts)))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b","input":"x"}',
        b'{"input":"x","input":"y"}',
        b'{"input": "x", "dimensions": 4, "dimensions": 8}',
        b'{"input":"x","\\u0069nput":"y"}',
        b'{ "model": "a", "model": "b",\n "input": "x" }',
    ],
)
def test_a_call_that_says_something_twice_is_left_alone(body: bytes) -> None:
    """Which of the two its server takes is not known: merged or remembered it could be somebody else's answer."""
    assert OPENAI.read(body) is None
    assert NESTED.read(b'{"payload":{"texts":["x"],"a":1,"a":2}}') is None


DEEP = b"[" * 200_000 + b"]" * 200_000  # beyond every version's limit


@pytest.mark.parametrize("name", ["openai", "tei", "gme"])
def test_what_is_nested_too_deeply_is_left_alone(name: str) -> None:
    form = PRESETS[name]
    field = form.input[0].encode()
    assert form.read(b'{"' + field + b'":"x","more":' + DEEP + b"}") is None
    with pytest.raises(BatchError):
        form.split(b'{"data":' + DEEP + b"}", 1)
    with pytest.raises(BatchError):
        form.split(DEEP, 1)


def test_an_input_that_is_no_text_is_estimated_all_the_same() -> None:
    (tokens,) = read(GME, b'{"inputs":[{"\xff":1}]}').tokens
    assert tokens > 0


@pytest.mark.parametrize("usage", [b"1e999", b'{"t":1e999}', b'{"t":"\xff"}', b"1" * 5000])
def test_a_usage_that_cannot_be_read_is_an_error(usage: bytes) -> None:
    answer = OPENAI.split(b'{"data":[{"index":0},{"index":1}],"usage":' + usage + b"}", 2)
    with pytest.raises(BatchError, match="usage"):
        answer.usages([1, 1])
    with pytest.raises(BatchError, match="usage"):
        _ = answer.usage
