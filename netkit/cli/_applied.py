"""Which options a stack cannot honour, or honours in a way of its own: what layers say about themselves."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, Final

import netkit
from netkit.config import Config
from netkit.facade import edge_of

__all__ = ["applied"]

STACKS: Final = ("requests", "httpx", "httpx2", "aiohttp")


def applied(config: Config) -> dict[str, dict[str, dict[str, str]]]:
    """table → option → stack → how it applies there, as sessions made here and now would say.

    A session of each installed stack is made and closed; nothing is sent.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for stack in STACKS:
        if importlib.util.find_spec(stack) is None:
            continue
        for table, options in _described(stack, config).items():
            for option, note in options.items():
                found.setdefault(table, {}).setdefault(option, {})[stack] = note
    return found


def _described(stack: str, config: Config) -> Mapping[str, Mapping[str, str]]:
    if stack == "aiohttp":
        return asyncio.run(_described_by_aiohttp(config))
    module: Any = importlib.import_module(f"netkit.{stack}")
    face = module.Session if stack == "requests" else module.Client
    with face(config=config) as session:
        return edge_of(session).describe()


async def _described_by_aiohttp(config: Config) -> Mapping[str, Mapping[str, str]]:
    async with netkit.ClientSession(config=config) as session:
        return edge_of(session).describe()
