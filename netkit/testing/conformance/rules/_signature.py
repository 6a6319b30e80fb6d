"""What of an exception must stay the same: its type, what it says, what caused it."""

from __future__ import annotations

import re
from typing import Any

from netkit.errors import NetkitError
from netkit.testing.conformance._bench import Bench

__all__ = ["assert_native", "signature"]

_CHANGING = re.compile(r"0x[0-9a-f]+|(?<=:)\d{4,5}|port=\d+|/case/\d+|object at \S+|[\w.]*\d*\(?timeout=[\d.]+")


def signature(error: BaseException) -> list[str]:
    """One line for the exception and for each `__cause__` beneath it, without addresses and ports."""
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        lines.append(f"{type(current).__module__}.{type(current).__qualname__}: {_CHANGING.sub('*', str(current))}")
        current = current.__cause__
    return lines


def assert_native(bench: Bench, error: BaseException) -> None:
    """The exception is the stack's own, or the standard library's; never netkit's."""
    assert not isinstance(error, NetkitError), f"netkit's own {error!r} reached the caller"
    package = type(error).__module__.partition(".")[0]
    own: Any = {bench.face.stack, "builtins", "ssl", "socket", "asyncio"}
    assert package in own, f"{type(error)!r} is not an exception of {bench.face.stack}"
