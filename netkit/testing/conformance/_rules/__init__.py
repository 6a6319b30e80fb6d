"""The rules, by what they protect."""

from __future__ import annotations

from typing import Final

from netkit.testing.conformance._rule import LayerRule, Rule
from netkit.testing.conformance._rules import (
    concurrency,
    failures,
    forks,
    layers,
    lifetimes,
    options,
    responses,
    streams,
    wire,
)

__all__ = ["LAYER_RULES", "RULES"]

RULES: Final[tuple[Rule, ...]] = (
    *wire.RULES,
    *responses.RULES,
    *options.RULES,
    *streams.RULES,
    *failures.RULES,
    *lifetimes.RULES,
    *concurrency.RULES,
    *forks.RULES,
)

LAYER_RULES: Final[tuple[LayerRule, ...]] = layers.RULES
