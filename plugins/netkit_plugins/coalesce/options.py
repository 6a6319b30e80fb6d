"""The options of `[tool.netkit.coalesce]`."""

from __future__ import annotations

import dataclasses

from netkit.identity import DEFAULT_IGNORED_HEADERS
from netkit.pure import PURE_PATHS

__all__ = ["CoalesceOptions"]


@dataclasses.dataclass(frozen=True)
class CoalesceOptions:
    """Which calls are shared.

    routes: path patterns (`*`, `?`, `[...]`, without the query) of calls that are shared whatever their method; ()
        leaves the safe methods alone.
    safe_methods: share GET, HEAD and OPTIONS on every route.
    sampled: share also what a model draws at random (a chat with a temperature other than 0, or n > 1) where its
        route is listed.
    key_ignore_headers: names or patterns of headers on which no answer depends: trace ids, request ids, an SDK's own
        remarks. A list given here replaces the default.
    max_answer_bytes: longer answers are not shared. Unknown lengths are waited for only where the answer is JSON.
    """

    routes: tuple[str, ...] = PURE_PATHS
    safe_methods: bool = True
    sampled: bool = False
    key_ignore_headers: tuple[str, ...] = DEFAULT_IGNORED_HEADERS
    max_answer_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_answer_bytes < 1:
            raise ValueError(f"max_answer_bytes must be ≥ 1, got {self.max_answer_bytes}")
