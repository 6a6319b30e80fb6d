"""The options of `[tool.netkit.cache]`."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from netkit.identity import DEFAULT_IGNORED_HEADERS
from netkit.pure import PURE_PATHS
from netkit.shared import is_redis_url

__all__ = ["CacheOptions"]


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """What is remembered, where, and for how long. Times in seconds.

    ttl: how long an answer is used, from the moment at which its request was sent.
    max_bytes: what all answers may take; the longest unused go first. Does not apply to Redis, which has its own
        `maxmemory`.
    storage: "memory" (of this session), "sqlite:path" (survives restarts, shared by processes; `~` is the home
        directory), or a Redis URL.
    routes: path patterns (`*`, `?`, `[...]`, without the query) of calls whose answers are remembered.
    items: path patterns and the form ("openai", "tei", "gme") of calls whose inputs are remembered one by one, as far
        as `routes` lists them; () remembers whole calls only.
    per_credential: false lets one credential's answers serve every other. Only where the answer does not depend on
        who asks, and who may ask is decided elsewhere.
    sampled: remember also what a model draws at random (a chat with a temperature other than 0, or n > 1) where its
        route is listed.
    stale_if_error: how long beyond `ttl` an answer is still used when the server cannot be reached or fails (5xx);
        0: never.
    key_ignore_headers: names or patterns of headers on which no answer depends. A list given here replaces the
        default: trace ids, request ids, an SDK's own remarks.
    max_answer_bytes: longer answers pass unremembered.
    """

    ttl: float = 3600.0
    max_bytes: int = 64 * 1024 * 1024
    storage: str = "memory"
    routes: tuple[str, ...] = PURE_PATHS
    items: tuple[tuple[str, Literal["openai", "tei", "gme"]], ...] = (
        ("*/embeddings", "openai"),
        ("*/embed", "tei"),
        ("*/gme", "gme"),
    )
    per_credential: bool = True
    sampled: bool = False
    stale_if_error: float = 0.0
    key_ignore_headers: tuple[str, ...] = DEFAULT_IGNORED_HEADERS
    max_answer_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not (self.ttl > 0 and math.isfinite(self.ttl)):
            raise ValueError(f"ttl must be > 0, got {self.ttl:g}")
        if not (self.stale_if_error >= 0 and math.isfinite(self.stale_if_error)):
            raise ValueError(f"stale_if_error must be ≥ 0, got {self.stale_if_error:g}")
        for name in ("max_bytes", "max_answer_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be ≥ 1, got {getattr(self, name)}")
        sqlite = self.storage.startswith("sqlite:") and self.storage not in ("sqlite:", "sqlite::memory:")
        if not (self.storage == "memory" or sqlite or is_redis_url(self.storage)):
            # Not quoted: what was meant for a URL may hold a password.
            raise ValueError('storage must be "memory", "sqlite:path" or a redis URL')
