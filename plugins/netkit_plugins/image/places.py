"""Where pictures stand in JSON bodies: paths, and the shapes of APIs as sets of them.

A path is a list of steps joined by dots: a key, `*` for any one key or list item, `**` for any number of steps.

Rules of this file:

- A *picture* place holds a picture or a URL: a text there that is neither is an error.
- A *maybe* place may hold ordinary text too: only a data URL of a picture, or base64 that begins as a picture
  begins, is taken for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["PRESETS", "RENAMES", "TYPE_KEYS", "Place", "Places", "parse_path"]

Path = tuple[str, ...]
Steps = Sequence[str | int]


class Place(NamedTuple):
    """Picture places and maybe places of one preset."""

    pictures: tuple[str, ...]
    maybe: tuple[str, ...] = ()


PRESETS: Final[dict[str, Place]] = {
    # Chat content parts, also nested; Responses' input_image; embeddings whose input is a data URL.
    "openai": Place(("**.image_url", "**.image_url.url"), ("input", "input.*")),
    # {"image": …} and {"inputs": [{"image": …}, "text"]}.
    "gme": Place(("image", "image.*", "inputs.*.image", "input.*.image"), ("inputs", "inputs.*")),
    # TEI's inputs, and what CLIP servers and hosted multimodal embeddings take.
    "tei": Place(
        ("images.*", "inputs.image", "inputs.*.image", "input.*.image", "inputs.*.content.*.image_base64"),
        ("inputs", "inputs.*", "inputs.*.*", "data.*.uri", "data.*.blob"),
    ),
    # {"source": {"media_type": …, "data": …}}, where documents may stand too.
    "anthropic": Place((), ("**.source.data",)),
    # {"inline_data": {"mime_type": …, "data": …}}, in both spellings.
    "gemini": Place((), ("**.inline_data.data", "**.inlineData.data")),
}

TYPE_KEYS: Final = frozenset({"media_type", "mime_type", "mimeType"})
"""Keys beside a picture's `data` that say its type: it makes the place a picture's, and follows the new content."""

RENAMES: Final = {"image": "image_url", "image_base64": "image_url", "blob": "uri"}
"""The key under which a URL stands where the picture itself stood under this one."""


def parse_path(path: str) -> Path:
    """The steps of a path. Raises ValueError for an empty step."""
    steps = tuple(path.split("."))
    if not all(steps):
        raise ValueError(f"paths: {path!r} has an empty step")
    return steps


class Places:
    """The places of some presets and paths: `of(steps)` says what may stand there."""

    def __init__(self, presets: Sequence[str], paths: Sequence[str] = ()) -> None:
        chosen = [PRESETS[name] for name in presets]
        self._pictures = [parse_path(path) for place in chosen for path in place.pictures]
        self._pictures += map(parse_path, paths)
        self._maybe = [parse_path(path) for place in chosen for path in place.maybe]

    def of(self, steps: Steps) -> str | None:
        """ "picture", "maybe", or None for a place that is none of ours."""
        if any(_matches(path, steps) for path in self._pictures):
            return "picture"
        if any(_matches(path, steps) for path in self._maybe):
            return "maybe"
        return None


def _matches(path: Path, steps: Steps) -> bool:
    """Whether `path` leads to `steps`. Both are short; only `**` tries more than one way."""
    if not path:
        return not steps
    if path[0] == "**":
        return any(_matches(path[1:], steps[skipped:]) for skipped in range(len(steps) + 1))
    return bool(steps) and path[0] in ("*", str(steps[0])) and _matches(path[1:], steps[1:])
