"""`get`, `post`, `stream` and the rest: the stack's own functions, run with netkit's Client in their namespace.

Their signatures, defaults and behaviour stay the stack's, also those of functions that later versions add.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["functions_with"]


def functions_with(api: ModuleType, client: type, module: str) -> dict[str, Any]:
    """The functions that `api` exports, each making `client`s; they belong to `module` from now on."""
    namespace: dict[str, Any] = {**vars(api), "Client": client}
    exported: list[str] = api.__all__
    for name in exported:
        function = namespace[name]
        generator = getattr(function, "__wrapped__", None)
        made = _rebound(generator or function, namespace, module)
        namespace[name] = contextmanager(made) if generator is not None else made
    return {name: namespace[name] for name in exported}


def _rebound(function: Any, namespace: dict[str, Any], module: str) -> Any:
    made = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)
    made = functools.update_wrapper(made, function)  # type: ignore[assignment]
    del made.__wrapped__  # type: ignore[attr-defined]
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__ = module
    return made
