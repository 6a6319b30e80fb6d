"""Sizes and crops by plain arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netkit_plugins.image.detail import best_offset, window
from netkit_plugins.image.geometry import Plan, plan_of
from PIL import Image

BOX = (224, 224)


@pytest.mark.parametrize(
    ("source", "inside", "cover"),
    [
        ((10000, 3), (224, 1), (224, 3)),
        ((3, 10000), (1, 224), (3, 224)),
        ((550, 5), (224, 2), (224, 5)),
        ((1, 1), (1, 1), (1, 1)),
        ((224, 224), (224, 224), (224, 224)),
        ((100, 50), (100, 50), (100, 50)),
        ((4000, 3000), (224, 168), (224, 224)),
        ((300, 100), (224, 75), (224, 100)),
        ((225, 224), (224, 223), (224, 224)),
    ],
)
def test_sizes(source: tuple[int, int], inside: tuple[int, int], cover: tuple[int, int]) -> None:
    assert plan_of(source, BOX, "inside").size == inside
    assert plan_of(source, BOX, "cover").size == cover
    assert plan_of(source, BOX, "smart").size == cover
    assert plan_of(source, None, "inside") == Plan(source, source)


sides = st.integers(1, 20000)


@given(st.tuples(sides, sides), st.tuples(sides, sides), st.sampled_from(["inside", "cover", "smart"]))
def test_nothing_is_enlarged_nothing_vanishes_everything_fits(
    source: tuple[int, int], box: tuple[int, int], fit: str
) -> None:
    plan = plan_of(source, box, fit)
    for kept, scaled, full, limit in zip(plan.size, plan.scaled, source, box, strict=True):
        assert 1 <= kept <= min(limit, full)
        assert kept <= scaled <= full
    if fit == "inside":
        assert not plan.crops
    left, top, right, bottom = plan.source_box(source, (0.3, 1.0))
    assert 0 <= left < right <= source[0]
    assert 0 <= top < bottom <= source[1]


def test_a_centre_crop_is_in_the_middle() -> None:
    plan = plan_of((400, 200), (100, 100), "cover")
    assert plan == Plan((200, 100), (100, 100))
    assert plan.source_box((400, 200), (0.5, 0.5)) == (100, 0, 300, 200)


def test_the_window_with_the_most_wins_and_of_equals_the_middle() -> None:
    assert window([0, 0, 0, 9, 9, 0], 1 / 3) == 3 / 4
    assert window([5] * 9, 1 / 3) == 0.5
    assert window([1, 0, 0, 0, 1], 1 / 5) in (0.0, 1.0)
    assert window([7], 1.0) == 0.5


@pytest.mark.parametrize(("left", "expected"), [(0, 0.0), (540, 1.0)])
def test_detail_draws_the_window_to_it(left: int, expected: float) -> None:
    picture = Image.new("RGB", (600, 200), "grey")
    for step in range(0, 60, 4):
        picture.paste("white" if step % 8 else "black", (left + step, 20, left + step + 4, 180))
    across, down = best_offset(picture, (1 / 3, 1.0))
    assert abs(across - expected) < 0.16
    assert down == 0.5
    assert best_offset(picture, (1 / 3, 1.0)) == (across, down)


@pytest.mark.parametrize("size", [(1, 1), (2, 300), (300, 2), (3, 3)])
def test_detail_of_hardly_any_picture(size: tuple[int, int]) -> None:
    assert all(0.0 <= share <= 1.0 for share in best_offset(Image.new("RGB", size, "red"), (0.5, 0.5)))
