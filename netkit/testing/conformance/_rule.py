"""The table of rules: one named function for each thing that a plugin must not break."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from netkit.testing.conformance._bench import Bench
    from netkit.testing.conformance._layer_bench import LayerBench

__all__ = ["LayerRule", "Rule", "layer_rule", "rule"]

FaceCheck: TypeAlias = "Callable[[Bench], Coroutine[Any, Any, None]]"
LayerCheck: TypeAlias = "Callable[[LayerBench], None]"


@dataclass(frozen=True)
class Rule:
    """Holds on every face, or only on "sync" or "async" ones, for each of the `http` versions."""

    name: str
    check: FaceCheck
    only: Literal["sync", "async"] | None
    http: tuple[str, ...]

    @property
    def summary(self) -> str:
        return (self.check.__doc__ or "").strip()


@dataclass(frozen=True)
class LayerRule:
    """Holds for the layer itself, whatever the stack."""

    name: str
    check: LayerCheck

    @property
    def summary(self) -> str:
        return (self.check.__doc__ or "").strip()


def rule(
    *, only: Literal["sync", "async"] | None = None, http: tuple[str, ...] = ("1.1", "2")
) -> Callable[[FaceCheck], Rule]:
    """Make a rule of `async def name(bench)`; its docstring says what is promised."""
    return lambda check: Rule(check.__name__, check, only, http)


def layer_rule(check: LayerCheck) -> LayerRule:
    """Make a rule of `def name(bench)` that needs no stack."""
    return LayerRule(check.__name__, check)
