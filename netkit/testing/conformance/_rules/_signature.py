"""What of an exception must stay the same: its type, what it says, what caused it."""

from __future__ import annotations

import re

from netkit.errors import NetkitError
from netkit.testing.conformance._bench import Bench

__all__ = ["assert_native", "assert_same_failure"]

_CHANGING = re.compile(r"0x[0-9a-f]+|(?<=:)\d{4,5}|port=\d+|/case/\d+|object at \S+|[\w.]*\d*\(?timeout=[\d.]+")


def assert_same_failure(bench: Bench, plain: BaseException, ours: BaseException, *, words: bool = True) -> None:
    """`ours` is what the stack alone raised: same type, and (`words`) same message and causes. Over HTTP/2, which the
    stack alone does not speak here, the words may differ, and a lost connection may show as another of its types."""
    assert_native(bench, ours)
    if bench.http == "1.1":
        told = None if words else 1
        expected, got = _signature(plain)[:told], _signature(ours)[:told]
        assert got == expected, f"the failure is not what the stack alone raises: {got} instead of {expected}"
        return
    theirs = [kind for kind in type(plain).__mro__ if kind.__module__ != "builtins"]
    assert isinstance(ours, tuple(theirs)), f"{type(ours)!r} has nothing in common with {type(plain)!r}"


def _signature(error: BaseException) -> list[str]:
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
    assert package == bench.face.stack, f"{type(error)!r} is not an exception of {bench.face.stack}"
