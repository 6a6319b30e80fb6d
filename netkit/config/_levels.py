"""One level of settings: what a file, a route, the environment or an argument says, and how to name its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Level", "PluginSettings", "frozen_copy"]

PluginSettings: TypeAlias = bool | Mapping[str, Any]
"""What can be said about a plugin: on, off, or on with these options."""


@dataclass(frozen=True)
class Level:
    """`settings` by plugin name, as one `source` gives them; `prefix` leads to them inside the source.

    `text` levels hold the texts of environment variables, whose `variables` names them by key path.
    """

    source: str
    settings: Mapping[str, Any]
    prefix: str = ""
    text: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def place(self, *keys: str) -> str:
        """Where a key stands, for errors: "/p/pyproject.toml: tool.netkit.retry.attempts"."""
        variable = self.variables.get(".".join(keys))
        if variable is not None:
            return f"environment variable {variable}"
        return f"{self.source}: {self.prefix}{'.'.join(keys)}"

    def origin(self, *keys: str) -> str:
        """Who set a key, for `netkit config`: "/p/pyproject.toml", "environment NETKIT_RETRY__ATTEMPTS"."""
        variable = self.variables.get(".".join(keys))
        return self.source if variable is None else f"environment {variable}"


def frozen_copy(value: Any) -> Any:
    """A copy that later changes of the original do not reach; objects that are no containers stay themselves."""
    if isinstance(value, Mapping):
        return {key: frozen_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [frozen_copy(item) for item in value]
    return value
