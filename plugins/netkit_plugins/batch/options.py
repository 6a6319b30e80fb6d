"""The options of `[tool.netkit.batch]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from netkit.identity import DEFAULT_IGNORED_HEADERS

__all__ = ["BatchOptions", "CustomForm"]

Preset = Literal["openai", "tei", "gme"]


@dataclasses.dataclass(frozen=True)
class CustomForm:
    """Where a route of one's own keeps inputs and results: names of JSON fields, nested ones joined by dots.

    input: the field that holds one input or a list of them, such as "payload.texts".
    output: the field that holds the list of results, such as "result.rows"; "" for an answer that is a bare list.
    index: the field of each result that says which input it is of, from 0; None matches by position.
    objects: whether an input may be a JSON object; otherwise texts, token arrays and lists of either.
    """

    input: str
    output: str = ""
    index: str | None = None
    objects: bool = False

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            path = getattr(self, name)
            if path and not all(path.split(".")):
                raise ValueError(f"{name} must be field names joined by dots, got {path!r}")
        if not self.input:
            raise ValueError("input must name a field")
        if self.index == "":
            raise ValueError("index must name a field, or be none")


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """Which calls are merged, and how far. Times in seconds.

    routes: path patterns (`*`, `?`, `[...]`, without the query; with "://" the whole URL) and the form of the calls
        there: "openai", "tei", "gme", or a table as `CustomForm`. The first that matches counts.
    max_items: inputs in one batch; less where the server names a smaller limit. A caller's longer list is split.
    max_bytes: bytes of a batch's body; a larger single input is sent by itself.
    max_tokens: estimated tokens of a batch (4 bytes count as one, a picture as 256); a larger input goes by itself.
    max_wait: how long the first input of a batch waits for others, counted from its arrival; 0: not at all. On an
        idle route nothing waits.
    max_in_flight: batches of one kind under way at once; more wait, and grow.
    key_ignore_headers: headers (or patterns) that differ from call to call and do not keep calls apart; a batch goes
        out with those of its first call.
    """

    routes: tuple[tuple[str, Preset | CustomForm], ...] = (
        ("*/embeddings", "openai"),
        ("*/embed", "tei"),
        ("*/gme", "gme"),
    )
    max_items: int = 32
    max_bytes: int = 2_000_000
    max_tokens: int = 16384
    max_wait: float = 0.005
    max_in_flight: int = 4
    key_ignore_headers: tuple[str, ...] = DEFAULT_IGNORED_HEADERS

    def __post_init__(self) -> None:
        for name in ("max_items", "max_bytes", "max_tokens", "max_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be ≥ 1, got {getattr(self, name)}")
        if not (self.max_wait >= 0 and math.isfinite(self.max_wait)):
            raise ValueError(f"max_wait must be ≥ 0, got {self.max_wait:g}")
        for pattern, form in self.routes:
            if isinstance(form, str) and form not in ("openai", "tei", "gme"):
                raise ValueError(f'routes: {pattern} must be "openai", "tei", "gme" or a table, got {form!r}')
