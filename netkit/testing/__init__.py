"""What tests need, for netkit and for those who write plugins: a mock GPU server, faults, the conformance kit.

The parts are loaded when they are first asked for: this package is imported in every pytest run, and the mock server
needs extras (`pip install netkit-http[testing]`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import conformance, faults
    from .mock_gpu import MockGPU, encoded_vector, expected_bytes, expected_tokens, expected_vector

__all__ = [
    "MockGPU",
    "conformance",
    "encoded_vector",
    "expected_bytes",
    "expected_tokens",
    "expected_vector",
    "faults",
]

_HOMES = {
    "MockGPU": ".mock_gpu",
    "encoded_vector": ".mock_gpu",
    "expected_bytes": ".mock_gpu",
    "expected_tokens": ".mock_gpu",
    "expected_vector": ".mock_gpu",
}
_MODULES = ("conformance", "faults")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
