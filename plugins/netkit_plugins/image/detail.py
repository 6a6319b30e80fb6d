"""Which part of a picture holds the most detail: where "smart" puts its window.

A grey copy of at most 128 pixels a side is run through an edge filter. What is left of it is summed along the side
that has room to slide (a window that fills its box has room on one side only), and the window with the greatest sum
wins; of equal ones the one nearest to the middle. There is no randomness and no model in it: the same picture always
gives the same window.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from PIL import Image, ImageFilter

__all__ = ["best_offset", "window"]

SIDE: Final = 128


def best_offset(picture: Image.Image, shares: tuple[float, float]) -> tuple[float, float]:
    """The offset (0.0 to 1.0 of the room, each way) of the window that covers `shares` of width and height."""
    width, height = picture.size
    scale = min(1.0, SIDE / max(width, height))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = picture.convert("L").resize(size, Image.Resampling.BOX)
    edges = small.filter(ImageFilter.FIND_EDGES) if min(small.size) > 2 else small
    columns, rows = _sums(edges)
    return window(columns, shares[0]), window(rows, shares[1])


def window(sums: list[int], share: float) -> float:
    """Where a window over `share` of `sums` holds the most: 0.0 at their beginning, 1.0 at their end."""
    length = max(1, round(len(sums) * share))
    room = len(sums) - length
    if room <= 0:
        return 0.5
    totals = [0, *accumulate(sums)]
    best = max(range(room + 1), key=lambda start: (totals[start + length] - totals[start], -abs(2 * start - room)))
    return best / room


def _sums(edges: Image.Image) -> tuple[list[int], list[int]]:
    """Sums of columns and of rows. The outermost pixels do not count: the filter leaves them as they were."""
    width, height = edges.size
    data = edges.tobytes()
    if width > 2 and height > 2:
        data = b"".join(data[row * width + 1 : row * width + width - 1] for row in range(1, height - 1))
        columns, rows = _sums_of(data, width - 2, height - 2)
        return [0, *columns, 0], [0, *rows, 0]
    return _sums_of(data, width, height)


def _sums_of(data: bytes, width: int, height: int) -> tuple[list[int], list[int]]:
    columns = [sum(data[column::width]) for column in range(width)]
    return columns, [sum(data[row * width : (row + 1) * width]) for row in range(height)]
