"""Draws docs/http2/*.svg from docs/http2/measured.json: `python -m docs.http2.draw`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

__all__ = ["pictures"]

HERE: Final = Path(__file__).parent
COLOURS: Final = ("#8a8f98", "#d08c2e", "#2b6cb0", "#4a9d6e")
WIDTH: Final = 720
LEFT: Final = 190
RIGHT: Final = 90
HEAD: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">'
)


def pictures(measured: dict[str, Any]) -> dict[str, str]:
    """File name → SVG."""
    burst = measured["burst"]
    return {
        "burst.svg": _dots({name: found["seconds"] for name, found in burst.items()}, "seconds until a call ended"),
        "connections.svg": _bars({name: found["connections"] for name, found in burst.items()}, "connections"),
        "windows.svg": _bars({f"{size} KiB": taken for size, taken in measured["download"].items()}, "seconds"),
    }


def _dots(rows: dict[str, list[float]], title: str) -> str:
    """One line of dots for each row, one dot for each call, over a common axis from 0."""
    end = max(max(values) for values in rows.values())
    scale = (WIDTH - LEFT - RIGHT) / end
    drawn = []
    for number, (name, values) in enumerate(rows.items()):
        middle, colour = 45 + 50 * number, COLOURS[number % len(COLOURS)]
        drawn.append(_text(LEFT - 12, middle + 4, name, "end"))
        drawn += [
            f'<circle cx="{LEFT + value * scale:.1f}" cy="{middle + (place % 9 - 4) * 3}" r="2" fill="{colour}"/>'
            for place, value in enumerate(values)
        ]
        drawn.append(_text(LEFT + max(values) * scale + 10, middle + 4, f"{max(values):.2f} s"))
    return _picture(drawn, 40 + 50 * len(rows), title)


def _bars(rows: dict[str, float], title: str) -> str:
    scale = (WIDTH - LEFT - RIGHT) / max(rows.values())
    drawn = []
    for number, (name, value) in enumerate(rows.items()):
        top, colour = 30 + 30 * number, COLOURS[number % len(COLOURS)]
        drawn.append(_text(LEFT - 12, top + 15, name, "end"))
        drawn.append(f'<rect x="{LEFT}" y="{top}" width="{value * scale:.1f}" height="20" fill="{colour}"/>')
        drawn.append(_text(LEFT + value * scale + 8, top + 15, f"{value:.3g}"))
    return _picture(drawn, 40 + 30 * len(rows), title)


def _picture(drawn: list[str], height: int, title: str) -> str:
    background = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    lines = [HEAD.format(width=WIDTH, height=height), background, _text(LEFT, 16, title), *drawn, "</svg>"]
    return "\n".join(lines) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222">{text}</text>'


def main() -> None:
    measured = json.loads((HERE / "measured.json").read_text(encoding="utf-8"))
    for name, picture in pictures(measured).items():
        (HERE / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
