"""The answer of a server whose queue is full: when to come back, in seconds and in milliseconds."""

from __future__ import annotations

from .exchange import Answer
from .gpus import QueueFull

__all__ = ["OVERLOADED", "overloaded"]

OVERLOADED = "Model is overloaded"


def overloaded(full: QueueFull, refused: Answer) -> Answer:
    """`refused` with Retry-After (whole seconds, at least 1) and retry-after-ms."""
    refused.headers += [
        ("retry-after", str(max(1, round(full.retry_after)))),
        ("retry-after-ms", str(max(1, round(full.retry_after * 1000)))),
    ]
    return refused
