"""What a rule about the layer alone gets: the layer by itself, and what must be zero once all is quiet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from netkit.config import Config
from netkit.events import Emitter
from netkit.flow import Layer, Send, compose
from netkit.plugins import Context, registry
from netkit.runtime import Runtime
from netkit.stats import Meter
from netkit.testing.conformance._subject import Subject

__all__ = ["LayerBench", "held", "in_use"]

IN_USE: Final = frozenset({"in_use", "in_flight", "queued", "pending", "waiting", "active", "open_calls", "leaders"})
"""Fields of `stats()` by these names count what is held at present."""


class LayerBench:
    """Makes the subject's layer, each time a new instance, on the runtime that the rule brings."""

    def __init__(self, subject: Subject) -> None:
        assert subject.name is not None
        self.subject = subject

    def layer(self, runtime: Runtime, stack: str = "httpx") -> Layer:
        """A new layer, with the subject's options checked as for a session."""
        plan = Config().with_plugins(self.subject.plugins("1.1"), source="conformance").plan(registry())
        (step,) = [step for step in plan.steps if step.name == self.subject.name]
        context = Context(runtime=runtime, emit=Emitter(), stack=stack, meter=Meter(), pool=None)
        layer: Layer = step.registration.factory(step.options, context)
        return layer

    def chain(self, layer: Layer, terminal: Send) -> Send:
        return compose([layer], terminal)


def in_use(layer: Layer) -> dict[str, float]:
    """What the layer's own `stats()` says is held at present and is not zero, by dotted name."""
    report = getattr(layer, "stats", None)
    return {} if report is None else held(report())


def held(stats: Any) -> dict[str, float]:
    """What a snapshot says is held at present and is not zero, by dotted name."""
    return {name: value for name, value in _held(stats, "") if value}


def _held(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in IN_USE and isinstance(inner, (int, float)):
                yield f"{path}{name}", inner
            else:
                yield from _held(inner, f"{path}{name}.")
