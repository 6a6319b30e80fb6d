"""The rules, by what they protect."""

from __future__ import annotations

from netkit.testing.conformance.rules import responses, streams, wire

__all__ = ["LAYER_RULES", "RULES"]

RULES = (*wire.RULES, *responses.RULES, *streams.RULES)
LAYER_RULES = ()
