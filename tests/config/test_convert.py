"""Raw values and texts in declared types: round trips, and nothing but `Mismatch` for what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netkit.config import describe, options_of
from netkit.config._convert import Mismatch, convert, parse
from netkit.errors import PluginError

if TYPE_CHECKING:
    from decimal import Decimal

numbers = st.floats(allow_nan=False)
words = st.text(
    alphabet=st.characters(codec="ascii", exclude_characters=", \t\n[]{}", categories=("L", "N", "P")), min_size=1
)


@given(st.integers())
def test_integers(value: int) -> None:
    assert convert(value, int) == parse(str(value), int) == value
    assert type(convert(value, int | float)) is int


@given(numbers)
def test_numbers(value: float) -> None:
    assert convert(value, float) == parse(repr(value), float) == value
    assert parse(repr(value), float | Literal["learn"] | None) == value


@given(st.lists(words))
def test_lists_of_texts(value: list[str]) -> None:
    hint = tuple[str, ...]
    assert convert(value, hint) == parse(",".join(value), hint) == parse(json.dumps(value), hint) == tuple(value)


@given(st.frozensets(st.integers()))
def test_sets(value: frozenset[int]) -> None:
    hint = frozenset[int]
    assert convert(list(value), hint) == convert(value, hint) == parse(",".join(map(str, value)), hint) == value


@given(st.dictionaries(words, st.integers()))
def test_tables_as_pairs(value: dict[str, int]) -> None:
    hint = tuple[tuple[str, int], ...]
    assert convert(value, hint) == parse(json.dumps(value), hint) == tuple(value.items())
    assert convert(value, Mapping[str, int]) == parse(json.dumps(value), dict[str, int]) == value


@dataclass(frozen=True)
class Inner:
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be negative")


HINTS: list[Any] = [
    int,
    float,
    bool,
    str,
    Literal["a", 1, True],
    int | None,
    float | Literal["learn"] | None,
    bool | Literal["auto"],
    tuple[int, int],
    tuple[str, ...] | None,
    frozenset[int],
    Sequence[str],
    Mapping[str, int],
    Inner,
    tuple[Inner, ...] | Inner,
    Annotated[int, msgspec.Meta(ge=1)],
    Callable[[str], str] | str | None,
    Path,
    Any,
]
raw = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | numbers
    | st.text(max_size=4)
    | st.sampled_from(["a", "auto", "none"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["size", "x"]), inner, max_size=2),
    max_leaves=6,
)


@given(raw, st.sampled_from(HINTS))
def test_whatever_comes_fits_or_is_a_mismatch(value: Any, hint: Any) -> None:
    try:
        once = convert(value, hint)
    except Mismatch:
        return
    assert convert(once, hint) == once


@given(st.text(max_size=8), st.sampled_from(HINTS))
def test_whatever_text_comes_fits_or_is_a_mismatch(text: str, hint: Any) -> None:
    try:
        once = parse(text, hint)
    except Mismatch:
        return
    assert convert(once, hint) == once


@pytest.mark.parametrize("hint", HINTS)
def test_every_type_has_words(hint: Any) -> None:
    words = describe(hint)
    assert words
    assert "typing" not in words
    assert "<" not in words


def test_constraints_and_callables() -> None:
    with pytest.raises(Mismatch, match="does not fit"):
        convert(0, Annotated[int, msgspec.Meta(ge=1)])
    with pytest.raises(Mismatch):
        parse("0", Annotated[int, msgspec.Meta(ge=1)])
    assert parse("2", Annotated[int, msgspec.Meta(ge=1)]) == 2
    assert convert(len, Callable[[str], str] | str | None) is len
    assert convert("https://{id}", Callable[[str], str] | str | None) == "https://{id}"
    assert convert("a/b", Path) == Path("a/b")


@dataclass(frozen=True)
class Unresolved:
    value: Decimal


def test_a_type_that_cannot_be_resolved_is_the_plugins_fault() -> None:
    with pytest.raises(PluginError, match="Unresolved"):
        options_of(Unresolved)


@dataclass(frozen=True)
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("number must be above 0")


def test_a_table_that_refuses_itself_says_why_also_among_others() -> None:
    with pytest.raises(Mismatch) as caught:
        convert({"number": 0}, Positive | str)
    assert caught.value.problem == "number must be above 0"
