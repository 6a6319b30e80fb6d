"""`netkit.requests` and its like: the original's namespace with netkit's classes in place of the original's.

Rules of this file:

- A name that netkit does not replace is the original's own object, looked up when asked for: identity holds.
- Nothing of the original module is changed.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["mirror"]


class _Mirror(ModuleType):
    """A module that shows its own names first, then the original's."""

    _netkit_original: ModuleType

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._netkit_original, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._netkit_original)})


def mirror(name: str, original_name: str, adapter_name: str) -> None:
    """Turn the module `name` into a mirror of `original_name`, with the adapter's `MIRROR` on top.

    Keys of `MIRROR` are names in the original, dotted for names in its submodules ("sessions.Session").
    """
    try:
        original = importlib.import_module(original_name)
    except ModuleNotFoundError as error:
        if error.name != original_name:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {original_name}: install netkit-http[{original_name}]", name=original_name
        ) from error
    replaced: dict[str, Any] = importlib.import_module(adapter_name).MIRROR
    module = sys.modules[name]
    _reflect(module, original)
    for dotted, value in replaced.items():
        inner, _, attribute = dotted.rpartition(".")
        setattr(_submodule(module, name, original_name, inner) if inner else module, attribute, value)
    # Submodules that the original has loaded can be imported by their mirrored names too.
    for loaded in [key for key in sys.modules if key.startswith(f"{original_name}.")]:
        sys.modules.setdefault(f"{name}{loaded[len(original_name) :]}", sys.modules[loaded])


def _submodule(module: ModuleType, name: str, original_name: str, inner: str) -> ModuleType:
    full = f"{name}.{inner}"
    known = sys.modules.get(full)
    if isinstance(known, _Mirror):
        return known
    made = ModuleType(full)
    _reflect(made, importlib.import_module(f"{original_name}.{inner}"))
    sys.modules[full] = made
    setattr(module, inner, made)
    return made


def _reflect(module: ModuleType, original: ModuleType) -> None:
    module.__doc__ = f"{original.__name__}, with netkit inside: the same names, netkit's sessions."
    module.__class__ = _Mirror
    module._netkit_original = original  # type: ignore[attr-defined]
    exported = getattr(original, "__all__", None)
    if exported is not None:
        module.__all__ = list(exported)  # type: ignore[attr-defined]
