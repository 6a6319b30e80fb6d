"""What is under test: one plugin with its options, and nothing else switched on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from netkit.plugins import IMPLICIT_PLUGINS, Registration, registry

__all__ = ["Subject", "subjects_of"]


@dataclass(frozen=True)
class Subject:
    """`name` None is the bare adapter, without any plugin: what fails there is the adapter's fault."""

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    module: str | None = None
    """Where a third party's plugin is registered from."""

    @property
    def registration(self) -> Registration | None:
        return None if self.name is None else registry().get(self.name)

    @property
    def request_headers(self) -> frozenset[str]:
        """Names, lower-cased, of the headers that the plugin says it may add or change."""
        found = self.registration
        return frozenset() if found is None else frozenset(name.lower() for name in found.request_headers)

    def plugins(self, http: str, url: str = "http://127.0.0.1") -> dict[str, Any]:
        """The `plugins=` argument that switches exactly this on. `url` is the server's: options may ask for it by the
        text "{url}"."""
        known = registry()
        mentioned = {found.name for found in known.implicit()} | (set(IMPLICIT_PLUGINS) & set(known.names()))
        chosen: dict[str, Any] = dict.fromkeys(sorted(mentioned), False)
        if http == "2":
            chosen["http2"] = True
        if self.name is not None:
            chosen[self.name] = _filled(dict(self.options), url) or True
        return chosen

    def without(self, http: str) -> dict[str, Any]:
        """The same with the plugin itself off."""
        return Subject(None).plugins(http)

    def __str__(self) -> str:
        return self.name or "bare"


def _filled(value: Any, url: str) -> Any:
    if isinstance(value, str):
        return value.replace("{url}", url)
    if isinstance(value, Mapping):
        return {key: _filled(item, url) for key, item in value.items()}
    return [_filled(item, url) for item in value] if isinstance(value, (list, tuple)) else value


def subjects_of(plugin: str, options: Mapping[str, Any] | None = None) -> list[Subject]:
    """The subjects behind `plugin`: the name of a plugin that netkit can find, or the import path of a module with
    hook implementations, which is registered with the process's registry.

    Raises PluginError or ModuleNotFoundError when there is neither, ValueError when a module registers nothing.
    """
    known = registry()
    if plugin in known.names():
        return [Subject(plugin, options or {})]
    module = importlib.import_module(plugin)
    known.register(module, plugin)
    names = [name for name in known.names() if known.by_hand(name) and known.get(name).module == plugin]
    if not names:
        raise ValueError(f"{plugin} registers no layer and no transport")
    return [Subject(name, options or {}, plugin) for name in names]
