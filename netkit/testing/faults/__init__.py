"""Faults: what a server, a wire or a proxy does to its clients on a bad day, as values that a test writes down."""

from __future__ import annotations

from ._base import ConnectionFault, Fault, FaultScript, respond

__all__ = ["ConnectionFault", "Fault", "FaultScript", "respond"]
