"""The hooks: the table of contents of what a plugin can do.

A plugin is a module (or object) with functions marked `@netkit.hookimpl`. Built-in plugins use the same hooks
and nothing else. See docs/writing-a-plugin.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from netkit.events import Event

__all__ = ["Hooks", "Register", "hookimpl"]

PROJECT = "netkit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """What `netkit_register` is given; see `netkit.plugins.Registration` for each field."""

    def __call__(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        options: type,
        kind: str = "layer",
        implicit: Any = None,
        request_headers: tuple[str, ...] = (),
        summary: str = "",
    ) -> None: ...


class Hooks:
    """Specifications; pluggy checks every implementation against them."""

    @hookspec
    def netkit_register(self, register: Register) -> None:
        """Called once per plugin manager. Call `register(name, factory, options=Options)` for each layer or
        transport that the plugin brings. `factory(options, context)` is called once per session and set of
        options; it returns an `async def (request, send)`."""

    @hookspec
    def netkit_event(self, event: Event) -> None:
        """Called for each event of every session that enabled the plugin, in the thread or task where it happened.
        Must not block. Exceptions are logged and change nothing."""
