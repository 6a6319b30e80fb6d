"""What an options dataclass declares: names, types and defaults of its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from netkit.errors import PluginError

__all__ = ["MISSING", "Option", "options_of"]


class _Missing:
    def __repr__(self) -> str:
        return "(required)"


MISSING: Final = _Missing()
"""The default of an option that has none."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One field: its resolved type, and its default (`MISSING` when a value is required)."""

    name: str
    hint: Any
    default: Any


@lru_cache(maxsize=256)
def options_of(cls: type) -> Mapping[str, Option]:
    """The fields of an options dataclass by name, in their order. Raises `PluginError` for types that cannot be
    resolved (a name imported under TYPE_CHECKING only)."""
    try:
        hints = get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise PluginError(
            f"options {cls.__module__}.{cls.__qualname__}: a field's type is unknown: {error}"
        ) from error
    return MappingProxyType(
        {
            field.name: Option(field.name, hints[field.name], _default(field))
            for field in dataclasses.fields(cls)
            if field.init
        }
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING
