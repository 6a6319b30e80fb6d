"""Sizes and crops, as plain arithmetic.

Rules of this file:

- No side ever becomes 0, and nothing is enlarged.
- A plan speaks of the picture as it is seen, after its orientation was applied.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Plan", "plan_of"]

Size = tuple[int, int]


class Plan(NamedTuple):
    """Scale the whole picture to `scaled`, then keep a window of `size` of it."""

    scaled: Size
    size: Size

    @property
    def crops(self) -> bool:
        return self.scaled != self.size

    def source_box(self, source: Size, offset: tuple[float, float]) -> tuple[float, float, float, float]:
        """The part of a picture of size `source` that the window at `offset` (0.0 to 1.0 of the room there is, each
        way) covers."""
        box: list[float] = []
        for length, scaled, kept, share in zip(source, self.scaled, self.size, offset, strict=True):
            start = (scaled - kept) * share * length / scaled
            box += [start, min(length, start + kept * length / scaled)]
        return box[0], box[2], box[1], box[3]


def plan_of(source: Size, box: Size | None, fit: str) -> Plan:
    """What becomes of a picture of size `source` in `box` (None: any size). `fit` as in PictureOptions."""
    if box is None:
        return Plan(source, source)
    ratios = [limit / length for limit, length in zip(box, source, strict=True)]
    scale = min(1.0, min(ratios) if fit == "inside" else max(ratios))
    scaled = _scaled(source[0], scale), _scaled(source[1], scale)
    return Plan(scaled, (min(box[0], scaled[0]), min(box[1], scaled[1])))


def _scaled(length: int, scale: float) -> int:
    return max(1, round(length * scale))
